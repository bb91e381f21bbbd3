//! The histories of a store's locks: a ring of entries for each.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::types::history::HistoryEntry;
use crate::types::key::Key;

/// How many locks have a history. Beyond that, the history that was started first is dropped.
const MAX_LOCKS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Histories {
    rings: HashMap<Key, VecDeque<HistoryEntry>>,
    /// In the order in which the histories were started.
    order: VecDeque<Key>,
}

impl Histories {
    pub(super) fn add(&mut self, key: &Key, entry: HistoryEntry, most: usize) {
        let ring = match self.rings.entry(key.clone()) {
            Entry::Occupied(ring) => ring.into_mut(),
            Entry::Vacant(new) => {
                self.order.push_back(key.clone());
                new.insert(VecDeque::new())
            }
        };
        ring.push_back(entry);
        let over = ring.len().saturating_sub(most);
        ring.drain(..over);
        if self.order.len() > MAX_LOCKS
            && let Some(oldest) = self.order.pop_front()
        {
            self.rings.remove(&oldest);
        }
    }

    pub(super) fn last(&self, key: &Key, most: usize) -> Vec<HistoryEntry> {
        let Some(ring) = self.rings.get(key) else { return Vec::new() };
        ring.iter().skip(ring.len().saturating_sub(most)).cloned().collect()
    }
}
