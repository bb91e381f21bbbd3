//! One hold of a lock: its deadline, its renewals and its loss.

use std::time::Duration;

use tokio::sync::SetOnce;

use crate::contract::{Claim, Grant, Lease, Term};
use crate::types::clock::{Moment, deadline, part_of};
use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::meter::HoldMeter;
use crate::types::mode::Mode;
use crate::types::options::Options;
use crate::types::owner::OwnerId;
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::FencingToken;
use crate::types::watchdog::{Watchdog, WatchdogKind};

/// The bounds of how long to wait for the reply to a renewal before another one is sent beside it.
const SHORTEST_REPLY_WAIT: Duration = Duration::from_millis(20);
const LONGEST_REPLY_WAIT: Duration = Duration::from_secs(2);
/// Renewals start at no more than this many moments per renewal interval: the keeper wakes no more often than that, however
/// many locks there are, and renewals of one moment share a call.
const ROUNDS: f64 = 32.0;

/// One hold of a lock, shared by its guards and the keeper.
pub(crate) struct Hold {
    pub(crate) claim: Claim,
    pub(crate) token: FencingToken,
    pub(crate) slot: Option<u32>,
    pub(crate) acquired: Moment,
    state: Mutex<State>,
    lost: SetOnce<LossReason>,
    /// Whether its loss was reported. Locked while it is reported, so that nothing of the next hold is reported before.
    is_told: Mutex<bool>,
    watchdog: Watchdog,
    renew_at: f64,
    drift: f64,
    /// The end of `at_least`.
    least_end: Moment,
    pub(crate) meter: HoldMeter,
}

/// What the keeper must do with a hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is lost: the guards must be told.
    Lost,
    /// Nothing before it ends.
    AtEnd(Moment),
    /// It must be renewed before `end`, and looked at again when the reply is late. The number counts the renewals without a
    /// reply.
    Renewal { end: Moment, again: Moment, unanswered: u32 },
}

struct State {
    /// The lease that renewals ask for.
    ttl: Duration,
    /// The longest lease that was ever asked for: the engine may have granted it, whatever it replied.
    longest: Duration,
    /// The start of the last request that was answered, and the lease that the engine granted. That may be shorter than
    /// asked for: a lock that was handed over begins with a short first lease.
    term: Term,
    /// The local deadline of the lease (rule 1). It only moves forward: a renewal never shortens a lease.
    deadline: Moment,
    /// Whether the lease is still the short first lease of a handoff: it is extended once, also without a watchdog.
    handed: bool,
    /// Failed renewals since the last successful one.
    failures: u32,
    /// Renewals sent since the last reply.
    unanswered: u32,
    /// The end of `max_hold`; of a parked hold, the end of `at_least`.
    max_end: Moment,
    /// When the watchdog was fed last.
    fed: Moment,
    /// Its owner has unlocked it, and it is kept until `at_least` has passed.
    parked: bool,
}

impl Hold {
    pub(crate) fn new(claim: Claim, grant: Grant, options: &Options, drift: f64, now: Moment) -> Self {
        let deadline = grant.term.map_or(Moment::NEVER, |term| deadline(term.start, term.ttl, drift));
        let term = grant.term.unwrap_or(Term { start: now, ttl: claim.ttl });
        Hold {
            token: grant.token,
            slot: grant.slot,
            acquired: now,
            state: Mutex::new(State {
                ttl: claim.ttl,
                longest: claim.ttl,
                term,
                deadline,
                handed: term.ttl < claim.ttl,
                failures: 0,
                unanswered: 0,
                max_end: options.max_hold.map_or(Moment::NEVER, |most| now.after(most)),
                fed: now,
                parked: false,
            }),
            lost: SetOnce::new(),
            is_told: Mutex::new(false),
            watchdog: options.watchdog,
            renew_at: options.renew_at,
            drift,
            least_end: now.after(options.at_least),
            meter: HoldMeter::new(options.group),
            claim: claim.granted(grant.token),
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.claim.key
    }

    pub(crate) fn owner(&self) -> &OwnerId {
        &self.claim.record.owner
    }

    /// Returns whether other readers may hold the lock too.
    pub(crate) fn is_shared(&self) -> bool {
        self.claim.mode() == Mode::Shared
    }

    /// Returns when the hold is lost unless a renewal is answered before.
    pub(crate) fn end(&self) -> Moment {
        self.end_of(&self.state())
    }

    pub(crate) fn is_at_risk(&self) -> bool {
        self.state().failures > 0
    }

    /// Returns the lease to ask for at the next renewal.
    pub(crate) fn lease(&self) -> Lease {
        Lease::new(Claim { ttl: self.ttl(), ..self.claim.clone() }, self.token)
    }

    /// Returns whether the engine said that the hold is gone: then nothing is left to release.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.loss(), Some(LossReason::Revoked | LossReason::Broken | LossReason::Adopted))
    }

