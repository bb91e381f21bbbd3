//! A release that the keeper has to send.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, SHORTEST_HEARTBEAT};
use crate::core::hold::Hold;
use crate::types::clock::Moment;
use crate::types::error::Error;

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
        PendingRelease { unanswered, due: now.after(pause), pause, ..self }
    }

    /// Returns the repetition of this release, which was confirmed, for a claim that may arrive until `until`.
    pub(crate) fn repeat(&self, until: Moment, now: Moment) -> Self {
        let due = now.after(self.pause).min(until);
        let pause = (self.pause * 2).min(LONGEST_PAUSE);
        PendingRelease { due, until, pause, is_confirmed: true, ..PendingRelease::withdraw(&self.claim, now) }
    }

    /// Whether it was repeated several times already.
    pub(crate) fn was_repeated_often(&self) -> bool {
        self.pause >= FIRST_PAUSE * 8
    }

    /// Whether nothing is left to release at `now`. The last repetition is sent at the very end.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now >= self.until && !self.is_confirmed
    }
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
            pending = pending.repeat(until, now);
            now = pending.due;
            assert!(!pending.is_over(now));
            dues.push(u64::try_from(now.since(START).as_millis()).unwrap());
        }
        assert_eq!(dues, [50, 150, 350, 400]);
    }
}
