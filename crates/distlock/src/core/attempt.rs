//! One attempt to take a lock, from its first claim until it is a hold or withdrawn.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::contract::{BoxFuture, Claim, Grant};
use crate::core::family::Family;
use crate::core::hold::Hold;
use crate::core::holds::HoldHash;
use crate::core::keeper::retire;
use crate::core::pending_release::PendingRelease;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::EventKind;
use crate::types::meter::AcquireMeter;
use crate::types::options::Options;
use crate::types::token::AttemptId;

/// An attempt that must be withdrawn from the engine unless it becomes a hold.
pub(super) struct Attempt<'a> {
    pub(super) family: &'a Arc<Family>,
    pub(super) claim: Claim,
    /// Whether the engine may have received a claim of it.
    pub(super) sent: bool,
    pub(super) hash: HoldHash,
    pub(super) started: Moment,
    /// The end of the caller's wait.
    pub(super) until: Moment,
    pub(super) meter: AcquireMeter,
}

/// What became of a grant.
pub(super) enum Accepted {
    Held(Arc<Hold>),
    /// It arrived after its own deadline.
    Late,
    /// The family is closed: the attempt is withdrawn.
    Closed,
}

impl<'a> Attempt<'a> {
    /// Returns an attempt that begins at `started`, whose hold would have `hash`.
    pub(super) fn new(
        family: &'a Arc<Family>,
        claim: Claim,
        options: &Options,
        hash: HoldHash,
        started: Moment,
    ) -> Self {
        let until = match options.wait {
            // The engine's own bounds apply to the one claim of a try.
            None | Some(Duration::ZERO) => Moment::NEVER,
            Some(wait) => started.after(wait),
        };
        let meter = AcquireMeter::begin(&family.clock, started, family.reporter.backend, options.group);
        Attempt { family, claim, sent: false, hash, started, until, meter }
    }

    /// Turns a grant that is read at `now` into a hold.
    pub(super) fn accept(&mut self, grant: Grant, options: &Options, now: Moment) -> Accepted {
        let family = self.family;
        let hold = Arc::new(Hold::new(self.claim.clone(), grant, options, family.drift, now));
        if hold.is_lost(now) {
            return Accepted::Late;
        }
        match family.holds.insert(hold.clone(), self.hash, now) {
            Ok(Some(lost)) => retire(family, &lost),
            Ok(None) => {}
            Err(_closed) => return Accepted::Closed,
        }
        self.sent = false;
        family.report(&hold, EventKind::Acquired { waited: now.since(self.started) });
        Accepted::Held(hold)
    }

    /// Replaces the attempt after the engine has ended it. A release of the old attempt may still be on its way; it cannot
    /// end what the new one is granted.
    pub(super) fn begin_anew(&mut self) {
        // A claim of the old attempt without a reply may still take the lock: this ends it.
        self.family.holds.hand_over(PendingRelease::withdraw(&self.claim, self.family.clock.now()));
        self.claim.attempt = AttemptId::random();
        self.sent = false;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.sent && self.family.check_process().is_ok() {
            self.family.holds.hand_over(PendingRelease::withdraw(&self.claim, self.family.clock.now()));
        }
    }
}

/// Runs `future` until `until` (then `None`) or until the family closes. A closed family sends no further request: the
/// keeper has withdrawn the attempt.
pub(super) async fn bounded<T>(family: &Family, until: Moment, future: impl Future<Output = T>) -> Result<Option<T>> {
    let (mut future, mut closing) = (pin!(future), pin!(family.closing.wait()));
    // Boxed: most claims have no bound, and the others need no timer if they are answered at once.
    let mut timer: Option<BoxFuture<'_, Result<()>>> = None;
    poll_fn(|context| {
        if family.closing.initialized() {
            return Poll::Ready(Err(Error::closed()));
        }
        if let Poll::Ready(done) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(Some(done)));
        }
        if closing.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(Error::closed()));
        }
        if until == Moment::NEVER {
            return Poll::Pending;
        }
        let timer = timer.get_or_insert_with(|| Box::pin(family.sleep_until(until)));
        timer.as_mut().poll(context).map(|slept| slept.map(|()| None))
    })
    .await
}
