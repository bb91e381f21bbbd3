//! The entries of one owner: what this client knows of each, as rules.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::WATCH_AFTER;
use super::phase::{Leaving, Phase};
use crate::contract::{Claim, Term};
use crate::engines::etcd::protocol::names::Names;
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::shared_lease::SharedLease;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::AttemptId;

/// How long deleting an entry that is over is tried.
const DELETE_FOR: Duration = Duration::from_secs(60);

/// One entry.
#[derive(Debug)]
pub(crate) struct Entry {
    id: AttemptId,
    lock: Vec<u8>,
    key: Vec<u8>,
    head: QueueKey,
    /// The lease of this process, which the entry hangs on.
    own: Arc<SharedLease>,
    /// The lease of the head.
    shared: Arc<SharedLease>,
    /// The lease that was asked for when it entered.
    length: Duration,
    delay: Duration,
    making: tokio::sync::Mutex<()>,
    state: Mutex<EntryState>,
}

/// What this client knows of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryState {
    phase: Phase,
    /// Both keys were there at this revision.
    revision: i64,
    /// The start of the terms that the core knows: of the entry's own lease, and of the head's.
    known: (Moment, Moment),
    /// After this moment the key is deleted.
    keep_until: Moment,
    /// A request to make the key was not answered.
    in_doubt: bool,
}

/// What to do about an entry that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryLost {
    /// Nothing: it is being given up already.
    Nothing,
    /// Delete it; tell the holder if there is one.
    Delete { tell: bool },
}

/// What a deletion that a watch saw means to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryDeletion {
    Nothing,
    /// Its own key was deleted: another attempt took it over.
    TakenOver,
    /// The head was deleted before the entry was granted.
    HeadGone,
    /// The head was deleted: find out whether it was broken by force.
    FindReason,
}

/// What housekeeping has to do for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryChore {
    /// Nothing: it is being given up.
    Rest,
    /// Its keys are gone with their leases: forget it.
    Forget,
    /// The core has not asked for it again: its release was not answered, or is not to come.
    Delete,
    /// Keep its leases.
    Keep,
    /// Keep its leases and watch its keys, which were there at this revision.
    Watch { revision: i64 },
}

impl EntryState {
    fn new(known: (Moment, Moment), keep_until: Moment) -> Self {
        EntryState { phase: Phase::Waiting, revision: 0, known, keep_until, in_doubt: false }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.phase.is_leaving()
    }

    /// Returns the starts of the terms that its holder knows; `None` when it is no hold.
    pub(crate) fn known_terms(&self) -> Option<(Moment, Moment)> {
        self.phase.is_held().then_some(self.known)
    }

    /// Both keys were there at `revision`, where this entry was made.
    pub(crate) fn made(&mut self, revision: i64) {
        self.revision = revision;
    }

    /// Both keys were found at `revision`.
    pub(crate) fn found(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    /// A request to make the key was not answered.
    pub(crate) fn unanswered(&mut self) {
        self.in_doubt = true;
    }

    /// It is inside, with leases that began at `known`, until `end`. Returns false when it was given up.
    fn granted(&mut self, known: (Moment, Moment), end: Moment, now: Moment) -> bool {
        match self.phase {
            Phase::Waiting => self.phase = Phase::Held(now),
            Phase::Held(_) => {}
            Phase::Leaving { .. } | Phase::Gone => return false,
        }
        self.known = known;
        self.keep_until = self.keep_until.max(end);
        true
    }

    /// A release begins. Returns with it whether an unanswered request may still make the key.
    pub(crate) fn leave(&mut self) -> (Leaving, bool) {
        (self.phase.leave(), self.in_doubt)
    }

    /// Its key, its head or one of their leases is gone.
    pub(crate) fn lost(&mut self) -> EntryLost {
        let tell = self.phase.is_held();
        match self.phase.is_leaving() {
            true => EntryLost::Nothing,
            false => {
                self.phase = Phase::Leaving { was_held: false };
                EntryLost::Delete { tell }
            }
        }
    }

    /// Housekeeping looks after it.
    pub(crate) fn due(&self, now: Moment) -> EntryChore {
        match self.phase {
            Phase::Leaving { .. } if now < self.keep_until => EntryChore::Rest,
            _ if now >= self.keep_until.after(DELETE_FOR) => EntryChore::Forget,
            _ if now >= self.keep_until => EntryChore::Delete,
            Phase::Held(since) if now.since(since) >= WATCH_AFTER => EntryChore::Watch { revision: self.revision },
            _ => EntryChore::Keep,
        }
    }
}

impl Entry {
    pub(crate) fn id(&self) -> AttemptId {
        self.id
    }

