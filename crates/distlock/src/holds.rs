//! The holds of a locker family: what each owner has, and when the keeper must look at it next.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, SetOnce};

use crate::backend::{Claim, Grant, Lease, Term};
use crate::clock::{Moment, deadline};
use crate::error::{Error, Result};
use crate::event::LossReason;
use crate::key::Key;
use crate::meter::HoldMeter;
use crate::mode::Mode;
use crate::options::Options;
use crate::owner::OwnerId;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::token::{AttemptId, FencingToken};
use crate::watchdog::{Kind, Watchdog};

/// How long to wait for the answer to one renewal before another is sent beside it.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(20);
const LONGEST_PATIENCE: Duration = Duration::from_secs(2);
/// Renewals begin at this many moments in the time between two of the same lock: however many locks there are, the keeper
/// wakes no more often, and those of one moment share a call.
const ROUNDS: u32 = 64;
/// The pause before a release is tried again, to begin with.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How many losses of attempts that are not holds yet are remembered; a hold whose loss is forgotten learns of it by its
/// next renewal.
const MOST_EARLY_LOSSES: usize = 1024;
/// How long closing waits for an engine that does not answer.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// One hold of a lock, shared by its guards and the keeper.
pub(crate) struct Hold {
    pub(crate) claim: Claim,
    pub(crate) token: FencingToken,
    pub(crate) slot: Option<u32>,
    pub(crate) acquired: Moment,
    state: Mutex<State>,
    lost: SetOnce<LossReason>,
    watchdog: Watchdog,
    renew_at: f64,
    drift: f64,
    /// When `at_least` is over.
    least_end: Moment,
    pub(crate) meter: HoldMeter,
}

