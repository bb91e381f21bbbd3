//! The attempts of this client: which key each has, what is known of its place, and how long it is to be kept.
//!
//! Many locks share a lease that lives as long as the process. So each attempt also has an end of its own: when the
//! core neither claims nor renews it again, its key is deleted as if it had had a lease for itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::attempt::{AttemptState, LeaseHandle};
use super::effect::LeaseGone;
use super::key_numbers::KeyNumbers;
use crate::contract::{Claim, Term};
use crate::engines::etcd::protocol::names::Names;
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::shared_lease::SharedLease;
use crate::types::clock::Moment;
use crate::types::mode::{AskedMode, Mode};
use crate::types::owner::{Holder, Record};
use crate::types::sync::atomic::{AtomicU64, Ordering};
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::{AttemptId, FencingToken};

/// How many keys that this client has deleted are remembered, for claims that were sent before and are answered after.
const REMEMBERED: usize = 256;

/// One attempt to take a lock, and the hold that it may have become.
#[derive(Debug)]
pub(crate) struct Attempt {
    id: AttemptId,
    /// What all keys of the lock begin with.
    lock: Vec<u8>,
    key: Vec<u8>,
    asked: AskedMode,
    /// How much longer the lease is than its holder counts on.
    delay: Duration,
    /// The lease that names the key, and the number behind it; `None`: another client has named it.
    named: Option<(i64, u32)>,
    turn: Notify,
    making: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<AttemptState<Arc<SharedLease>>>,
    shown: Mutex<Shown>,
    /// When housekeeping looks after it, in nanoseconds; changed with the table locked.
    next_look: AtomicU64,
}

/// What others are told about an attempt, and it about them.
#[derive(Debug)]
struct Shown {
    record: Arc<Record>,
    /// The holder of the lock when the queue was read last, and the key of that hold.
    holder: Option<(QueueKey, Holder)>,
}

impl LeaseHandle for Arc<SharedLease> {
    fn id(&self) -> i64 {
        self.id
    }
}

impl Attempt {
    pub(crate) fn id(&self) -> AttemptId {
        self.id
    }

    /// Returns what all keys of the lock begin with.
    pub(crate) fn lock(&self) -> &[u8] {
        &self.lock
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn mode(&self) -> Mode {
        self.asked.mode
    }

    pub(crate) fn asked(&self) -> AskedMode {
        self.asked
    }

    /// Returns the notification that something has changed for its waiter.
    pub(crate) fn turn(&self) -> &Notify {
        &self.turn
    }

    /// Returns the mutex that is locked while the key is being made, moved or deleted. A key is deleted only when it is
    /// known whether it is there.
    pub(crate) fn making(&self) -> &Arc<tokio::sync::Mutex<()>> {
        &self.making
    }

    /// Returns what is known of it, for one event.
    pub(crate) fn state(&self) -> MutexGuard<'_, AttemptState<Arc<SharedLease>>> {
        self.state.lock()
    }

    /// Returns the lease that its key hangs on.
    pub(crate) fn lease(&self) -> Arc<SharedLease> {
        self.state().lease().clone()
    }

    /// Returns its key as it was made; `None` while the create revision is not known.
    pub(crate) fn own_key(&self) -> Option<QueueKey> {
        let created = self.state().created();
        (created != 0).then(|| self.key_made_at(created))
    }

    pub(crate) fn key_made_at(&self, created: i64) -> QueueKey {
        QueueKey { key: self.key.clone(), created }
    }

    fn next_look(&self) -> Moment {
        Moment::from_nanos(self.next_look.load(Ordering::Relaxed))
    }

