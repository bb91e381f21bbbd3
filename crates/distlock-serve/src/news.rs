//! Tells event streams of what happens to their locks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock::{Event, EventKind, Key, Observer, OwnerId};

use crate::hold::Hold;

/// The holds with an open event stream, by lock and owner. It observes the locker of the daemon.
#[derive(Debug, Clone, Default)]
pub struct News(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    /// A re-entrant owner may have several holds of a lock.
    holds: HashMap<(Key, OwnerId), Vec<Arc<Hold>>>,
    /// The same holds; each is asked about in its turn.
    turns: Vec<Arc<Hold>>,
    next_turn: usize,
}

impl News {
    /// Adds a hold that has a stream now.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        let mut watched = self.watched();
        watched.holds.entry((hold.key.clone(), hold.owner.clone())).or_default().push(hold.clone());
        watched.turns.push(hold.clone());
    }

    /// Removes one stream of a hold.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        let mut watched = self.watched();
        let place = (hold.key.clone(), hold.owner.clone());
        if let Some(holds) = watched.holds.get_mut(&place) {
            remove_one(holds, hold);
            if holds.is_empty() {
                watched.holds.remove(&place);
            }
        }
        remove_one(&mut watched.turns, hold);
    }

    /// Returns the holds whose turn it is, at most `most`.
    pub(crate) fn turn(&self, most: usize) -> Vec<Arc<Hold>> {
        let mut watched = self.watched();
        let (count, next) = (watched.turns.len(), watched.next_turn);
        watched.next_turn = if count == 0 { 0 } else { (next + most.min(count)) % count };
        (0..most.min(count)).map(|at| watched.turns[(next + at) % count].clone()).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.watched().turns.len()
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove_one(holds: &mut Vec<Arc<Hold>>, hold: &Arc<Hold>) {
    if let Some(at) = holds.iter().position(|other| Arc::ptr_eq(other, hold)) {
        holds.swap_remove(at);
    }
}

impl Observer for News {
    fn on_event(&self, event: &Event<'_>) {
        if !matches!(event.kind, EventKind::Renewed { .. } | EventKind::RenewalFailed { .. } | EventKind::Lost { .. }) {
            return;
        }
        let watched = self.watched();
        if watched.holds.is_empty() {
            return;
        }
        for hold in watched.holds.get(&(event.key.clone(), event.owner.clone())).into_iter().flatten() {
            hold.news.notify_one();
        }
    }
}