struct State {
    /// What renewals ask for.
    ttl: Duration,
    /// The last answered request's start and the length that the engine gave it, which may be another: a lock that was
    /// handed over begins with a short lease.
    term: Term,
    /// Where the lease ends for us (rule 1). Only ever moves forward: a renewal never shortens a lease.
    deadline: Moment,
    /// Whether the lease is still the short one of a handover: it is made whole once, also without a watchdog.
    handed: bool,
    /// Renewals that failed since the last one that did not.
    failures: u32,
    /// Renewals begun since the last answer.
    unanswered: u32,
    /// When `max_hold` is over; once it is parked, when `at_least` is.
    max_end: Moment,
    /// When the watchdog was fed last.
    fed: Moment,
    /// Its owner has left it, and it is kept until `at_least` is over.
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
            watchdog: options.watchdog,
            renew_at: options.renew_at,
            drift,
            least_end: now.after(options.at_least),
            meter: HoldMeter::new(options.group),
            claim,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.claim.key
    }

    pub(crate) fn owner(&self) -> &OwnerId {
        &self.claim.record.owner
    }

    /// Whether others may hold it too, as readers.
    pub(crate) fn is_shared(&self) -> bool {
        self.claim.mode() == Mode::Shared
    }

    /// When the hold counts as lost unless a renewal is answered before.
    pub(crate) fn end(&self) -> Moment {
        self.end_of(&self.state())
    }

    pub(crate) fn is_at_risk(&self) -> bool {
        self.state().failures > 0
    }

    /// What to ask the engine for at the next renewal.
    pub(crate) fn lease(&self) -> Lease {
        let ttl = self.state().ttl;
        Lease::new(Claim { ttl, ..self.claim.clone() }, self.token)
    }

    /// Whether the hold was lost by the engine's own word: then there is nothing of it to release.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.loss(), Some(LossReason::Revoked | LossReason::Broken | LossReason::Adopted))
    }

    /// Whether the hold is lost. Once it has been, it stays so: whoever sees the deadline passed settles it.
    pub(crate) fn is_lost(&self, now: Moment) -> bool {
        self.settle(&self.state(), now)
    }

    pub(crate) fn loss(&self) -> Option<&LossReason> {
        self.lost.get()
    }

    /// Resolves when the hold is lost.
    pub(crate) async fn lost(&self) -> &LossReason {
        self.lost.wait().await
    }

    /// Ends the hold for `reason`, unless it was lost before.
    pub(crate) fn lose(&self, reason: LossReason, now: Moment) {
        let state = self.state();
        if !self.settle(&state, now) {
            let _ = self.lost.set(reason);
        }
    }

    /// The work lives. Answers whether renewal had stopped for want of a sign.
    pub(crate) fn feed(&self, now: Moment) -> bool {
        let mut state = self.state();
        let was_silent = self.is_silent(&state, now);
        state.fed = now;
        was_silent
    }

    /// Whether it is lost and nobody is to have the lock until the delay is over that was asked for: then it is not
    /// released, but left to run out.
    pub(crate) fn rests(&self, now: Moment) -> bool {
        !self.claim.delay.is_zero() && self.is_lost(now) && !matches!(self.loss(), Some(LossReason::Closed))
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.state().parked
    }

    /// Its owner leaves it before `at_least` is over: it is kept until then. False when there is nothing to wait for.
    fn park(&self, now: Moment) -> bool {
        let mut state = self.state();
        if now >= self.least_end || self.settle(&state, now) {
            return false;
        }
        state.parked = true;
        state.max_end = self.least_end;
        true
    }

    /// Whether the watchdog keeps it at `now`.
    fn is_kept(&self, now: Moment) -> bool {
        let state = self.state();
        state.parked || state.handed || self.watchdog.0 != Kind::Off && !self.is_silent(&state, now)
    }

    fn is_silent(&self, state: &State, now: Moment) -> bool {
        matches!(self.watchdog.0, Kind::Fed(most) if now >= state.fed.after(most)) && !state.parked
    }

    /// A renewal begins. Answers how many are unanswered before it.
    fn begin_renewal(&self) -> u32 {
        let mut state = self.state();
        state.unanswered += 1;
        state.unanswered - 1
    }

    /// How long to wait for the answer to a renewal: a quarter of what is left, so that there is time for others.
    fn patience(&self, now: Moment) -> Duration {
        (self.end().since(now) / 4).clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE)
    }

    /// An answered renewal moves the deadline, from its own start. False when it came too late.
    pub(crate) fn renewed(&self, term: Option<Term>, now: Moment) -> bool {
        let mut state = self.state();
        if self.settle(&state, now) {
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

    /// A renewal failed. Answers how many have since the last success.
    pub(crate) fn renewal_failed(&self) -> u32 {
        let mut state = self.state();
        state.failures += 1;
        state.failures
    }

    /// The engine answers, if only to refuse.
    pub(crate) fn answered(&self) {
        self.state().unanswered = 0;
    }

    /// Time until the hold counts as lost; `None` when it does not end by time.
    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        Some(self.end()).filter(|end| *end != Moment::NEVER).map(|end| end.since(now))
    }

    /// Later renewals ask for `ttl`.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.state().ttl = ttl;
    }

    /// When the keeper must look at this hold: to renew it, or to see it end.
    fn next_look(&self, now: Moment) -> Moment {
        let state = self.state();
        let end = self.end_of(&state);
        if self.watchdog.0 == Kind::Off && !state.handed && !state.parked {
            return end;
        }
        // Up to a tenth earlier, so that locks taken together are not renewed together.
        let early = 1.0 - 0.1 * self.claim.attempt.fraction();
        // An engine may answer from a session that was renewed a while ago: asking again at once would not help.
        let soonest = now.after(state.term.ttl.min(end.since(now)).mul_f64(self.renew_at / 2.0));
        let interval = state.term.ttl.mul_f64(self.renew_at);
        let look = state.term.start.after(interval.mul_f64(early)).down_to(interval / ROUNDS);
        look.max(soonest).min(end)
    }

    fn end_of(&self, state: &State) -> Moment {
        let end = state.deadline.min(state.max_end);
        match self.watchdog.0 {
            // Where no lease runs out, silence itself is the end.
            Kind::Fed(most) if state.deadline == Moment::NEVER && !state.parked => end.min(state.fed.after(most)),
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the keeper does for somebody who is not there to do it: ends a hold or a dropped attempt on the engine.
pub(crate) struct Chore {
    pub(crate) claim: Claim,
    /// The hold it was; `None` for an attempt that may never have become one.
    pub(crate) hold: Option<Arc<Hold>>,
    /// When the lease is over whatever became of the requests before: then there is nothing left to do.
    pub(crate) until: Moment,
    /// A release was sent before and not answered.
    pub(crate) unanswered: bool,
    /// How long to wait before the next try.
    pub(crate) pause: Duration,
}

impl Chore {
    /// Ends `hold`.
    pub(crate) fn end(hold: &Arc<Hold>, now: Moment) -> Self {
        let lease = hold.state().ttl.saturating_add(hold.claim.delay);
        let until = hold.left(now).map_or(now, |left| now.after(left)).max(now.after(lease));
        Chore { until, hold: Some(hold.clone()), ..Chore::withdraw(&hold.claim, now) }
    }

    /// Withdraws an attempt. A request of it may still be on its way: what that does is over one lease from now.
    pub(crate) fn withdraw(claim: &Claim, now: Moment) -> Self {
        let until = now.after(claim.lease());
        Chore { claim: claim.clone(), hold: None, until, unanswered: false, pause: FIRST_PAUSE }
    }
}

/// Every hold of a family. Acquiring and unlocking touch only this table: they wake the keeper only when it would
/// otherwise look too late.
pub(crate) struct Holds {
    table: Mutex<Table>,
    /// Tells the keeper to look at the table now.
    pub(crate) wake: Notify,
    /// Claims and releases that run in their callers' futures.
    under_way: AtomicUsize,
}

/// A claim or a release that runs in its caller's future: while there is one, the keeper does not leave.
pub(crate) struct UnderWay<'a>(&'a Holds);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_closed() {
            self.0.wake.notify_one();
        }
    }
}