    fn set_next_look(&self, look: Moment) {
        self.next_look.store(look.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the part of a lease that its holder counts on.
    pub(crate) fn term_of(&self, term: Term) -> Term {
        Term { ttl: term.ttl.saturating_sub(self.delay), ..term }
    }

    /// Returns the holder when the queue was read last.
    pub(crate) fn holder_seen(&self) -> Option<(QueueKey, Holder)> {
        self.shown.lock().holder.clone()
    }

    /// The queue was read, and showed this holder.
    pub(crate) fn saw_holder(&self, holder: Option<(QueueKey, Holder)>) {
        self.shown.lock().holder = holder;
    }

    /// Another record was written about it.
    pub(crate) fn amended(&self, record: Arc<Record>) {
        self.shown.lock().record = record;
    }

    /// The reply to the predecessor's release showed its key first: wakes its waiter. Returns whether it waits with
    /// that key.
    pub(crate) fn handed_over(&self, created: i64, revision: i64) -> bool {
        let waits = self.state().handed_over(created, revision);
        if waits {
            // A waiter that a watch has woken before waits for no key any more, and nothing else wakes it.
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
    asked: AskedMode,
    named: Option<(i64, u32)>,
}

/// All attempts of a client.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    all: HashMap<AttemptId, Arc<Attempt>, BuildHasherDefault<OwnBits>>,
    by_key: HashMap<Vec<u8>, AttemptId>,
    by_lock: HashMap<Vec<u8>, OfLock>,
    /// The keys that this client has deleted last.
    left: VecDeque<QueueKey>,
    /// The holds that last for a while.
    long_holds: HashSet<AttemptId, BuildHasherDefault<OwnBits>>,
    numbers: KeyNumbers,
    /// When to look after which. An entry that is not the attempt's own [`next_look`](Attempt::next_look) is void.
    agenda: BTreeSet<(Moment, AttemptId)>,
    /// The waiters for the end of a key: the next in the queue. Names that nest have one for each queue that it is in.
    behind: BTreeMap<QueueKey, Vec<AttemptId>>,
}

/// What this client has to do with one lock.
#[derive(Debug, Default)]
struct OfLock {
    /// How many attempts it has.
    attempts: usize,
    /// The last attempt of this client that got the lock for itself alone, until it has left.
    holder: Option<AttemptId>,
}

/// Hashes attempt ids, which are random and this client's own: their bits are their hash.
#[derive(Debug, Default)]
struct OwnBits(u64);

impl Hasher for OwnBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks_exact(size_of::<u64>()) {
            self.0 ^= word.try_into().map_or(0, u64::from_ne_bytes);
        }
    }
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
        lease: Arc<SharedLease>,
        keep_until: Moment,
        look: Moment,
    ) -> Arc<Attempt> {
        let mut table = self.table();
        let number = table.numbers.take(lease.id, &lock);
        let named = Some((lease.id, number));
        let asked = claim.asked();
        let key = Names::place(&lock, lease.id, number, asked);
        let place = Place { lock, key, created: 0, asked, named };
        table.insert(claim, place, lease, keep_until, look)
    }

    /// Takes an attempt in that is to take over the hold with this key, which is [given](Attempts::give) to it when it
    /// has.
    pub(crate) fn take_in(
        &self,
        claim: &Claim,
        (lock, QueueKey { key, created }): (Vec<u8>, QueueKey),
        lease: Arc<SharedLease>,
        keep_until: Moment,
        look: Moment,
    ) -> Arc<Attempt> {
        let asked = Names::asked(&lock, &key);
        let place = Place { lock, key, created, asked, named: None };
        self.table().insert(claim, place, lease, keep_until, look)
    }
    /// The key that `attempt` has taken over is its own now.
    pub(crate) fn give(&self, attempt: &Attempt) {
        let mut table = self.table();
        if table.has(attempt) {
            table.by_key.insert(attempt.key.clone(), attempt.id);
        }
    }

    /// Forgets an attempt, and wakes the waiters for its end.
    pub(crate) fn remove(&self, attempt: &Attempt) {
        let mut table = self.table();
        if !table.has(attempt) {
            return;
        }
        table.all.remove(&attempt.id);
        table.count_out(attempt);
        table.long_holds.remove(&attempt.id);
        if table.by_key.get(&attempt.key) == Some(&attempt.id) {
            table.by_key.remove(&attempt.key);
        }
        let (before, created, is_free) = {
            let state = attempt.state();
            (state.before().to_vec(), state.created(), state.frees_name())
        };
        before.iter().for_each(|before| table.unlink(before, attempt.id));
        if let Some((lease, number)) = attempt.named
            && is_free
        {
            table.numbers.give_back(lease, &attempt.lock, number);
        }
        table.wake_behind(&attempt.key, created.saturating_add(1));
    }

    /// From now on the end of one of `before` is what `attempt` waits for.
    pub(crate) fn put_behind(&self, attempt: &Attempt, before: Vec<QueueKey>) {
        let mut table = self.table();
        let old = attempt.state().put_behind(before.clone());
        old.iter().for_each(|old| table.unlink(old, attempt.id));
        if table.has(attempt) {
            before.into_iter().for_each(|before| table.behind.entry(before).or_default().push(attempt.id));
        }
    }

    /// Returns the waiter in the queue of the same lock for the end of `awaited`.
    pub(crate) fn next_after(&self, awaited: &QueueKey, lock: &[u8]) -> Option<Arc<Attempt>> {
        let table = self.table();
        let mut waiters = table.behind.get(awaited)?.iter().filter_map(|id| table.all.get(id));
        waiters.find(|waiter| waiter.lock == lock).cloned()
    }

    /// Returns whether `awaited` is the key of an attempt of this client, whose end wakes its waiters.
    pub(crate) fn is_own(&self, awaited: &QueueKey) -> bool {
        self.owner_of(&awaited.key).is_some_and(|attempt| attempt.state().created() == awaited.created)
    }

