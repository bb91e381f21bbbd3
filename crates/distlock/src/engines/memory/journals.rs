//! What has happened to the locks of a store: a ring for each.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::types::history::HistoryEntry;
use crate::types::key::Key;

/// How many locks have a history; of more, the one that was begun first is forgotten.
const MOST_LOCKS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Journals {
    rings: HashMap<Key, VecDeque<HistoryEntry>>,
    /// In the order in which they were begun.
    order: VecDeque<Key>,
}

impl Journals {
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
        if self.order.len() > MOST_LOCKS
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
