//! Faults on order.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::types::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::sync::Mutex;

/// A request that can be made to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Asking for a lock.
    Claim,
    /// Renewing one or more holds.
    Renew,
    /// Releasing a hold or giving up a place.
    Release,
    /// Listing or showing.
    Inspect,
    /// Ending somebody else's hold.
    ForceRelease,
    /// Adding to the histories of locks.
    WriteHistory,
}

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It arrives this much later, by the store's clock.
    Delay(Duration),
    /// It is carried out and its answer arrives this much later.
    DelayReply(Duration),
    /// It is carried out, but the answer is lost: kind `Unknown`.
    LoseReply,
    /// It never arrives, and nobody can tell: kind `Unknown`.
    LoseRequest,
    /// It is refused for now: kind `Unavailable`.
    Refuse,
    /// It is not carried out and never answered.
    Hang,
}

#[derive(Debug, Default)]
pub(super) struct Script(Mutex<HashMap<Operation, VecDeque<Fault>>>);

impl Script {
    pub(super) fn push(&self, operation: Operation, fault: Fault) {
        let mut faults = self.0.lock();
        faults.entry(operation).or_default().push_back(fault);
    }

    /// Carries a request out with whatever was ordered for it.
    pub(super) async fn play<T>(
        &self,
        operation: Operation,
        clock: &Clock,
        apply: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match self.next(operation) {
            None => apply(),
            Some(Fault::Delay(time)) => {
                clock.sleep_until(clock.now().after(time)).await;
                apply()
            }
            Some(Fault::DelayReply(time)) => {
                // Before it is carried out: whoever sees that it was knows when the answer comes.
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
        let mut faults = self.0.lock();
        if faults.is_empty() {
            return None;
        }
        faults.get_mut(&operation)?.pop_front()
    }
}