    /// Returns whether the hold is lost. The first caller that sees the deadline passed makes the loss final.
    pub(crate) fn is_lost(&self, now: Moment) -> bool {
        self.settle(&self.state(), now)
    }

    pub(crate) fn loss(&self) -> Option<&LossReason> {
        self.lost.get()
    }

    /// Calls `report` with the loss, if there is one, once per hold. When this returns the loss was reported, by this call
    /// or another.
    pub(crate) fn tell_loss(&self, report: impl FnOnce(&LossReason)) {
        let mut is_told = self.is_told.lock();
        if let Some(reason) = self.loss().filter(|_| !*is_told) {
            *is_told = true;
            report(reason);
        }
    }

    /// Resolves when the hold is lost.
    pub(crate) async fn lost(&self) -> &LossReason {
        self.lost.wait().await
    }

    /// Marks the hold as lost for `reason`, unless it was lost before.
    pub(crate) fn lose(&self, reason: LossReason, now: Moment) {
        let state = self.state();
        if !self.settle(&state, now) {
            let _ = self.lost.set(reason);
        }
    }

    /// Records a sign of life. Returns whether renewal had stopped for lack of one.
    pub(crate) fn feed(&self, now: Moment) -> bool {
        let mut state = self.state();
        let was_silent = self.is_silent(&state, now);
        state.fed = now;
        was_silent
    }

    /// Returns whether the hold is lost and its lock delay must run out: then it is not released.
    pub(crate) fn rests(&self, now: Moment) -> bool {
        !self.claim.delay.is_zero() && self.is_lost(now) && !matches!(self.loss(), Some(LossReason::Closed))
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.state().parked
    }

    /// Keeps a hold that its owner unlocks before `at_least` has passed until then. Returns `false` when nothing is left to
    /// wait for.
    pub(crate) fn park(&self, now: Moment) -> bool {
        if now >= self.least_end {
            return false;
        }
        let mut state = self.state();
        if self.settle(&state, now) {
            return false;
        }
        state.parked = true;
        state.max_end = self.least_end;
        true
    }

    /// Returns what the keeper must do with the hold now. If it must be renewed, counts that renewal as begun.
    pub(crate) fn look(&self, now: Moment) -> Look {
        let mut state = self.state();
        if self.settle(&state, now) {
            return Look::Lost;
        }
        let end = self.end_of(&state);
        let has_watchdog = self.watchdog.0 != WatchdogKind::Off;
        if !(state.parked || state.handed || has_watchdog && !self.is_silent(&state, now)) {
            return Look::AtEnd(end);
        }
        let unanswered = state.unanswered;
        state.unanswered += 1;
        // A quarter of the time left, so that there is time for retries.
        let reply_wait = (end.since(now) / 4).clamp(SHORTEST_REPLY_WAIT, LONGEST_REPLY_WAIT);
        Look::Renewal { end, again: now.after_about(reply_wait).min(end), unanswered }
    }

    fn is_silent(&self, state: &State, now: Moment) -> bool {
        matches!(self.watchdog.0, WatchdogKind::Fed(most) if now >= state.fed.after(most)) && !state.parked
    }

    /// Moves the deadline after a renewal, counted from the renewal's own start. Returns `false` when the hold is lost.
    pub(crate) fn renewed(&self, term: Option<Term>, now: Moment) -> bool {
        self.extend(&mut self.state(), term, now)
    }

