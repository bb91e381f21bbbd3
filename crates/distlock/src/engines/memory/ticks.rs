//! The notes of ticks beside a store's locks.

use std::collections::{BTreeMap, HashMap};

use crate::contract::LockTicks;
use crate::types::error::Result;
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote, check_count};

#[derive(Debug, Default)]
pub(super) struct TickTable(HashMap<Key, BTreeMap<Tick, TickNote>>);

impl TickTable {
    /// Stores a note, if it is stored already or `is_holder`. Returns whether it is stored.
    pub(super) fn note(&mut self, key: &Key, note: &TickNote, is_holder: bool, now_ms: u64) -> Result<bool> {
        self.forget(now_ms);
        let notes = self.0.get(key);
        let stored = notes.and_then(|notes| notes.get(&note.tick));
        if stored == Some(note) {
            return Ok(true);
        }
        if !is_holder || stored.is_some_and(|stored| !note.may_replace(stored)) {
            return Ok(false);
        }
        if stored.is_none() {
            check_count(notes.map_or(0, BTreeMap::len))?;
        }
        self.0.entry(key.clone()).or_default().insert(note.tick.clone(), note.clone());
        Ok(true)
    }

    /// Returns the notes of a lock, or that of one of its ticks.
    pub(super) fn find(&mut self, key: &Key, tick: Option<&Tick>, now_ms: u64) -> Vec<TickNote> {
        self.forget(now_ms);
        let notes = self.0.get(key).into_iter().flatten();
        notes.filter(|(of, _)| tick.is_none_or(|tick| tick == *of)).map(|(_, note)| note.clone()).collect()
    }

    /// Returns the notes of all locks whose names begin with `prefix`.
    pub(super) fn list(&mut self, prefix: &str, now_ms: u64) -> Vec<LockTicks> {
        self.forget(now_ms);
        let found = self.0.iter().filter(|(key, _)| key.as_str().starts_with(prefix));
        let mut all: Vec<_> =
            found.map(|(key, notes)| (key.clone(), notes.values().cloned().collect::<Vec<_>>())).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    fn forget(&mut self, now_ms: u64) {
        for notes in self.0.values_mut() {
            notes.retain(|_, note| note.forget_ms > now_ms);
        }
        self.0.retain(|_, notes| !notes.is_empty());
    }
}
