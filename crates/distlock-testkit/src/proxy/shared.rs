//! State shared by the proxy's thread and its handle.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::counts::{Counts, Traffic};
use super::door::Door;
use super::flow::{Direction, Flow, PerDirection};
use crate::servers::TEST_LIMIT;

#[derive(Debug)]
pub(super) struct State {
    pub(super) target: SocketAddr,
    pub(super) flows: PerDirection<Flow>,
    pub(super) cut_after: PerDirection<Option<u64>>,
    pub(super) door: Door,
    /// The door that the thread has put into effect; `None` before it listens.
    pub(super) door_in_force: Option<Door>,
    pub(super) next_connection: u64,
    pub(super) open: BTreeSet<u64>,
    /// Connections with lower numbers must be cut.
    pub(super) cut_below: u64,
    pub(super) traffic: PerDirection<Traffic>,
    pub(super) is_closed: bool,
}

impl State {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            requests: self.traffic[Direction::Requests],
            replies: self.traffic[Direction::Replies],
            accepted: self.next_connection,
            open: self.open.len() as u64,
        }
    }

    /// Registers a new connection and returns its number.
    pub(super) fn enter(&mut self) -> u64 {
        let number = self.next_connection;
        self.next_connection += 1;
        self.open.insert(number);
        number
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notifies threads that wait for a count.
    happened: Condvar,
    /// Notifies tasks that the rules changed.
    rules: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new(target: SocketAddr) -> Shared {
        let state = State {
            target,
            flows: PerDirection::default(),
            cut_after: PerDirection::default(),
            door: Door::Open,
            door_in_force: None,
            next_connection: 0,
            open: BTreeSet::new(),
            cut_below: 0,
            traffic: PerDirection::default(),
            is_closed: false,
        };
        Shared { state: Mutex::new(state), happened: Condvar::new(), rules: watch::Sender::new(()) }
    }

    /// Changes the rules.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.rules.send_replace(());
        self.happened.notify_all();
    }

    /// Runs `act` under the lock of the rules, and notifies the threads that wait for its effect.
    pub(super) fn act<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let done = act(&mut self.lock());
        self.happened.notify_all();
        done
    }

    pub(super) fn rules(&self) -> watch::Receiver<()> {
        self.rules.subscribe()
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts()
    }

    #[track_caller]
    pub(super) fn wait(&self, what: &str, mut is_so: impl FnMut(&State) -> bool) {
        let waited = self.happened.wait_timeout_while(self.lock(), TEST_LIMIT, |state| !is_so(state));
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let counts = state.counts();
            drop(state);
            panic!("waited {TEST_LIMIT:?} in vain for {what}; {counts:?}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