    /// Takes the reply to a renewal of the keeper. Returns the time that was left before it, and when to look next; `None`
    /// when the hold is lost.
    pub(crate) fn keeper_renewed(&self, term: Option<Term>, now: Moment) -> Option<(Option<Duration>, Moment)> {
        let mut state = self.state();
        state.unanswered = 0;
        let margin = time_left(self.end_of(&state), now);
        self.extend(&mut state, term, now).then(|| (margin, self.look_after(&state, now)))
    }

    fn extend(&self, state: &mut State, term: Option<Term>, now: Moment) -> bool {
        if self.settle(state, now) {
            return false;
        }
        match term {
            Some(term) => {
                state.deadline = state.deadline.max(deadline(term.start, term.ttl, self.drift));
                if term.start > state.term.start {
                    state.term = term;
                }
            }
            None => state.term.start = now,
        }
        state.failures = 0;
        state.handed = false;
        true
    }

    /// Counts a failed renewal. Returns how many have failed since the last success.
    pub(crate) fn renewal_failed(&self) -> u32 {
        let mut state = self.state();
        state.failures += 1;
        state.failures
    }

    /// Records that the engine replies, if only to refuse.
    pub(crate) fn answered(&self) {
        self.state().unanswered = 0;
    }

    /// Returns the time until the hold is lost; `None` when it does not end by time.
    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        time_left(self.end(), now)
    }

    /// Returns the lease that renewals ask for.
    pub(crate) fn ttl(&self) -> Duration {
        self.state().ttl
    }

    /// Returns the longest lease that the engine may have granted.
    pub(crate) fn longest(&self) -> Duration {
        self.state().longest
    }

    /// Records that a lease of `ttl` is about to be asked for.
    pub(crate) fn ask_for(&self, ttl: Duration) {
        let mut state = self.state();
        state.longest = state.longest.max(ttl);
    }

    /// Sets the lease that later renewals ask for.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.state().ttl = ttl;
    }

    /// Returns when the keeper must look at this hold, to renew it or to see it end.
    pub(crate) fn next_look(&self, now: Moment) -> Moment {
        self.look_after(&self.state(), now)
    }

    fn look_after(&self, state: &State, now: Moment) -> Moment {
        let end = self.end_of(state);
        if self.watchdog.0 == WatchdogKind::Off && !state.handed && !state.parked {
            return end;
        }
        // Up to a tenth earlier, so that locks taken together are not renewed together.
        let early = 1.0 - 0.1 * self.claim.attempt.fraction();
        // An engine may reply with a shared lease that was renewed a while ago: asking again at once would not help.
        let soonest = now.after(part_of(state.term.ttl.min(end.since(now)), self.renew_at / 2.0));
        let interval = part_of(state.term.ttl, self.renew_at);
        let look = state.term.start.after(part_of(interval, early)).down_to(part_of(interval, 1.0 / ROUNDS));
        look.max(soonest).min(end)
    }

    fn end_of(&self, state: &State) -> Moment {
        let end = state.deadline.min(state.max_end);
        match self.watchdog.0 {
            // Without a lease, silence itself ends the hold.
            WatchdogKind::Fed(most) if state.deadline == Moment::NEVER && !state.parked => {
                end.min(state.fed.after(most))
            }
            _ => end,
        }
    }

    fn settle(&self, state: &State, now: Moment) -> bool {
        if self.lost.initialized() {
            return true;
        }
        let over = now >= self.end_of(state);
        if over {
            let _ = self.lost.set(match () {
                () if state.parked => LossReason::Unlocked,
                () if now < state.deadline && now >= state.max_end => LossReason::MaxHold,
                () if self.is_silent(state, now) => LossReason::Silent,
                () => LossReason::Expired,
            });
        }
        over
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn time_left(end: Moment, now: Moment) -> Option<Duration> {
    (end != Moment::NEVER).then(|| end.since(now))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::types::clock::DEFAULT_DRIFT;
    use crate::types::owner::{Process, Record};

    pub(crate) const TTL: Duration = Duration::from_secs(10);
    pub(crate) const START: Moment = Moment::from_nanos(1_000_000_000_000);

    pub(crate) fn hold(options: &Options) -> Hold {
        let record = Arc::new(Record::new(OwnerId::random(), Process::current(), None, SystemTime::now()));
        let claim = Claim::new(Key::new("k").unwrap(), TTL, true, record);
        let grant = Grant::new(FencingToken::new(1), Some(Term { start: START, ttl: TTL }));
        Hold::new(claim, grant, options, DEFAULT_DRIFT, START)
    }

    #[test]
    fn an_answer_after_the_deadline_does_not_bring_a_hold_back() {
        let hold = hold(&Options::default());
        let late = hold.end();
        // No call has looked at the hold since: the reply itself must find it lost.
        assert!(!hold.renewed(Some(Term { start: START.after(TTL / 3), ttl: TTL }), late));
        assert_eq!(hold.loss(), Some(&LossReason::Expired));
        assert!(hold.is_lost(START), "for good, whatever a clock says");
    }

    #[test]
    fn answers_in_any_order_never_move_the_deadline_back() {
        let hold = hold(&Options::default());
        let [early, later] = [1, 2].map(|seconds| START.after(Duration::from_secs(seconds)));
        assert!(hold.renewed(Some(Term { start: later, ttl: TTL }), later));
        let end = hold.end();
        assert!(hold.renewed(Some(Term { start: early, ttl: TTL }), later));
        assert_eq!(hold.end(), end);
        assert_eq!(end, deadline(later, TTL, DEFAULT_DRIFT));
    }

    #[test]
    fn the_first_reason_for_a_loss_stays() {
        let hold = hold(&Options::default());
        hold.lose(LossReason::Broken, START);
        hold.lose(LossReason::Closed, START);
        assert!(hold.is_lost(START.after(TTL)));
        assert_eq!(hold.loss(), Some(&LossReason::Broken));
    }

    #[test]
    fn a_hold_is_looked_at_a_little_before_a_third_of_its_lease_and_at_its_end_without_a_watchdog() {
        let look = hold(&Options::default()).next_look(START).since(START);
        assert!((TTL.mul_f64(0.29)..=TTL.mul_f64(0.34)).contains(&look), "{look:?}");
        let alone = hold(&Options { watchdog: Watchdog::off(), ..Options::default() });
        assert_eq!(alone.next_look(START), alone.end());
    }

    #[test]
    fn many_holds_are_looked_at_in_few_rounds() {
        let looks: BTreeSet<_> = (0..200).map(|_| hold(&Options::default()).next_look(START)).collect();
        // Those taken together are spread over a tenth of the time between two renewals.
        assert!((2..=9).contains(&looks.len()), "{looks:?}");
    }

    #[test]
    fn silence_ends_a_hold_that_has_no_lease() {
        let silence = Duration::from_secs(3);
        let options = Options { watchdog: Watchdog::fed(silence), ..Options::default() };
        let claim = hold(&options).claim;
        let hold = Hold::new(claim, Grant::new(FencingToken::new(1), None), &options, DEFAULT_DRIFT, START);
        let fed = START.after(silence / 2);
        hold.feed(fed);
        assert!(!hold.is_lost(START.after(silence)));
        assert!(hold.is_lost(fed.after(silence)));
        assert_eq!(hold.loss(), Some(&LossReason::Silent));
    }

    #[test]
    fn a_lock_that_was_handed_over_gets_its_whole_lease_once_also_without_a_watchdog() {
        let options = Options { watchdog: Watchdog::off(), ..Options::default() };
        let short = Term { start: START, ttl: TTL / 10 };
        let claim = hold(&options).claim;
        let grant = Grant::new(FencingToken::new(1), Some(short));
        let handed = Hold::new(claim, grant, &options, 0.0, START);
        let look = handed.next_look(START);
        assert!(matches!(handed.look(START), Look::Renewal { .. }) && look.since(START) < TTL / 20, "{look:?}");
        assert!(handed.renewed(Some(Term { start: look, ttl: TTL }), look));
        assert_eq!(handed.look(look), Look::AtEnd(handed.end()), "only once");
        assert_eq!(handed.next_look(look), handed.end());
        assert!(handed.end().since(START) > TTL.mul_f64(0.9));
    }
}
