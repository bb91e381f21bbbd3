//! The table of a family's holds: which owner has which lock, and when the keeper must look at each.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;
use tokio::sync::Notify;

use crate::core::agenda::{Agenda, Appointment};
use crate::core::hold::{Hold, Look};
use crate::core::pending_release::PendingRelease;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::owner::OwnerId;
use crate::types::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::AttemptId;

/// The most losses that are kept for attempts that are not holds yet. A hold whose loss was dropped learns of it by its next
/// renewal.
const MOST_EARLY_LOSSES: usize = 1024;
/// How long closing waits for an engine that does not reply.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Every hold of a family. Acquiring and unlocking touch only this table: they wake the keeper only when it would
/// otherwise look too late.
pub(crate) struct Holds {
    table: Mutex<Table>,
    /// Whether the table is closed, for those that only ask that.
    is_closed: AtomicBool,
    /// Hashes owners and keys, which strangers may choose.
    hasher: RandomState,
    /// Tells the keeper to look at the table now.
    pub(crate) wake: Notify,
    /// The number of claims and releases that run in callers' futures.
    under_way: AtomicUsize,
}

/// A claim or a release that runs in its caller's future. The keeper does not end before it does.
pub(crate) struct UnderWay<'a>(&'a Holds);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_closed() {
            self.0.wake.notify_one();
        }
    }
}

/// The hash of an owner and a lock, by which the table finds their hold; made once per acquisition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldHash(u64);

#[derive(Default)]
struct Table {
    /// By attempt id, which is random: its own bits are its hash.
    entries: HashTable<Entry>,
    /// The newest hold of each owner and lock, by its hash. All of them are in `entries`.
    owned: HashTable<(HoldHash, AttemptId)>,
    agenda: Agenda,
    releases: Vec<PendingRelease>,
    /// When the keeper looks next without being woken; `None` while it is at work.
    planned: Option<Moment>,
    /// Losses that the engine pushed for attempts that are not holds yet.
    early_losses: HashMap<AttemptId, LossReason>,
    /// Set when the family closes: how long the keeper waits for the engine.
    closed_by: Option<Moment>,
    /// The keeper is gone: leases end what is not released.
    finished: bool,
}

struct Entry {
    hold: Arc<Hold>,
    hash: HoldHash,
    /// How many times its owner has entered.
    count: u32,
    appointment: Appointment,
}

/// The keeper's work at one moment.
pub(crate) struct Work {
    pub(crate) releases: Vec<PendingRelease>,
    pub(crate) due: Vec<Due>,
    /// Set when the family is closed: when to give up on the rest.
    pub(crate) closed_by: Option<Moment>,
}

/// A hold that the keeper must look at.
pub(crate) enum Due {
    /// It is lost.
    Lost(Arc<Hold>),
    /// It is due for renewal, and lost at `end` without one.
    Renewal { hold: Arc<Hold>, end: Moment, unanswered: u32 },
}

/// The hold that was re-entered, or the one that cannot be.
type Reentry = std::result::Result<Arc<Hold>, Arc<Hold>>;

/// The result of leaving a hold once.
pub(crate) enum Left {
    /// The owner is still inside.
    Inside,
    /// It was the last time: the hold is out of the table.
    Last(Arc<Hold>),
    /// It was the last time, and the keeper releases it when `at_least` is over.
    Parked,
    /// The table no longer has it.
    Gone,
}

impl Holds {
    pub(crate) fn new() -> Self {
        Holds {
            table: Mutex::default(),
            is_closed: AtomicBool::new(false),
            hasher: RandomState::new(),
            wake: Notify::new(),
            under_way: AtomicUsize::new(0),
        }
    }

    /// Returns the hash of the holds that `owner` has of `key`.
    pub(crate) fn hash(&self, owner: &OwnerId, key: &Key) -> HoldHash {
        HoldHash(self.hasher.hash_one((owner, key)))
    }

