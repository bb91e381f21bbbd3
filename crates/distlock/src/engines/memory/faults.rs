//! Scripted faults: the protocol between a test and the store.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::types::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicBool, Ordering};

/// A request into which a fault can be scripted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A claim of a lock.
    Claim,
    /// A renewal of one or more holds.
    Renew,
    /// A release of a hold or of a place in the queue.
    Release,
    /// A listing, or a look at one lock.
    Inspect,
    /// A forced release of another client's hold.
    ForceRelease,
    /// Entries for the histories of locks.
    WriteHistory,
    /// The note of a tick.
    NoteTick,
}

/// A fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request arrives this much later, by the store's clock.
    Delay(Duration),
    /// The request is carried out and its reply arrives this much later.
    DelayReply(Duration),
    /// The request is carried out, but the reply is lost: kind `Unknown`.
    LoseReply,
    /// The request never arrives, and the client cannot tell: kind `Unknown`.
    LoseRequest,
    /// The request is refused for now: kind `Unavailable`.
    Refuse,
    /// The request is not carried out and has no reply.
    Hang,
}

#[derive(Debug, Default)]
pub(super) struct ScriptedFaults {
    next: Mutex<HashMap<Operation, VecDeque<Fault>>>,
    /// Whether every request is refused.
    is_away: AtomicBool,
}

impl ScriptedFaults {
    pub(super) fn push(&self, operation: Operation, fault: Fault) {
        let mut faults = self.next.lock();
        faults.entry(operation).or_default().push_back(fault);
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// Carries a request out, with the fault that is scripted for it.
    pub(super) async fn apply<T>(
        &self,
        operation: Operation,
        clock: &Clock,
        apply: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(Error::unavailable("the store is disconnected, as the test asked for"));
        }
        match self.next(operation) {
            None => apply(),
            Some(Fault::Delay(time)) => {
                clock.sleep_until(clock.now().after(time)).await;
                apply()
            }
            Some(Fault::DelayReply(time)) => {
                // Computed before the request is carried out: a test that sees its effect knows when the reply comes.
                let arrives = clock.now().after(time);
                let reply = apply();
                clock.sleep_until(arrives).await;
                reply
            }
            Some(Fault::LoseReply) => {
                let _lost = apply();
                Err(Error::unknown("the reply was lost, as the test asked for"))
            }
            Some(Fault::LoseRequest) => Err(Error::unknown("the request was lost, as the test asked for")),
            Some(Fault::Refuse) => Err(Error::unavailable("refused, as the test asked for")),
            Some(Fault::Hang) => std::future::pending().await,
        }
    }

    fn next(&self, operation: Operation) -> Option<Fault> {
        let mut faults = self.next.lock();
        if faults.is_empty() {
            return None;
        }
        faults.get_mut(&operation)?.pop_front()
    }
}
