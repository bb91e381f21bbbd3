//! Whether a connection is open, and the callers that wait for it.

use crate::types::sync::Mutex;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::engines::redis::wire::connection::Connection;
use crate::types::error::{Error, ErrorKind};

#[derive(Clone)]
pub(in crate::engines) enum State {
    /// Being opened for the first time.
    New,
    Up(Arc<Connection>),
    Down(Trouble),
    /// It is never opened again.
    Closed,
}

/// Why a connection could not be opened.
#[derive(Debug, Clone)]
pub(in crate::engines) struct Trouble {
    pub(in crate::engines) kind: ErrorKind,
    pub(in crate::engines) text: String,
}

impl Trouble {
    pub(in crate::engines) fn error(&self) -> Error {
        Error::new(self.kind, self.text.clone())
    }

    /// Returns whether a retry cannot help.
    pub(in crate::engines) fn is_final(&self) -> bool {
        !self.error().is_retryable()
    }
}

/// The state of a connection, shared by its supervisor and its callers.
///
/// Callers are woken in the order in which they began to wait, so that the first request is sent first.
pub(in crate::engines) struct LinkState {
    state: Mutex<State>,
    changed: Notify,
}

impl LinkState {
    pub(in crate::engines) fn new() -> LinkState {
        LinkState { state: Mutex::new(State::New), changed: Notify::new() }
    }

    pub(in crate::engines) fn now(&self) -> State {
        self.state.lock().clone()
    }

    pub(in crate::engines) fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_waiters();
    }

    /// Returns the state when `is_such` accepts it or it is closed.
    pub(in crate::engines) async fn wait_for(&self, is_such: impl Fn(&State) -> bool) -> State {
        loop {
            // Before the state is read: a later change is not missed.
            let changed = self.changed.notified();
            let state = self.now();
            if matches!(state, State::Closed) || is_such(&state) {
                return state;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_are_woken_in_their_order() {
        let state = Arc::new(LinkState::new());
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..20 {
            let (state, woken) = (state.clone(), woken.clone());
            waiting.push(tokio::spawn(async move {
                state.wait_for(|_| false).await;
                woken.lock().push(number);
            }));
            tokio::task::yield_now().await;
        }
        state.set(State::Closed);
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(*woken.lock(), (0..20).collect::<Vec<_>>());
    }
}