#[derive(Default)]
struct Table {
    entries: HashMap<AttemptId, Entry>,
    owned: HashMap<(OwnerId, Key), AttemptId>,
    agenda: BTreeSet<(Moment, AttemptId)>,
    chores: Vec<Chore>,
    /// When the keeper looks next by itself; `None` while it is at work.
    planned: Option<Moment>,
    /// Losses that an engine pushed for attempts that are not holds yet.
    early_losses: HashMap<AttemptId, LossReason>,
    /// Set when the family closes: until when the keeper waits for the engine.
    closed_by: Option<Moment>,
    /// The keeper is gone: chores are left to the leases.
    finished: bool,
}

struct Entry {
    hold: Arc<Hold>,
    /// How many times its owner has entered.
    count: u32,
    /// When it stands in the agenda.
    look: Moment,
}

/// What the keeper has to do now.
pub(crate) struct Work {
    pub(crate) chores: Vec<Chore>,
    pub(crate) due: Vec<Due>,
    /// Set when the family is closed: when to give up on what is not done by then.
    pub(crate) closed_by: Option<Moment>,
}

/// A hold that the keeper must look at.
pub(crate) enum Due {
    /// It is lost.
    Lost(Arc<Hold>),
    /// It wants to be renewed; so many renewals before are unanswered.
    Renewal(Arc<Hold>, u32),
}

/// A hold that was entered once more, or that cannot be.
type Reentry = std::result::Result<Arc<Hold>, Arc<Hold>>;

/// What leaving a hold once left of it.
pub(crate) enum Left {
    /// The owner is still inside.
    Inside,
    /// It was the last time: the hold is out of the table.
    Last(Arc<Hold>),
    /// It was the last time, and the keeper releases it when `at_least` is over.
    Parked,
    /// The table did not have it any more.
    Gone,
}

impl Holds {
    pub(crate) fn new() -> Self {
        Holds { table: Mutex::default(), wake: Notify::new(), under_way: AtomicUsize::new(0) }
    }