    /// Returns whether this client is just deleting `awaited`: the reply shows the next key.
    pub(crate) fn is_leaving(&self, awaited: &QueueKey) -> bool {
        self.owner_of(&awaited.key).is_some_and(|attempt| {
            let state = attempt.state();
            state.created() == awaited.created && state.is_leaving()
        })
    }

    /// Returns whether this client has more attempts for the lock of `attempt`.
    pub(crate) fn has_company(&self, attempt: &Attempt) -> bool {
        self.table().by_lock.get(&attempt.lock).is_some_and(|lock| lock.attempts > 1)
    }

    /// The hold of `attempt` lasts for a while. Returns how many do.
    pub(crate) fn count_long_hold(&self, attempt: &Attempt) -> usize {
        let mut table = self.table();
        if table.has(attempt) {
            table.long_holds.insert(attempt.id);
        }
        table.long_holds.len()
    }

    /// This client has deleted `key`.
    pub(crate) fn remember_left(&self, key: QueueKey) {
        let mut table = self.table();
        if table.left.len() == REMEMBERED {
            table.left.pop_front();
        }
        table.left.push_back(key);
    }

    /// Returns whether this client has deleted `awaited` a moment ago.
    pub(crate) fn has_left(&self, awaited: &QueueKey) -> bool {
        self.table().left.contains(awaited)
    }

    /// A key was deleted at `revision`: wakes its waiters, and returns the attempt whose key it was. The waiters behind a
    /// key that this client is deleting are woken again by the reply to that.
    pub(crate) fn deleted(&self, key: &[u8], revision: i64) -> Option<Arc<Attempt>> {
        let mut table = self.table();
        let owner = table.owner_of(key);
        let is_leaving = owner.as_ref().is_some_and(|owner| {
            let state = owner.state();
            state.is_leaving() && state.created() < revision
        });
        match is_leaving {
            true => table.notify_behind(key, revision),
            false => table.wake_behind(key, revision),
        }
        owner
    }

    /// The key of `attempt` may be gone: wakes its waiters.
    pub(crate) fn wake_behind(&self, attempt: &Attempt) {
        // A key that is given up was made before any revision to come.
        self.table().wake_behind(&attempt.key, i64::MAX);
    }

    /// `attempt` has the lock now. Waiters do not wait for one of several holders.
    pub(crate) fn set_holder(&self, attempt: &Attempt) {
        let mut table = self.table();
        if attempt.mode() == Mode::Exclusive
            && table.has(attempt)
            && let Some(lock) = table.by_lock.get_mut(&attempt.lock)
        {
            lock.holder = Some(attempt.id);
        }
    }

    /// Returns the holder of the lock at `lock`, if it is an attempt of this client.
    pub(crate) fn holder(&self, lock: &[u8]) -> Option<(QueueKey, Holder)> {
        let table = self.table();
        let attempt = table.holder_of(lock)?;
        let own = attempt.own_key()?;
        let token = FencingToken::new(own.created.unsigned_abs());
        Some((own, Holder::new(Some(attempt.shown.lock().record.clone()), Some(token))))
    }

    /// Whether the lock goes from one attempt of this client to the next, so that a release of it is about to be sent.
    pub(crate) fn is_passed_on(&self, lock: &[u8], now: Moment) -> bool {
        let table = self.table();
        let Some(holder) = table.holder_of(lock) else { return false };
        let state = holder.state();
        let has_next = table.behind.contains_key(&holder.key_made_at(state.created()));
        state.is_released_soon(now, has_next)
    }

    /// Those that have to be looked after now.
    pub(crate) fn due(&self, now: Moment) -> Vec<Arc<Attempt>> {
        let mut table = self.table();
        let mut due = Vec::new();
        while let Some((look, id)) = table.agenda.first().copied().filter(|(look, _)| *look <= now) {
            table.agenda.pop_first();
            // One that was removed in the meantime is not there any more.
            let attempt = table.all.get(&id).filter(|attempt| attempt.next_look() == look);
            due.extend(attempt.inspect(|attempt| attempt.set_next_look(Moment::NEVER)).cloned());
        }
        due
    }

    /// Looks after an attempt again, if it is still there: at the moment `look`, or before if that is planned.
    pub(crate) fn look_again(&self, attempt: &Attempt, look: Moment) {
        let mut table = self.table();
        if table.has(attempt) && look < attempt.next_look() {
            table.look_at(attempt, look);
        }
    }

