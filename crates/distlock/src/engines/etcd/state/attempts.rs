//! The attempts of this client: which key each has, what is known of its place, and how long it is to be kept.
//!
//! Many locks share a lease that lives as long as the process. So each attempt also has an end of its own: when the
//! core neither claims nor renews it again, its key is deleted as if it had had a lease for itself.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::contract::{Claim, Term};
use crate::engines::etcd::protocol::messages::KeyValue;
use crate::engines::etcd::protocol::names::Names;
use crate::engines::etcd::shared_lease::SharedLease;
use crate::engines::etcd::state::key_numbers::KeyNumbers;
use crate::types::clock::Moment;
use crate::types::mode::Mode;
use crate::types::owner::{Holder, Record};
use crate::types::token::{AttemptId, FencingToken};

/// A hold that was handed on within the client and is older than this is not over in a moment.
const HASTE: Duration = Duration::from_millis(5);

/// A key as it was made once: a later key of the same name is another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueueKey {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
}

impl QueueKey {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        QueueKey { key: kv.key.clone(), created: kv.create_revision }
    }
}

/// One attempt to take a lock, and the hold that it may have become.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) id: AttemptId,
    /// What all keys of the lock begin with.
    pub(crate) lock: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) mode: Mode,
    /// How much longer than its holder counts on the lease is.
    delay: Duration,
    /// The lease that names the key, and the number behind it; `None`: another client has named it.
    named: Option<(i64, u32)>,
    /// Something changed for the one who waits.
    pub(crate) turn: Notify,
    /// Held while the key is being made, moved or deleted: it is deleted only when it is known whether it is there.
    pub(crate) making: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

/// What is known of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// What others may read about it.
    pub(crate) record: Arc<Record>,
    /// The lease that its key hangs on.
    pub(crate) session: Arc<SharedLease>,
    /// The leases that it was asked to be moved to from there, and may hang on already: each is longer than `session`, so
    /// that a request that comes late never brings it back.
    pub(crate) next_leases: Vec<Arc<SharedLease>>,
    pub(crate) phase: Phase,
    /// The key's create revision, which is the fencing token; 0 as long as it is not known.
    pub(crate) created: i64,
    /// The last revision at which a key of this name was seen to be deleted.
    pub(crate) deleted: i64,
    /// Up to here the queue was read.
    pub(crate) revision: i64,
    /// The keys whose end it waits for, as of that revision: as long as all are there the lock is not free for it.
    pub(crate) before: Vec<QueueKey>,
    /// Who held the lock then, and the key of that hold.
    pub(crate) holder: Option<(QueueKey, Holder)>,
    /// The one before has left, and its answer from this revision showed our key, which is the first from then on.
    pub(crate) first_at: Option<i64>,
    /// The slot of a semaphore that it has.
    pub(crate) slot: Option<u32>,
    /// How many requests to make the key were never answered and may still make it.
    pub(crate) doubts: u32,
    /// A lease that its key may have hung on is gone, and it was not looked yet whether the key went with it.
    pub(crate) in_question: bool,
    /// Its key may go on without it, or may still be deleted by its name: no other may be made with that name.
    pub(crate) name_is_taken: bool,
    /// The start of the term that the core knows.
    pub(crate) known_start: Moment,
    /// After that the key is deleted.
    pub(crate) keep_until: Moment,
    /// When to delete a key again that a request on its way may still make, and when that began.
    pub(crate) again: Option<(Moment, Moment)>,
}

/// Where an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not granted, as far as we know.
    Waiting,
    /// Granted at this moment.
    Held(Moment),
    /// Being given up. The flag says whether it was a hold.
    Leaving { was_held: bool },
    /// Its key is not there any more.
    Gone,
}

impl State {
    /// The leases that its key may hang on.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Arc<SharedLease>> {
        std::iter::once(&self.session).chain(&self.next_leases)
    }
}

impl Attempt {
    /// What is known now.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Our key, once it is known when it was made.
    pub(crate) fn mark(&self) -> Option<QueueKey> {
        let created = self.state().created;
        (created != 0).then(|| QueueKey { key: self.key.clone(), created })
    }

    /// Whether its key hangs on `session`, or will, and is not given up.
    pub(crate) fn needs(&self, session: &SharedLease) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Waiting | Phase::Held(_)) && state.leases().any(|other| other.id == session.id)
    }

    /// The part of a lease that its holder counts on.
    pub(crate) fn term_of(&self, term: Term) -> Term {
        Term { ttl: term.ttl.saturating_sub(self.delay), ..term }
    }

    /// It waits, and the queue as of `revision` has its key first: wakes it. False: it does not wait, or not with that key.
    pub(crate) fn set_first(&self, created: i64, revision: i64) -> bool {
        let mut state = self.state();
        let waits = state.phase == Phase::Waiting && state.created == created;
        if waits {
            state.first_at = Some(revision);
            // Whoever a watch has woken before waits for nobody's end any more, and hears of it from nobody else.
            self.turn.notify_one();
        }
        waits
    }
}

