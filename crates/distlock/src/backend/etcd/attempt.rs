//! The attempts of this client: which key each has, what is known of its place, and how long it is to be kept.
//!
//! Many locks share a lease that lives as long as the process. So each attempt also has an end of its own: when the
//! core neither claims nor renews it again, its key is deleted as if it had had a lease for itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::session::Session;
use crate::clock::Moment;
use crate::owner::Holder;
use crate::token::AttemptId;

/// One attempt to take a lock, and the hold that it may have become.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: AttemptId,
    /// What all keys of the lock begin with.
    pub(super) lock: Vec<u8>,
    pub(super) key: Vec<u8>,
    /// Something changed for the one who waits.
    pub(super) turn: Notify,
    /// Held while the key is being made: it is deleted only when it is known whether it is there.
    pub(super) making: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

/// What is known of an attempt.
#[derive(Debug, Clone)]
pub(super) struct State {
    /// The lease that its key hangs on.
    pub(super) session: Arc<Session>,
    /// The lease that it is being moved to, and may hang on already.
    pub(super) next_session: Option<Arc<Session>>,
    pub(super) phase: Phase,
    /// The key's create revision, which is the fencing token; 0 as long as it is not known.
    pub(super) created: i64,
    /// Up to here the queue was read.
    pub(super) revision: i64,
    /// The key right before ours in the queue, as of that revision.
    pub(super) before: Option<Vec<u8>>,
    /// Who held the lock then, and the key of that hold.
    pub(super) holder: Option<(Vec<u8>, Holder)>,
    /// A request to make the key was never answered.
    pub(super) doubtful: bool,
    /// The start of the term that the core knows.
    pub(super) known_start: Moment,
    /// After that the key is deleted.
    pub(super) keep_until: Moment,
    /// When to delete a key again that a request on its way may still make, and when that began.
    pub(super) again: Option<(Moment, Moment)>,
}

/// Where an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not granted, as far as we know.
    Waiting,
    /// Granted at this moment.
    Held(Moment),
    /// Being given up. The flag says whether it was a hold.
    Leaving { was_held: bool },
    /// Its key is not there any more.
    Gone,
}

impl Attempt {
    pub(super) fn new(id: AttemptId, lock: Vec<u8>, key: Vec<u8>, session: Arc<Session>, keep_until: Moment) -> Self {
        let known_start = session.term().start;
        let state = State {
            session,
            next_session: None,
            phase: Phase::Waiting,
            created: 0,
            revision: 0,
            before: None,
            holder: None,
            doubtful: false,
            known_start,
            keep_until,
            again: None,
        };
        let making = Arc::default();
        Attempt { id, lock, key, turn: Notify::new(), making, state: Mutex::new(state) }
    }

    /// What is known now.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All attempts of a client.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    all: HashMap<AttemptId, Arc<Attempt>>,
    by_key: HashMap<Vec<u8>, AttemptId>,
    /// When to look after which.
    agenda: BTreeSet<(Moment, AttemptId)>,
    /// Who waits for the end of a key; the next in the queue, so there is only one.
    behind: HashMap<Vec<u8>, AttemptId>,
}

impl Attempts {
    pub(super) fn get(&self, id: AttemptId) -> Option<Arc<Attempt>> {
        self.table().all.get(&id).cloned()
    }

    /// Takes a new attempt in, to be looked after first at `look`.
    pub(super) fn insert(&self, attempt: &Arc<Attempt>, look: Moment) {
        let mut table = self.table();
        table.agenda.insert((look, attempt.id));
        table.by_key.insert(attempt.key.clone(), attempt.id);
        table.all.insert(attempt.id, attempt.clone());
    }

    /// Forgets an attempt, unless another has taken its id since.
    pub(super) fn remove(&self, attempt: &Attempt) {
        let mut table = self.table();
        if table.all.get(&attempt.id).is_some_and(|other| other.key == attempt.key) {
            table.all.remove(&attempt.id);
        }
        table.by_key.remove(&attempt.key);
        if let Some(before) = &attempt.state().before {
            table.unlink(before, attempt.id);
        }
    }

    /// From now on the end of `before` is what `attempt` waits for.
    pub(super) fn put_behind(&self, attempt: &Attempt, before: Option<Vec<u8>>) {
        let mut table = self.table();
        let mut state = attempt.state();
        if state.before == before {
            return;
        }
        if let Some(old) = &state.before {
            table.unlink(old, attempt.id);
        }
        if let Some(before) = &before {
            table.behind.insert(before.clone(), attempt.id);
        }
        state.before = before;
    }

    /// A key was deleted: wakes who waits for that, and answers whose key it was.
    pub(super) fn deleted(&self, key: &[u8]) -> Option<Arc<Attempt>> {
        let mut table = self.table();
        if let Some(next) = table.behind.remove(key)
            && let Some(next) = table.all.get(&next)
        {
            next.turn.notify_one();
        }
        let own = table.by_key.get(key)?;
        table.all.get(own).cloned()
    }

    /// Those that have to be looked after now.
    pub(super) fn due(&self, now: Moment) -> Vec<Arc<Attempt>> {
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
    pub(super) fn look_again(&self, attempt: &Attempt, look: Moment) {
        let mut table = self.table();
        if table.all.contains_key(&attempt.id) {
            table.agenda.insert((look, attempt.id));
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Attempt>> {
        self.table().all.values().cloned().collect()
    }

    /// The hold of the lock at `lock` that has this create revision.
    pub(super) fn find(&self, lock: &[u8], created: i64) -> Option<Arc<Attempt>> {
        let table = self.table();
        table.all.values().find(|attempt| attempt.lock == lock && attempt.state().created == created).cloned()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn unlink(&mut self, before: &[u8], id: AttemptId) {
        if self.behind.get(before) == Some(&id) {
            self.behind.remove(before);
        }
    }
}
