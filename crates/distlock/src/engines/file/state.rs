//! What this client knows: its holds, its waiters, and where the files of locks are.

use std::collections::HashMap;

use super::hold::FileHold;
use super::protocol::lock_paths::PathLayout;
use super::waiters::Waiters;
use crate::types::clock::Clock;
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::AttemptId;

pub(super) struct State {
    pub(super) layout: PathLayout,
    pub(super) clock: Clock,
    pub(super) waiters: Waiters,
    holds: Mutex<HashMap<AttemptId, FileHold>>,
}

impl State {
    pub(super) fn new(layout: PathLayout, clock: Clock) -> State {
        let waiters = Waiters::new(clock.clone());
        State { layout, clock, waiters, holds: Mutex::default() }
    }

    pub(super) fn holds(&self) -> MutexGuard<'_, HashMap<AttemptId, FileHold>> {
        self.holds.lock()
    }
}