/// Where a new attempt stands.
#[derive(Debug)]
struct Place {
    lock: Vec<u8>,
    key: Vec<u8>,
    created: i64,
    mode: Mode,
    named: Option<(i64, u32)>,
}

/// All attempts of a client.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    all: HashMap<AttemptId, Arc<Attempt>>,
    by_key: HashMap<Vec<u8>, AttemptId>,
    slots: KeyNumbers,
    /// When to look after which.
    agenda: BTreeSet<(Moment, AttemptId)>,
    /// Who waits for the end of a key: the next in the queue. Names that nest have one for each queue that it is in.
    behind: BTreeMap<QueueKey, Vec<AttemptId>>,
    /// The last attempt of this client that got a lock for itself alone, until it has left.
    holders: HashMap<Vec<u8>, AttemptId>,
}

impl Attempts {
    pub(crate) fn get(&self, id: AttemptId) -> Option<Arc<Attempt>> {
        self.table().all.get(&id).cloned()
    }

    /// Whether this very attempt is here, and was not forgotten.
    pub(crate) fn has(&self, attempt: &Attempt) -> bool {
        self.table().has(attempt)
    }

    /// Takes a new attempt in, to be looked after first at `look`.
    pub(crate) fn begin(
        &self,
        claim: &Claim,
        lock: Vec<u8>,
        session: Arc<SharedLease>,
        keep_until: Moment,
        look: Moment,
    ) -> Arc<Attempt> {
        let mut table = self.table();
        let number = table.slots.take(session.id, &lock);
        let named = Some((session.id, number));
        let mode = claim.mode();
        let key = Names::place(&lock, session.id, number, mode);
        let place = Place { lock, key, created: 0, mode, named };
        table.insert(claim, place, session, keep_until, look)
    }

    /// Takes an attempt in that is to take over the hold with this key, which is [given](Attempts::give) to it when it has.
    pub(crate) fn take_in(
        &self,
        claim: &Claim,
        (lock, QueueKey { key, created }): (Vec<u8>, QueueKey),
        session: Arc<SharedLease>,
        keep_until: Moment,
        look: Moment,
    ) -> Arc<Attempt> {
        let mode = Names::mode(&lock, &key);
        let place = Place { lock, key, created, mode, named: None };
        self.table().insert(claim, place, session, keep_until, look)
    }
    /// The key that `attempt` has taken over is its own now.
    pub(crate) fn give(&self, attempt: &Attempt) {
        let mut table = self.table();
        if table.has(attempt) {
            table.by_key.insert(attempt.key.clone(), attempt.id);
        }
    }

    /// Forgets an attempt, and wakes who waits for its end.
    pub(crate) fn remove(&self, attempt: &Attempt) {
        let mut table = self.table();
        if !table.has(attempt) {
            return;
        }
        table.all.remove(&attempt.id);
        if table.by_key.get(&attempt.key) == Some(&attempt.id) {
            table.by_key.remove(&attempt.key);
        }
        if table.holders.get(&attempt.lock) == Some(&attempt.id) {
            table.holders.remove(&attempt.lock);
        }
        let (before, created, is_free) = {
            let state = attempt.state();
            (state.before.clone(), state.created, state.doubts == 0 && !state.name_is_taken)
        };
        before.iter().for_each(|before| table.unlink(before, attempt.id));
        if let Some((lease, number)) = attempt.named
            && is_free
        {
            table.slots.give_back(lease, &attempt.lock, number);
        }
        table.wake_behind(&attempt.key, created.saturating_add(1));
    }

    /// From now on the end of one of `before` is what `attempt` waits for.
    pub(crate) fn put_behind(&self, attempt: &Attempt, before: Vec<QueueKey>) {
        let mut table = self.table();
        let old = std::mem::replace(&mut attempt.state().before, before.clone());
        old.iter().for_each(|old| table.unlink(old, attempt.id));
        if table.has(attempt) {
            before.into_iter().for_each(|before| table.behind.entry(before).or_default().push(attempt.id));
        }
    }

