//! Looking at locks from outside.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::hold::FileHold;
use super::inspector::Inspector;
use super::state::State;
use crate::contract::{Claim, LockInfo};
use crate::types::error::Result;
use crate::types::key::Key;

/// How long a new holder is given to write its name.
const NAME_WAIT: Duration = Duration::from_millis(1);

pub(super) async fn list(state: &State, prefix: &str) -> Result<Vec<LockInfo>> {
    settled(state, |inspector| inspector.list(prefix)).await
}

pub(super) async fn get(state: &State, key: &Key) -> Result<Option<LockInfo>> {
    let found = settled(state, |inspector| Ok(inspector.get(key)?.into_iter().collect())).await;
    found.map(|mut found| found.pop()).map_err(|error| error.with_key(key))
}

pub(super) fn holder_pids(state: &State, key: &Key) -> Result<Vec<u32>> {
    Inspector::of(state).pids(key)
}

/// Returns a copy of the descriptor that keeps the lock of `claim`.
pub(super) fn descriptor(state: &State, claim: &Claim) -> Result<Option<OwnedFd>> {
    state.holds().get(&claim.attempt).map(FileHold::descriptor).transpose()
}

/// Inspects, and once more where a holder seems foreign: it may be a client that has not written its name yet.
async fn settled(state: &State, inspect: impl Fn(Inspector<'_>) -> Result<Vec<LockInfo>>) -> Result<Vec<LockInfo>> {
    let found = inspect(Inspector::of(state))?;
    if found.iter().all(|info| info.holders.iter().all(|holder| holder.record.is_some())) {
        return Ok(found);
    }
    tokio::time::sleep(NAME_WAIT).await;
    inspect(Inspector::of(state))
}
