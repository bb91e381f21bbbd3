//! Ending a hold or an attempt on the engine.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, Release, SHORTEST_HEARTBEAT};
use crate::core::family::Core;
use crate::core::hold::Hold;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::{EventKind, LossReason};

/// The pause before a release is sent again, to begin with.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two tries of a release.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A release that the keeper sends: of a dropped guard, of an attempt that was withdrawn, or once more of one that was not
/// answered or whose claim may still arrive.
pub(crate) struct PendingRelease {
    pub(crate) claim: Claim,
    /// The hold whose end is reported with the release; `None` if there was none or its end is reported.
    pub(crate) hold: Option<Arc<Hold>>,
    /// The keeper does not send it before this moment.
    pub(crate) due: Moment,
    /// From this moment on there is nothing to release: the lease is over, or no claim can arrive any more.
    pub(crate) until: Moment,
    /// A release was sent before and not answered.
    pub(crate) unanswered: bool,
    /// A release was confirmed; this one is for a claim that may arrive after it.
    pub(crate) is_confirmed: bool,
    /// How long to wait before the next try.
    pause: Duration,
}

impl PendingRelease {
    /// Returns the release of `hold`.
    pub(crate) fn end(hold: &Arc<Hold>, now: Moment) -> Self {
        let lease = hold.longest().saturating_add(hold.claim.delay);
        let until = hold.left(now).map_or(now, |left| now.after(left)).max(now.after(lease));
        PendingRelease { until, hold: Some(hold.clone()), ..PendingRelease::withdraw(&hold.claim, now) }
    }

    /// Returns the release of what the engine may still keep of `hold`, which its owner leaves. The end of a hold that is
    /// lost already is not reported again: then the release has no `hold`. `None`: nothing is left to release, or the lock
    /// delay must run out.
    pub(crate) fn leave(hold: &Arc<Hold>, now: Moment) -> Option<Self> {
        let release = PendingRelease::end(hold, now);
        if !hold.is_lost(now) {
            return Some(release);
        }
        (!hold.is_gone() && !hold.rests(now)).then_some(PendingRelease { hold: None, ..release })
    }

    /// Returns the withdrawal of an attempt. A request of it may still be on its way: its effect ends one lease from now, or
    /// with its place in the queue.
    pub(crate) fn withdraw(claim: &Claim, now: Moment) -> Self {
        PendingRelease {
            claim: claim.clone(),
            hold: None,
            due: now,
            until: now.after(claim.lease().max(SHORTEST_HEARTBEAT)),
            unanswered: false,
            is_confirmed: false,
            pause: FIRST_PAUSE,
        }
    }

    /// Returns the next try of a release that failed with `error`.
    pub(crate) fn retry(self, error: &Error, now: Moment) -> Self {
        let unanswered = self.unanswered || error.may_be_applied();
        let pause = (self.pause * 2).min(LONGEST_PAUSE);
        PendingRelease { unanswered, due: now.after(self.pause), pause, ..self }
    }

    /// Returns the repetition of a confirmed release whose claim may arrive until `until`.
    fn repeat(claim: &Claim, pause: Duration, until: Moment, now: Moment) -> Self {
        let due = now.after(pause).min(until);
        let pause = (pause * 2).min(LONGEST_PAUSE);
        PendingRelease { due, until, pause, is_confirmed: true, ..PendingRelease::withdraw(claim, now) }
    }

    /// Whether nothing is left to release at `now`. The last repetition is sent at the very end.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now >= self.until && !self.is_confirmed
    }
}

/// Sends `pending` once. A confirmed release whose claim may still arrive is handed to the keeper to be repeated.
pub(crate) async fn send(core: &Core, pending: &PendingRelease) -> Result<Release> {
    let sent = core.clock.now();
    let outcome = core.backend.release(&pending.claim).await?;
    if let Some(until) = core.backend.late_until(&pending.claim).filter(|until| sent < *until) {
        let now = core.clock.now();
        core.holds.hand_over(PendingRelease::repeat(&pending.claim, pending.pause, until, now));
    }
    Ok(outcome)
}

/// Hands the release to the keeper if the caller's future is dropped before the engine has answered.
struct Releasing<'a> {
    core: &'a Core,
    pending: Option<PendingRelease>,
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.core.holds.hand_over(pending);
        }
    }
}

/// Releases a hold that is out of the table, in the caller's future.
pub(crate) async fn release_now(core: &Core, hold: Arc<Hold>) -> Result<()> {
    let now = core.clock.now();
    let pending = match PendingRelease::leave(&hold, now) {
        Some(pending) if pending.hold.is_some() => pending,
        lost => {
            core.report_loss(&hold);
            core.reporter.flush();
            lost.into_iter().for_each(|pending| core.holds.hand_over(pending));
            return Err(loss_of(&hold));
        }
    };
    // Another task may still have a guard of what is unlocked by name: it learns of the end before the engine does.
    hold.lose(LossReason::Unlocked, now);
    // If this future is dropped, the release may have been carried out.
    let pending = PendingRelease { unanswered: true, ..pending };
    let mut releasing = Releasing { core, pending: Some(pending) };
    let Some(pending) = &releasing.pending else { return Ok(()) };
    match send(core, pending).await {
        Ok(outcome) => {
            releasing.pending = None;
            let held = now.since(hold.acquired);
            if outcome == Release::Released {
                core.report(&hold, EventKind::Released { held });
                return Ok(());
            }
            let reason = LossReason::Revoked;
            core.report(&hold, EventKind::Lost { reason: &reason, held });
            Err(Error::lost(reason).with_key(hold.key()))
        }
        Err(error) => {
            if let Some(pending) = &mut releasing.pending {
                pending.unanswered = error.may_be_applied();
            }
            let help = "releasing goes on in the background, at the latest its lease ends it";
            Err(error.with_key(hold.key()).with_help(help))
        }
    }
}

/// Returns the error that says how `hold` was lost.
pub(crate) fn loss_of(hold: &Hold) -> Error {
    let reason = hold.loss().unwrap_or(&LossReason::Revoked);
    Error::lost(reason.clone()).with_key(hold.key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::hold::tests::{START, hold};
    use crate::types::options::Options;

    #[test]
    fn withdrawing_outlasts_a_place_in_the_queue() {
        let claim = Claim { ttl: Duration::from_millis(200), ..hold(&Options::default()).claim };
        assert!(PendingRelease::withdraw(&claim, START).until >= START.after(SHORTEST_HEARTBEAT));
        let long = Claim { ttl: SHORTEST_HEARTBEAT * 9, ..claim };
        assert!(PendingRelease::withdraw(&long, START).until >= START.after(long.ttl));
    }

    #[test]
    fn a_repetition_comes_ever_later_and_the_last_one_at_the_end() {
        let claim = hold(&Options::default()).claim;
        let (mut now, until) = (START, START.after(Duration::from_millis(400)));
        let mut pending = PendingRelease::withdraw(&claim, now);
        let mut dues = Vec::new();
        while now < until {
            pending = PendingRelease::repeat(&claim, pending.pause, until, now);
            now = pending.due;
            assert!(!pending.is_over(now));
            dues.push(u64::try_from(now.since(START).as_millis()).unwrap());
        }
        assert_eq!(dues, [50, 150, 350, 400]);
    }
}