    /// The one who waits in the queue of the same lock for the end of `mark`.
    pub(crate) fn next_after(&self, mark: &QueueKey, lock: &[u8]) -> Option<Arc<Attempt>> {
        let table = self.table();
        let mut waiters = table.behind.get(mark)?.iter().filter_map(|id| table.all.get(id));
        waiters.find(|waiter| waiter.lock == lock).cloned()
    }

    /// Whether `mark` is the key of an attempt of this client, whose end wakes who waits for it.
    pub(crate) fn is_own(&self, mark: &QueueKey) -> bool {
        self.owner_of(&mark.key).is_some_and(|attempt| attempt.state().created == mark.created)
    }

    /// Whether `mark` is just being deleted by this client: the answer says who is next.
    pub(crate) fn is_leaving(&self, mark: &QueueKey) -> bool {
        self.owner_of(&mark.key).is_some_and(|attempt| {
            let state = attempt.state();
            state.created == mark.created && matches!(state.phase, Phase::Leaving { .. })
        })
    }

    /// A key was deleted at `revision`: wakes who waits for that, and answers whose key it was.
    pub(crate) fn deleted(&self, key: &[u8], revision: i64) -> Option<Arc<Attempt>> {
        let mut table = self.table();
        table.wake_behind(key, revision);
        table.owner_of(key)
    }

    /// The key of `attempt` may be gone: wakes who waits for that.
    pub(crate) fn wake_behind(&self, attempt: &Attempt) {
        // A key that is given up was made before any revision to come.
        self.table().wake_behind(&attempt.key, i64::MAX);
    }

    /// `attempt` has the lock now. One of several who hold it is not the one that others wait for.
    pub(crate) fn set_holder(&self, attempt: &Attempt) {
        let mut table = self.table();
        if attempt.mode == Mode::Exclusive && table.has(attempt) {
            table.holders.insert(attempt.lock.clone(), attempt.id);
        }
    }

    /// Who has the lock at `lock`, if it is an attempt of this client.
    pub(crate) fn holder(&self, lock: &[u8]) -> Option<(QueueKey, Holder)> {
        let table = self.table();
        let attempt = table.all.get(table.holders.get(lock)?)?;
        let mark = attempt.mark()?;
        let token = FencingToken::new(mark.created.unsigned_abs());
        Some((mark, Holder::new(Some(attempt.state().record.clone()), Some(token))))
    }

    /// Whether the lock goes from one attempt of this client to the next, so that a release of it is about to be sent.
    pub(crate) fn is_passed_on(&self, lock: &[u8], now: Moment) -> bool {
        let table = self.table();
        let Some(holder) = table.holders.get(lock).and_then(|id| table.all.get(id)) else { return false };
        let state = holder.state();
        let mark = QueueKey { key: holder.key.clone(), created: state.created };
        state.first_at.is_some()
            && match state.phase {
                Phase::Waiting => true,
                Phase::Held(since) => now.since(since) < HASTE,
                // The next one's.
                Phase::Leaving { .. } => table.behind.contains_key(&mark),
                Phase::Gone => false,
            }
    }

    /// Those that have to be looked after now.
    pub(crate) fn due(&self, now: Moment) -> Vec<Arc<Attempt>> {
        let mut table = self.table();
        let mut due = Vec::new();
        while let Some((_, id)) = table.agenda.first().copied().filter(|(look, _)| *look <= now) {
            table.agenda.pop_first();
            // One that was removed in the meantime is not there any more.
            due.extend(table.all.get(&id).cloned());
        }
        due
    }