    /// A claim or a release begins.
    ///
    /// # Errors
    /// Kind `Closed` when the family is: the keeper may be gone by now.
    pub(crate) fn begin(&self) -> Result<UnderWay<'_>> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        // Counted first and asked then: either this sees the family closed, or the keeper sees this.
        let under_way = UnderWay(self);
        if self.is_closed() { Err(Error::closed()) } else { Ok(under_way) }
    }

    /// Takes a new hold into the keeper's care.
    pub(crate) fn insert(&self, hold: Arc<Hold>, now: Moment) -> Result<()> {
        let mut table = self.table();
        if table.closed_by.is_some() {
            return Err(Error::closed());
        }
        if !table.early_losses.is_empty()
            && let Some(reason) = table.early_losses.remove(&hold.claim.attempt)
        {
            hold.lose(reason, now);
        }
        let look = if hold.is_lost(now) { now } else { hold.next_look(now) };
        let attempt = hold.claim.attempt;
        // An owner may have several slots of a semaphore: none of them is the one that it has.
        if hold.slot.is_none() {
            table.owned.insert((hold.owner().clone(), hold.key().clone()), attempt);
        }
        table.agenda.insert((look, attempt));
        table.entries.insert(attempt, Entry { hold, count: 1, look });
        self.wake_by(&mut table, look);
        Ok(())
    }

    /// The live hold that `owner` has of `key`.
    pub(crate) fn held(&self, owner: &OwnerId, key: &Key, now: Moment) -> Option<Arc<Hold>> {
        self.table().find(owner, key, now).map(|entry| entry.hold.clone())
    }

    /// Enters the live hold that `owner` has of `key` once more, if it shares the lock as `shared` says. An error is the
    /// hold that it cannot enter; nothing, that it has none. One look: another task may take the lock between two.
    pub(crate) fn reenter(&self, owner: &OwnerId, key: &Key, shared: bool, now: Moment) -> Option<Reentry> {
        let mut table = self.table();
        let entry = table.find(owner, key, now)?;
        if entry.hold.is_shared() != shared {
            return Some(Err(entry.hold.clone()));
        }
        entry.count += 1;
        Some(Ok(entry.hold.clone()))
    }

    /// The engine says that a hold is gone. Answers it, unless it is not one yet.
    pub(crate) fn lose(&self, attempt: AttemptId, reason: LossReason, now: Moment) -> Option<Arc<Hold>> {
        let mut table = self.table();
        if let Some(entry) = table.entries.get(&attempt) {
            entry.hold.lose(reason, now);
            return Some(entry.hold.clone());
        }
        if self.under_way.load(Ordering::SeqCst) > 0 {
            table.early_losses.insert(attempt, reason);
        }
        None
    }

    /// Leaves a hold once; the last time hands its release to the keeper.
    pub(crate) fn leave_behind(&self, attempt: AttemptId, now: Moment) {
        let mut table = self.table();
        // In one go with leaving, so that the keeper of a closed family does not finish in between.
        if let Left::Last(hold) = self.leave_in(&mut table, attempt, now)
            && !hold.rests(now)
        {
            table.chores.push(Chore::end(&hold, now));
            self.wake.notify_one();
        }
    }

    /// Leaves a hold once.
    pub(crate) fn leave(&self, attempt: AttemptId, now: Moment) -> Left {
        self.leave_in(&mut self.table(), attempt, now)
    }

    fn leave_in(&self, table: &mut Table, attempt: AttemptId, now: Moment) -> Left {
        match table.entries.get_mut(&attempt) {
            None => Left::Gone,
            Some(entry) if entry.count > 1 => {
                entry.count -= 1;
                Left::Inside
            }
            Some(entry) if entry.hold.park(now) => {
                let hold = entry.hold.clone();
                table.disown(&hold);
                let look = hold.next_look(now);
                table.reschedule(attempt, look);
                self.wake_by(table, look);
                Left::Parked
            }
            Some(_) => table.remove(attempt).map_or(Left::Gone, Left::Last),
        }
    }

    /// Takes a hold out of the table however often it was entered.
    pub(crate) fn remove(&self, attempt: AttemptId) -> Option<Arc<Hold>> {
        self.table().remove(attempt)
    }

    pub(crate) fn get(&self, attempt: AttemptId) -> Option<Arc<Hold>> {
        self.table().entries.get(&attempt).map(|entry| entry.hold.clone())
    }

    /// Has the keeper look at a hold again: after its renewal, or after `pause` when that failed.
    pub(crate) fn look_again(&self, hold: &Hold, at: Option<Moment>, now: Moment) {
        let mut table = self.table();
        let look = at.unwrap_or_else(|| hold.next_look(now)).min(hold.end());
        if table.reschedule(hold.claim.attempt, look) {
            self.wake_by(&mut table, look);
        }
    }

    /// Hands a chore to the keeper.
    pub(crate) fn hand_over(&self, chore: Chore) {
        let mut table = self.table();
        if !table.finished {
            table.chores.push(chore);
            self.wake.notify_one();
        }
    }

    /// The keeper's look: everything that has to be done at `now`. A hold that is to be renewed is looked at again when
    /// the answer is late, or before by [`look_again`](Holds::look_again).
    pub(crate) fn take_work(&self, now: Moment) -> Work {
        let mut table = self.table();
        table.planned = None;
        let mut due = Vec::new();
        while let Some(&(look, attempt)) = table.agenda.first().filter(|(look, _)| *look <= now) {
            let Some(hold) = table.entries.get(&attempt).map(|entry| entry.hold.clone()) else {
                table.agenda.remove(&(look, attempt));
                continue;
            };
            if hold.is_lost(now) {
                table.agenda.remove(&(look, attempt));
                due.push(Due::Lost(hold));
            } else if hold.is_kept(now) {
                table.reschedule(attempt, now.after(hold.patience(now)).min(hold.end()));
                let unanswered = hold.begin_renewal();
                due.push(Due::Renewal(hold, unanswered));
            } else {
                table.reschedule(attempt, hold.end());
            }
        }
        // Of an attempt that never became a hold nobody asks; where there is always one under way they would pile up.
        if self.under_way.load(Ordering::SeqCst) == 0 || table.early_losses.len() > MOST_EARLY_LOSSES {
            table.early_losses.clear();
        }
        Work { chores: std::mem::take(&mut table.chores), due, closed_by: table.closed_by }
    }

    /// When the keeper must look again. From now on whoever brings that forward wakes it.
    pub(crate) fn plan(&self) -> Moment {
        let mut table = self.table();
        let next = table.agenda.first().map_or(Moment::NEVER, |(look, _)| *look);
        table.planned = Some(next);
        next
    }

    /// Turns every hold into a chore and takes no new ones. The guards are told before anything is released.
    pub(crate) fn close(&self, now: Moment) {
        let mut table = self.table();
        table.closed_by.get_or_insert(now.after(CLOSE_GRACE));
        let mut holds: Vec<_> = table.entries.drain().map(|(_, entry)| entry.hold).collect();
        holds.sort_by_key(|hold| (hold.end(), hold.claim.attempt));
        table.agenda.clear();
        table.owned.clear();
        for hold in holds.into_iter().filter(|hold| !hold.is_parked()) {
            hold.lose(LossReason::Closed, now);
            // One that was lost before, as in a process that stood still, keeps its delay.
            if !hold.rests(now) {
                table.chores.push(Chore::end(&hold, now));
            }
        }
        self.wake.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.table().closed_by.is_some()
    }

    /// The keeper leaves a closed family, unless there is still something to do.
    pub(crate) fn finish(&self, now: Moment) -> bool {
        let mut table = self.table();
        let over = table.closed_by.is_some_and(|by| now >= by);
        table.finished = over || (table.chores.is_empty() && self.under_way.load(Ordering::SeqCst) == 0);
        table.finished
    }

    fn wake_by(&self, table: &mut Table, look: Moment) {
        // While the keeper is at work it plans anew before it sleeps.
        if table.planned.is_some_and(|planned| look < planned) {
            table.planned = Some(look);
            self.wake.notify_one();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn find(&mut self, owner: &OwnerId, key: &Key, now: Moment) -> Option<&mut Entry> {
        let attempt = self.owned.get(&(owner.clone(), key.clone()))?;
        self.entries.get_mut(attempt).filter(|entry| !entry.hold.is_lost(now))
    }

    fn remove(&mut self, attempt: AttemptId) -> Option<Arc<Hold>> {
        let Entry { hold, look, .. } = self.entries.remove(&attempt)?;
        self.agenda.remove(&(look, attempt));
        self.disown(&hold);
        Some(hold)
    }

    /// The owner of `hold` does not have it any more. It may have taken the lock anew after losing this one.
    fn disown(&mut self, hold: &Hold) {
        if let MapEntry::Occupied(owned) = self.owned.entry((hold.owner().clone(), hold.key().clone()))
            && *owned.get() == hold.claim.attempt
        {
            owned.remove();
        }
    }

    fn reschedule(&mut self, attempt: AttemptId, look: Moment) -> bool {
        let Some(entry) = self.entries.get_mut(&attempt) else { return false };
        self.agenda.remove(&(entry.look, attempt));
        entry.look = look;
        self.agenda.insert((look, attempt));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::clock::DEFAULT_DRIFT;
    use crate::owner::{Process, Record};

    const TTL: Duration = Duration::from_secs(10);
    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    fn hold(options: &Options) -> Hold {
        let record = Arc::new(Record::new(OwnerId::random(), Process::current(), None, SystemTime::now()));
        let claim = Claim::new(Key::new("k").unwrap(), TTL, true, record);
        let grant = Grant::new(FencingToken::new(1), Some(Term { start: START, ttl: TTL }));
        Hold::new(claim, grant, options, DEFAULT_DRIFT, START)
    }

    #[test]
    fn an_answer_after_the_deadline_does_not_bring_a_hold_back() {
        let hold = hold(&Options::default());
        let late = hold.end();
        // Nobody has looked at the hold since: the answer itself must find it lost.
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
    fn closing_does_not_cut_short_the_delay_of_a_hold_that_was_lost_before() {
        let delayed = |now: Moment| {
            let holds = Holds::new();
            let mut hold = hold(&Options::default());
            hold.claim.delay = TTL;
            holds.insert(Arc::new(hold), START).unwrap();
            holds.close(now);
            holds.take_work(now).chores.len()
        };
        assert_eq!(delayed(START), 1, "held: closing releases it");
        // The keeper has not looked since the lease ended, as in a process that stood still.
        assert_eq!(delayed(START.after(TTL)), 0, "lost: it rests");
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
        assert!(handed.is_kept(START) && look.since(START) < TTL / 20, "{look:?}");
        assert!(handed.renewed(Some(Term { start: look, ttl: TTL }), look));
        assert!(!handed.is_kept(look), "only once");
        assert_eq!(handed.next_look(look), handed.end());
        assert!(handed.end().since(START) > TTL.mul_f64(0.9));
    }

    #[test]
    fn leaving_counts_down_and_only_the_last_time_ends_the_hold() {
        let holds = Holds::new();
        let hold = Arc::new(hold(&Options::default()));
        holds.insert(hold.clone(), START).unwrap();
        let entered = holds.reenter(hold.owner(), hold.key(), false, START);
        assert!(entered.is_some_and(|entered| entered.is_ok_and(|entered| entered.token == hold.token)));
        let as_reader = holds.reenter(hold.owner(), hold.key(), true, START);
        assert!(as_reader.is_some_and(|refused| refused.is_err()));
        assert!(matches!(holds.leave(hold.claim.attempt, START), Left::Inside));
        assert!(matches!(holds.leave(hold.claim.attempt, START), Left::Last(_)));
        assert!(matches!(holds.leave(hold.claim.attempt, START), Left::Gone));
        assert!(holds.held(hold.owner(), hold.key(), START).is_none());
        assert_eq!(holds.plan(), Moment::NEVER, "nothing of it is left in the agenda");
    }
}