    /// Registers a claim or a release that begins in a caller's future.
    ///
    /// # Errors
    /// Kind `Closed` when the family is: the keeper may be gone by now.
    pub(crate) fn begin(&self) -> Result<UnderWay<'_>> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        // Count first, then check: either this call sees the family closed, or the keeper sees this call.
        let under_way = UnderWay(self);
        if self.is_closed() { Err(Error::closed()) } else { Ok(under_way) }
    }

    /// Adds a new hold, whose hash is `hash`. Returns an earlier hold of the same owner and lock that is lost but not
    /// retired yet: the caller retires it, so that its end is reported before the new hold.
    pub(crate) fn insert(&self, hold: Arc<Hold>, hash: HoldHash, now: Moment) -> Result<Option<Arc<Hold>>> {
        let mut look = hold.next_look(now);
        let mut table = self.table();
        if table.closed_by.is_some() {
            return Err(Error::closed());
        }
        if !table.early_losses.is_empty()
            && let Some(reason) = table.early_losses.remove(&hold.claim.attempt)
        {
            hold.lose(reason, now);
            look = now;
        }
        let attempt = hold.claim.attempt;
        // An owner may have several slots of a semaphore, so a slot is not found by owner and key.
        let before = if hold.slot.is_none() { table.own(&hold, hash) } else { None };
        let appointment = table.agenda.add(look, attempt);
        let entry = Entry { hold, hash, count: 1, appointment };
        table.entries.insert_unique(attempt.bits(), entry, |entry| entry.attempt().bits());
        self.wake_by(&mut table, look);
        let before = before.and_then(|attempt| table.entry(attempt));
        Ok(before.map(|entry| entry.hold.clone()).filter(|hold| hold.is_lost(now)))
    }

    /// Returns the live hold that `owner` has of `key`.
    pub(crate) fn held(&self, owner: &OwnerId, key: &Key, hash: HoldHash, now: Moment) -> Option<Arc<Hold>> {
        self.table().find(owner, key, hash, now).map(|entry| entry.hold.clone())
    }

    /// Re-enters the live hold that `owner` has of `key`, unless only one of hold and `mode` is shared. `Err` is a hold that
    /// cannot be entered, `None` means that there is none. Lookup and entry are one step: another task may take the lock
    /// between two.
    pub(crate) fn reenter(
        &self,
        owner: &OwnerId,
        key: &Key,
        hash: HoldHash,
        mode: Mode,
        now: Moment,
    ) -> Option<Reentry> {
        let mut table = self.table();
        let entry = table.find(owner, key, hash, now)?;
        if entry.hold.is_shared() != (mode == Mode::Shared) {
            return Some(Err(entry.hold.clone()));
        }
        entry.count += 1;
        Some(Ok(entry.hold.clone()))
    }

    /// Records a loss that the engine pushed. Returns the hold, unless the attempt is not a hold yet.
    pub(crate) fn lose(&self, attempt: AttemptId, reason: LossReason, now: Moment) -> Option<Arc<Hold>> {
        let mut table = self.table();
        if let Some(entry) = table.entry(attempt) {
            entry.hold.lose(reason, now);
            return Some(entry.hold.clone());
        }
        if self.under_way.load(Ordering::SeqCst) > 0 {
            table.early_losses.insert(attempt, reason);
        }
        None
    }

    /// Leaves a hold once; the last time hands its release to the keeper. Returns a hold that was lost before, whose loss the
    /// caller reports.
    pub(crate) fn leave_behind(&self, attempt: AttemptId, now: Moment) -> Option<Arc<Hold>> {
        let mut table = self.table();
        // In one step with leaving, so that the keeper of a closed family does not finish in between.
        let Left::Last(hold) = self.leave_in(&mut table, attempt, now) else { return None };
        let release = PendingRelease::leave(&hold, now);
        let is_told_later = release.as_ref().is_some_and(|release| release.hold.is_some());
        table.releases.extend(release);
        // The caller may still have a guard of a lock that it unlocks by name: the guard is lost before the engine is asked.
        hold.lose(LossReason::Unlocked, now);
        self.wake.notify_one();
        (!is_told_later).then_some(hold)
    }

    /// Leaves a hold once.
    pub(crate) fn leave(&self, attempt: AttemptId, now: Moment) -> Left {
        self.leave_in(&mut self.table(), attempt, now)
    }

    fn leave_in(&self, table: &mut Table, attempt: AttemptId, now: Moment) -> Left {
        match table.entry(attempt) {
            None => Left::Gone,
            Some(entry) if entry.count > 1 => {
                entry.count -= 1;
                Left::Inside
            }
            Some(entry) if entry.hold.park(now) => {
                let (hold, hash) = (entry.hold.clone(), entry.hash);
                table.disown(hash, attempt);
                let look = hold.next_look(now);
                table.reschedule(attempt, look);
                self.wake_by(table, look);
                Left::Parked
            }
            Some(_) => table.remove(attempt).map_or(Left::Gone, Left::Last),
        }
    }

    /// Removes a hold, however often it was entered.
    pub(crate) fn remove(&self, attempt: AttemptId) -> Option<Arc<Hold>> {
        self.table().remove(attempt)
    }

    pub(crate) fn get(&self, attempt: AttemptId) -> Option<Arc<Hold>> {
        self.table().entry(attempt).map(|entry| entry.hold.clone())
    }

    /// Returns those of the holds that are still in the table.
    pub(crate) fn get_all(&self, attempts: &[AttemptId]) -> Vec<Arc<Hold>> {
        let mut table = self.table();
        attempts.iter().filter_map(|attempt| table.entry(*attempt).map(|entry| entry.hold.clone())).collect()
    }

    /// Schedules the keeper's next look at a hold: `at` after a failed renewal, otherwise when the next one is due.
    pub(crate) fn look_again(&self, hold: &Hold, at: Option<Moment>, now: Moment) {
        let mut table = self.table();
        let look = at.unwrap_or_else(|| hold.next_look(now)).min(hold.end());
        if table.reschedule(hold.claim.attempt, look) {
            self.wake_by(&mut table, look);
        }
    }

    /// Schedules the keeper's next looks at holds that were renewed.
    pub(crate) fn look_again_at(&self, looks: impl Iterator<Item = (AttemptId, Moment)>) {
        let mut table = self.table();
        for (attempt, look) in looks {
            if table.reschedule(attempt, look) {
                self.wake_by(&mut table, look);
            }
        }
    }

    /// Hands a release to the keeper.
    pub(crate) fn hand_over(&self, release: PendingRelease) {
        let mut table = self.table();
        if !table.finished {
            table.releases.push(release);
            self.wake.notify_one();
        }
    }

    /// Takes everything that is due at `now`. A hold that is due for renewal is looked at again when the reply is late, or
    /// earlier by [`look_again`](Holds::look_again).
    pub(crate) fn take_work(&self, now: Moment) -> Work {
        let mut table = self.table();
        table.planned = None;
        let mut due = Vec::new();
        while let Some(attempts) = table.agenda.take_due(now) {
            for attempt in attempts {
                due.extend(table.look(attempt, now));
            }
        }
        // Drops the losses of attempts that never became holds. Without the bound the map grows while claims are in flight.
        if self.under_way.load(Ordering::SeqCst) == 0 || table.early_losses.len() > MOST_EARLY_LOSSES {
            table.early_losses.clear();
        }
        Work { releases: std::mem::take(&mut table.releases), due, closed_by: table.closed_by }
    }

    /// Returns when the keeper must look again. From now on a hold that is due earlier wakes it.
    pub(crate) fn plan(&self) -> Moment {
        let mut table = self.table();
        let next = table.agenda.next();
        table.planned = Some(next);
        next
    }

    /// Turns every hold into a pending release and refuses new ones. Guards are lost before anything is released. Returns
    /// the holds that were lost before, as in a process that was stopped; the caller reports their losses.
    pub(crate) fn close(&self, now: Moment) -> Vec<Arc<Hold>> {
        let mut table = self.table();
        table.closed_by.get_or_insert(now.after(CLOSE_GRACE));
        self.is_closed.store(true, Ordering::SeqCst);
        let mut holds: Vec<_> = table.entries.drain().map(|entry| entry.hold).collect();
        holds.sort_by_key(|hold| (hold.end(), hold.claim.attempt));
        table.agenda.clear();
        table.owned.clear();
        holds.retain(|hold| !hold.is_parked());
        holds.retain(|hold| {
            let release = PendingRelease::leave(hold, now);
            let is_told_later = release.as_ref().is_some_and(|release| release.hold.is_some());
            table.releases.extend(release);
            hold.lose(LossReason::Closed, now);
            !is_told_later
        });
        self.wake.notify_one();
        holds
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Ends the keeper's work for a closed family, unless something is left to do. Returns whether it ended.
    pub(crate) fn finish(&self, now: Moment) -> bool {
        let mut table = self.table();
        let over = table.closed_by.is_some_and(|by| now >= by);
        table.finished = over || (table.releases.is_empty() && self.under_way.load(Ordering::SeqCst) == 0);
        table.finished
    }

    fn wake_by(&self, table: &mut Table, look: Moment) {
        // A keeper that is at work plans again before it sleeps.
        if table.planned.is_some_and(|planned| look < planned) {
            table.planned = Some(look);
            self.wake.notify_one();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Entry {
    fn attempt(&self) -> AttemptId {
        self.hold.claim.attempt
    }

    fn is_of(&self, owner: &OwnerId, key: &Key) -> bool {
        self.hold.key() == key && self.hold.owner() == owner
    }
}

impl Table {
    fn entry(&mut self, attempt: AttemptId) -> Option<&mut Entry> {
        self.entries.find_mut(attempt.bits(), |entry| entry.attempt() == attempt)
    }

    fn find(&mut self, owner: &OwnerId, key: &Key, hash: HoldHash, now: Moment) -> Option<&mut Entry> {
        let attempt = *self.owned_by(hash, owner, key)?;
        self.entry(attempt).filter(|entry| !entry.hold.is_lost(now))
    }

    fn owned_by(&mut self, hash: HoldHash, owner: &OwnerId, key: &Key) -> Option<&mut AttemptId> {
        let Table { entries, owned, .. } = self;
        let is_of = |attempt: AttemptId| {
            let entry = entries.find(attempt.bits(), |entry| entry.attempt() == attempt);
            entry.is_some_and(|entry| entry.is_of(owner, key))
        };
        let found = owned.find_mut(hash.0, |(at, attempt)| *at == hash && is_of(*attempt));
        found.map(|(_, attempt)| attempt)
    }

    /// Makes `hold` the newest one of its owner and lock. Returns the one before.
    fn own(&mut self, hold: &Hold, hash: HoldHash) -> Option<AttemptId> {
        if let Some(newest) = self.owned_by(hash, hold.owner(), hold.key()) {
            return Some(std::mem::replace(newest, hold.claim.attempt));
        }
        self.owned.insert_unique(hash.0, (hash, hold.claim.attempt), |(hash, _)| hash.0);
        None
    }

    /// Removes the owner's claim on the hold of `attempt`, unless the owner has taken the lock again since.
    fn disown(&mut self, hash: HoldHash, attempt: AttemptId) {
        if let Ok(owned) = self.owned.find_entry(hash.0, |(_, newest)| *newest == attempt) {
            owned.remove();
        }
    }

    fn remove(&mut self, attempt: AttemptId) -> Option<Arc<Hold>> {
        let found = self.entries.find_entry(attempt.bits(), |entry| entry.attempt() == attempt).ok()?;
        let (Entry { hold, hash, appointment, .. }, _) = found.remove();
        self.cancel(appointment, attempt);
        self.disown(hash, attempt);
        Some(hold)
    }

    /// Looks at a hold that is not in the agenda any more, and puts it there again unless it is lost.
    fn look(&mut self, attempt: AttemptId, now: Moment) -> Option<Due> {
        let Table { entries, agenda, .. } = self;
        let entry = entries.find_mut(attempt.bits(), |entry| entry.attempt() == attempt)?;
        let (again, due) = match entry.hold.look(now) {
            Look::Lost => return Some(Due::Lost(entry.hold.clone())),
            Look::AtEnd(end) => (end, None),
            Look::Renewal { end, again, unanswered } => {
                (again, Some(Due::Renewal { hold: entry.hold.clone(), end, unanswered }))
            }
        };
        entry.appointment = agenda.add(again, attempt);
        due
    }

    fn reschedule(&mut self, attempt: AttemptId, look: Moment) -> bool {
        let Table { entries, agenda, .. } = self;
        let Some(entry) = entries.find_mut(attempt.bits(), |entry| entry.attempt() == attempt) else { return false };
        let before = std::mem::replace(&mut entry.appointment, agenda.add(look, attempt));
        self.cancel(before, attempt);
        true
    }

    /// Takes a hold out of the agenda.
    fn cancel(&mut self, appointment: Appointment, attempt: AttemptId) {
        if let Some(moved) = self.agenda.remove(appointment, attempt)
            && let Some(entry) = self.entry(moved)
        {
            entry.appointment = appointment;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::hold::tests::{START, TTL, hold};
    use crate::types::options::Options;

    #[test]
    fn closing_does_not_cut_short_the_delay_of_a_hold_that_was_lost_before() {
        let delayed = |now: Moment| {
            let holds = Holds::new();
            let mut hold = hold(&Options::default());
            hold.claim.delay = TTL;
            let hash = holds.hash(hold.owner(), hold.key());
            holds.insert(Arc::new(hold), hash, START).unwrap();
            holds.close(now);
            holds.take_work(now).releases.len()
        };
        assert_eq!(delayed(START), 1, "held: closing releases it");
        // The keeper has not looked since the lease ended, as in a process that stood still.
        assert_eq!(delayed(START.after(TTL)), 0, "lost: it rests");
    }

    #[test]
    fn leaving_counts_down_and_only_the_last_time_ends_the_hold() {
        let holds = Holds::new();
        let hold = Arc::new(hold(&Options::default()));
        holds.insert(hold.clone(), holds.hash(hold.owner(), hold.key()), START).unwrap();
        let hash = holds.hash(hold.owner(), hold.key());
        let entered = holds.reenter(hold.owner(), hold.key(), hash, Mode::Exclusive, START);
        assert!(entered.is_some_and(|entered| entered.is_ok_and(|entered| entered.token == hold.token)));
        let as_reader = holds.reenter(hold.owner(), hold.key(), hash, Mode::Shared, START);
        assert!(as_reader.is_some_and(|refused| refused.is_err()));
        assert!(matches!(holds.leave(hold.claim.attempt, START), Left::Inside));
        assert!(matches!(holds.leave(hold.claim.attempt, START), Left::Last(_)));
        assert!(matches!(holds.leave(hold.claim.attempt, START), Left::Gone));
        assert!(holds.held(hold.owner(), hold.key(), hash, START).is_none());
        assert_eq!(holds.plan(), Moment::NEVER, "nothing of it is left in the agenda");
    }
}