    /// Looks after an attempt again, if it is still there.
    pub(crate) fn look_again(&self, attempt: &Attempt, look: Moment) {
        let mut table = self.table();
        if table.has(attempt) {
            table.agenda.insert((look, attempt.id));
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Attempt>> {
        self.table().all.values().cloned().collect()
    }

    /// A lease is gone: no request can hang anything on it any more.
    pub(crate) fn forget_lease(&self, lease: i64) {
        self.table().slots.forget(lease);
    }

    /// The hold of the lock at `lock` that has this create revision.
    pub(crate) fn find(&self, lock: &[u8], created: i64) -> Option<Arc<Attempt>> {
        let table = self.table();
        table.all.values().find(|attempt| attempt.lock == lock && attempt.state().created == created).cloned()
    }

    /// Whose key it is.
    pub(crate) fn owner_of(&self, key: &[u8]) -> Option<Arc<Attempt>> {
        self.table().owner_of(key)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }
}

impl Table {
    fn insert(
        &mut self,
        claim: &Claim,
        place: Place,
        session: Arc<SharedLease>,
        keep_until: Moment,
        look: Moment,
    ) -> Arc<Attempt> {
        let known_start = session.term().start;
        let state = State {
            record: claim.record.clone(),
            session,
            next_leases: Vec::new(),
            phase: Phase::Waiting,
            created: place.created,
            deleted: 0,
            revision: 0,
            before: Vec::new(),
            holder: None,
            first_at: None,
            slot: None,
            doubts: 0,
            in_question: false,
            name_is_taken: false,
            known_start,
            keep_until,
            again: None,
        };
        let attempt = Arc::new(Attempt {
            id: claim.attempt,
            lock: place.lock,
            key: place.key,
            mode: place.mode,
            delay: claim.delay,
            named: place.named,
            turn: Notify::new(),
            making: Arc::default(),
            state: Mutex::new(state),
        });
        self.agenda.insert((look, attempt.id));
        if attempt.named.is_some() {
            self.by_key.insert(attempt.key.clone(), attempt.id);
        }
        self.all.insert(attempt.id, attempt.clone());
        attempt
    }

    /// Whether this very attempt is here: another may have taken its id, or its key, since it was forgotten.
    fn has(&self, attempt: &Attempt) -> bool {
        self.all.get(&attempt.id).is_some_and(|other| std::ptr::eq(&raw const **other, attempt))
    }

    fn owner_of(&self, key: &[u8]) -> Option<Arc<Attempt>> {
        self.all.get(self.by_key.get(key)?).cloned()
    }

    /// Wakes who waits for the end of a key of this name that was made before `revision`.
    fn wake_behind(&mut self, key: &[u8], revision: i64) {
        let made = |created| QueueKey { key: key.to_vec(), created };
        let ended: Vec<_> = self.behind.range(made(0)..made(revision)).map(|(mark, _)| mark.clone()).collect();
        for mark in ended {
            let waiters = self.behind.remove(&mark).unwrap_or_default();
            waiters.iter().filter_map(|id| self.all.get(id)).for_each(|next| next.turn.notify_one());
        }
    }

    fn unlink(&mut self, before: &QueueKey, id: AttemptId) {
        if let Some(waiters) = self.behind.get_mut(before) {
            waiters.retain(|other| *other != id);
            if waiters.is_empty() {
                self.behind.remove(before);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process};

    const LOCK: &[u8] = b"a/";

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_millis(ms))
    }

    /// An attempt whose key was made at `created`.
    fn made(attempts: &Attempts, created: i64) -> Arc<Attempt> {
        let ttl = Duration::from_secs(10);
        let record =
            Record::new(OwnerId::new("o").unwrap(), Process::current(), Some("test".into()), SystemTime::UNIX_EPOCH);
        let claim = Claim::new(Key::new("a").unwrap(), ttl, true, Arc::new(record));
        let session = Arc::new(SharedLease::new(7, 10, Term { start: at(0), ttl }, at(0)));
        let attempt = attempts.begin(&claim, LOCK.to_vec(), session, at(10_000), at(250));
        attempt.state().created = created;
        attempt
    }

    async fn is_woken(attempt: &Attempt) -> bool {
        tokio::time::timeout(Duration::ZERO, attempt.turn.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn one_that_a_watch_has_woken_is_woken_again_by_its_turn() {
        let attempts = Attempts::default();
        let (first, second) = (made(&attempts, 1), made(&attempts, 2));
        attempts.put_behind(&second, vec![first.mark().unwrap()]);
        attempts.deleted(&first.key, 3);
        assert!(is_woken(&second).await && !is_woken(&second).await);
        assert!(!second.set_first(1, 3), "that was another key");
        assert!(second.set_first(2, 3));
        assert!(is_woken(&second).await, "it would wait for nothing");
    }

    #[test]
    fn a_lock_is_passed_on_as_long_as_a_release_is_near() {
        let attempts = Attempts::default();
        let (first, second, third) = (made(&attempts, 1), made(&attempts, 2), made(&attempts, 3));
        let is_passed_on = |ms| attempts.is_passed_on(LOCK, at(ms));
        attempts.set_holder(&first);
        first.state().phase = Phase::Held(at(0));
        assert!(!is_passed_on(0), "nobody has handed it to the first");
        assert!(second.set_first(2, 4));
        attempts.set_holder(&second);
        assert!(is_passed_on(100), "it was handed on just now");
        second.state().phase = Phase::Held(at(100));
        assert!(is_passed_on(104) && !is_passed_on(105), "who holds it for longer may hold it for long");
        second.state().phase = Phase::Leaving { was_held: true };
        assert!(!is_passed_on(106), "nobody comes after it");
        attempts.put_behind(&third, vec![second.mark().unwrap()]);
        assert!(is_passed_on(106), "the next one will release it too");
    }
}
