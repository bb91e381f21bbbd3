//! Keys that may be made by somebody else's request: on a lock that changes hands quickly, whoever joins its queue goes along
//! with the next release instead of asking by itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::failure::Failure;
use super::messages::PutRequest;
use super::queue::View;
use crate::token::AttemptId;

/// What became of a ride: the queue, or `None` when the key was there already.
pub(super) type Arrival = Result<Option<View>, Failure>;

/// A key that waits to be made.
#[derive(Debug)]
pub(super) struct Ride {
    pub(super) put: PutRequest,
    pub(super) tell: oneshot::Sender<Arrival>,
}

/// All of them, by lock; the first to come is the first to go.
#[derive(Debug, Default)]
pub(super) struct Rides(Mutex<Table>);

type Table = HashMap<Vec<u8>, VecDeque<(AttemptId, Ride)>>;

impl Rides {
    pub(super) fn offer(&self, lock: &[u8], id: AttemptId, put: PutRequest) -> oneshot::Receiver<Arrival> {
        let (tell, told) = oneshot::channel();
        self.table().entry(lock.to_vec()).or_default().push_back((id, Ride { put, tell }));
        told
    }

    /// One for a release of `lock` to take along. Never two: they would be made at the same revision, and have no order.
    pub(super) fn take(&self, lock: &[u8]) -> Option<Ride> {
        let mut table = self.table();
        let waiting = table.get_mut(lock)?;
        let (_, ride) = waiting.pop_front()?;
        if waiting.is_empty() {
            table.remove(lock);
        }
        Some(ride)
    }

    /// Nobody is to take it any more; `false` when somebody has.
    pub(super) fn withdraw(&self, lock: &[u8], id: AttemptId) -> bool {
        let mut table = self.table();
        let Some(waiting) = table.get_mut(lock) else { return false };
        let before = waiting.len();
        waiting.retain(|(other, _)| *other != id);
        let was_there = waiting.len() < before;
        if waiting.is_empty() {
            table.remove(lock);
        }
        was_there
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