    /// Looks after all attempts within `time` from now on.
    pub(crate) fn look_at_all(&self, now: Moment, time: Duration) {
        let mut table = self.table();
        table.agenda.clear();
        let all: Vec<_> = table.all.values().cloned().collect();
        let step = time / u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
        for (place, attempt) in (0..).zip(&all) {
            table.look_at(attempt, now.after(step * place));
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Attempt>> {
        self.table().all.values().cloned().collect()
    }

    /// A lease is gone: returns what to do about the attempts whose keys may have hung on it.
    pub(crate) fn lease_gone(&self, lease: i64, now: Moment) -> Vec<(Arc<Attempt>, LeaseGone)> {
        let touched = |attempt: Arc<Attempt>| {
            let what = attempt.state().lease_gone(lease, now);
            (what != LeaseGone::Untouched).then_some((attempt, what))
        };
        self.all().into_iter().filter_map(touched).collect()
    }

    /// No request can hang a key on a lease that is gone.
    pub(crate) fn forget_lease(&self, lease: i64) {
        self.table().numbers.forget(lease);
    }

    /// Returns whether a key that is not given up hangs on `lease`, or will.
    pub(crate) fn need(&self, lease: i64) -> bool {
        self.all().iter().any(|attempt| attempt.state().needs(lease))
    }

    /// Returns the leases that holds may hang on.
    pub(crate) fn leases_of_holds(&self) -> Vec<i64> {
        let leases = |attempt: Arc<Attempt>| {
            let state = attempt.state();
            state.leases().filter(|_| state.is_held()).map(|lease| lease.id).collect::<Vec<_>>()
        };
        self.all().into_iter().flat_map(leases).collect()
    }

    /// The hold of the lock at `lock` that has this create revision.
    pub(crate) fn find(&self, lock: &[u8], created: i64) -> Option<Arc<Attempt>> {
        let table = self.table();
        table.all.values().find(|attempt| attempt.lock == lock && attempt.state().created() == created).cloned()
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
        lease: Arc<SharedLease>,
        keep_until: Moment,
        look: Moment,
    ) -> Arc<Attempt> {
        let known_start = lease.term().start;
        let state = AttemptState::new(lease, place.created, known_start, keep_until);
        let attempt = Arc::new(Attempt {
            id: claim.attempt,
            lock: place.lock,
            key: place.key,
            asked: place.asked,
            delay: claim.delay,
            named: place.named,
            turn: Notify::new(),
            making: Arc::default(),
            state: Mutex::new(state),
            shown: Mutex::new(Shown { record: claim.record.clone(), holder: None }),
            next_look: AtomicU64::default(),
        });
        self.look_at(&attempt, look);
        match self.by_lock.get_mut(&attempt.lock) {
            Some(lock) => lock.attempts += 1,
            None => drop(self.by_lock.insert(attempt.lock.clone(), OfLock { attempts: 1, holder: None })),
        }
        if attempt.named.is_some() {
            self.by_key.insert(attempt.key.clone(), attempt.id);
        }
        if let Some(old) = self.all.insert(attempt.id, attempt.clone()) {
            self.count_out(&old);
        }
        attempt
    }

    fn look_at(&mut self, attempt: &Attempt, look: Moment) {
        attempt.set_next_look(look);
        self.agenda.insert((look, attempt.id));
    }

    /// `attempt` is forgotten.
    fn count_out(&mut self, attempt: &Attempt) {
        if let Some(lock) = self.by_lock.get_mut(&attempt.lock) {
            lock.attempts -= 1;
            lock.holder = lock.holder.filter(|holder| *holder != attempt.id);
            if lock.attempts == 0 {
                self.by_lock.remove(&attempt.lock);
            }
        }
    }

    fn holder_of(&self, lock: &[u8]) -> Option<&Arc<Attempt>> {
        self.all.get(&self.by_lock.get(lock)?.holder?)
    }

    /// Whether this very attempt is here: another may have taken its id, or its key, since it was forgotten.
    fn has(&self, attempt: &Attempt) -> bool {
        self.all.get(&attempt.id).is_some_and(|other| std::ptr::eq(&raw const **other, attempt))
    }

    fn owner_of(&self, key: &[u8]) -> Option<Arc<Attempt>> {
        self.all.get(self.by_key.get(key)?).cloned()
    }

    /// Wakes the waiters for the end of a key of this name that was made before `revision`.
    fn wake_behind(&mut self, key: &[u8], revision: i64) {
        if self.behind.is_empty() {
            return;
        }
        self.notify_behind(key, revision);
        let made = |created| QueueKey { key: key.to_vec(), created };
        let ended: Vec<_> = self.behind.range(made(0)..made(revision)).map(|(awaited, _)| awaited.clone()).collect();
        for awaited in ended {
            self.behind.remove(&awaited);
        }
    }

    /// The same, and keeps them: they are woken again.
    fn notify_behind(&self, key: &[u8], revision: i64) {
        let made = |created| QueueKey { key: key.to_vec(), created };
        let waiters = self.behind.range(made(0)..made(revision)).flat_map(|(_, waiters)| waiters);
        waiters.filter_map(|id| self.all.get(id)).for_each(|next| next.turn.notify_one());
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
mod tests;