    pub(crate) fn lock(&self) -> &[u8] {
        &self.lock
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn head(&self) -> &QueueKey {
        &self.head
    }

    /// Returns the lease of this process, which the entry hangs on.
    pub(crate) fn own(&self) -> &Arc<SharedLease> {
        &self.own
    }

    /// Returns the lease of the head, which all entries keep alive.
    pub(crate) fn shared(&self) -> &Arc<SharedLease> {
        &self.shared
    }

    /// Returns what the keys of all entries below the same head begin with.
    pub(crate) fn area(&self) -> Vec<u8> {
        Names::inside(&self.lock, self.head.created)
    }

    /// Returns the mutex that is locked while the key is being made or deleted. A key is deleted only when it is known
    /// whether it is there.
    pub(crate) fn making(&self) -> &tokio::sync::Mutex<()> {
        &self.making
    }

    /// Returns what is known of it, for one event.
    pub(crate) fn state(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock()
    }

    /// Returns whether it may be inside: neither lost nor given up, with both leases there.
    pub(crate) fn is_good(&self) -> bool {
        let is_given_up = self.state().is_leaving();
        !is_given_up && !self.own.is_gone() && !self.shared.is_gone()
    }

    /// It is inside. Returns the term that its holder can count on: of the lease that ends first. `None` when it was
    /// given up.
    pub(crate) fn granted(&self, now: Moment) -> Option<Term> {
        let (own, shared) = (self.own.term(), self.shared.term());
        let end = |term: Term| term.start.after(term.ttl);
        let term = if end(own) <= end(shared) { own } else { shared };
        let counted = Term { ttl: term.ttl.saturating_sub(self.delay), ..term };
        let known = (own.start, shared.start);
        self.state().granted(known, end(counted).after(self.delay), now).then_some(counted)
    }

    /// Refuses a longer lease than it has entered with. The head cannot be moved to a longer one: the other entries
    /// keep alive the lease that it hangs on.
    pub(crate) fn check_length(&self, lease: Duration) -> Result<()> {
        if lease <= self.length || (self.own.covers(lease) && self.shared.covers(lease)) {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unsupported, "on etcd the lease of a re-entrant lock cannot be made longer");
        Err(error.with_help("ask for the longer ttl when you take it"))
    }

    /// A watch saw at `revision` that `key` was deleted.
    fn saw_deletion(&self, key: &[u8], revision: i64) -> EntryDeletion {
        let state = *self.state();
        let head_is_gone = self.head.key == key && self.head.created < revision;
        match () {
            () if state.phase.is_leaving() => EntryDeletion::Nothing,
            () if self.key == key && state.revision < revision => EntryDeletion::TakenOver,
            // No holder counts on it yet, and none may from now on.
            () if head_is_gone && state.phase == Phase::Waiting => EntryDeletion::HeadGone,
            () if head_is_gone => EntryDeletion::FindReason,
            () => EntryDeletion::Nothing,
        }
    }
}

/// All entries of a client, and the claims that stand in the queue for those that are not inside yet.
#[derive(Debug, Default)]
pub(crate) struct Entries(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    inside: HashMap<AttemptId, Arc<Entry>>,
    candidates: HashMap<AttemptId, Claim>,
}

impl Table {
    /// Whether this very entry is here: another may have come with its id since it was forgotten.
    fn has(&self, entry: &Entry) -> bool {
        self.inside.get(&entry.id).is_some_and(|other| std::ptr::eq(&raw const **other, entry))
    }
}

impl Entries {
    /// Takes an entry in that is to be made below `head`.
    pub(crate) fn begin(
        &self,
        claim: &Claim,
        lock: &[u8],
        head: QueueKey,
        (own, shared): (Arc<SharedLease>, Arc<SharedLease>),
        now: Moment,
    ) -> Arc<Entry> {
        let key = [Names::inside(lock, head.created), claim.attempt.to_string().into_bytes()].concat();
        let state = EntryState::new((own.term().start, shared.term().start), now.after(claim.lease()));
        let entry = Arc::new(Entry {
            id: claim.attempt,
            lock: lock.to_vec(),
            key,
            head,
            own,
            shared,
            length: claim.lease(),
            delay: claim.delay,
            making: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
        });
        self.table().inside.insert(claim.attempt, entry.clone());
        entry
    }

    pub(crate) fn get(&self, id: AttemptId) -> Option<Arc<Entry>> {
        self.table().inside.get(&id).cloned()
    }

    /// Returns whether this very entry is here, and was not forgotten.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.table().has(entry)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.table().inside.values().cloned().collect()
    }

    pub(crate) fn remove(&self, entry: &Entry) {
        let mut table = self.table();
        if table.has(entry) {
            table.inside.remove(&entry.id);
        }
    }

    /// Returns the claim that stands in the queue for `claim`, a new one if there is none.
    pub(crate) fn candidate(&self, claim: &Claim) -> Claim {
        let fresh = || Claim { attempt: AttemptId::random(), ..claim.clone() };
        self.table().candidates.entry(claim.attempt).or_insert_with(fresh).clone()
    }

    /// Returns the claim that stands in the queue for the attempt `id`.
    pub(crate) fn candidate_of(&self, id: AttemptId) -> Option<Claim> {
        self.table().candidates.get(&id).cloned()
    }

    /// The attempt `id` needs no place in the queue any more. Returns the claim that stood there for it.
    pub(crate) fn withdraw(&self, id: AttemptId) -> Option<Claim> {
        self.table().candidates.remove(&id)
    }

    /// Returns the entry whose head has this create revision.
    pub(crate) fn find(&self, lock: &[u8], created: i64) -> Option<Arc<Entry>> {
        self.table().inside.values().find(|entry| entry.lock == lock && entry.head.created == created).cloned()
    }

    /// Returns whether an entry that is not given up hangs on `lease`, or its head does.
    pub(crate) fn need(&self, lease: i64) -> bool {
        self.table().inside.values().any(|entry| {
            let is_given_up = entry.state().is_leaving();
            !is_given_up && [&entry.own, &entry.shared].iter().any(|other| other.id == lease)
        })
    }

    /// A watch saw at `revision` that `key` was deleted: returns what that means to which entries.
    pub(crate) fn saw_deletion(&self, key: &[u8], revision: i64) -> Vec<(Arc<Entry>, EntryDeletion)> {
        let meaning = |entry: Arc<Entry>| {
            let meaning = entry.saw_deletion(key, revision);
            (meaning != EntryDeletion::Nothing).then_some((entry, meaning))
        };
        self.all().into_iter().filter_map(meaning).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }
}
