//! Releases.

use super::hold::FileHold;
use super::inspector::Inspector;
use super::state::State;
use crate::contract::{Claim, Release};
use crate::types::error::Result;
use crate::types::key::Key;
use crate::types::token::FencingToken;

/// Frees the hold of `claim`, or gives up its place in the queue.
pub(super) fn release(state: &State, claim: &Claim) -> Release {
    state.waiters.leave(claim.attempt);
    let hold = state.holds().remove(&claim.attempt);
    hold.map_or(Release::NotOurs, FileHold::end)
}

/// Refuses, since a kernel's lock cannot be taken from its holder; the error says who that is.
pub(super) fn force_release(state: &State, key: &Key, token: FencingToken) -> Result<()> {
    Inspector::of(state).refuse_to_break(key, token).map_err(|error| error.with_key(key))
}

/// Frees everything.
pub(super) fn close(state: &State) {
    state.waiters.close();
    for (_, hold) in state.holds().drain() {
        hold.end();
    }
}
