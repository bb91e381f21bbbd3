//! The data of a server.

use std::collections::BTreeMap;

/// Keys, their values, and when they expire.
#[derive(Debug, Default)]
pub(super) struct Store {
    keys: BTreeMap<Vec<u8>, Entry>,
}

#[derive(Debug)]
struct Entry {
    data: Data,
    /// In milliseconds of the server's clock.
    ends_ms: Option<u64>,
}

/// A value.
#[derive(Debug)]
pub(super) enum Data {
    Text(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Sorted(BTreeMap<Vec<u8>, f64>),
}

impl Data {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Data::Text(_) => "string",
            Data::Hash(_) => "hash",
            Data::Sorted(_) => "zset",
        }
    }

    /// Redis deletes a key whose value is empty.
    fn is_empty(&self) -> bool {
        match self {
            Data::Text(_) => false,
            Data::Hash(fields) => fields.is_empty(),
            Data::Sorted(members) => members.is_empty(),
        }
    }
}

impl Store {
    /// Deletes expired keys.
    pub(super) fn expire(&mut self, now_ms: u64) {
        self.keys.retain(|_, entry| entry.ends_ms.is_none_or(|ends| now_ms <= ends));
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Data> {
        self.keys.get(key).map(|entry| &entry.data)
    }

    /// Returns the value for changing, created by `empty` if there is none. The caller sweeps afterwards.
    pub(super) fn edit(&mut self, key: &[u8], empty: fn() -> Data) -> &mut Data {
        let entry = || Entry { data: empty(), ends_ms: None };
        &mut self.keys.entry(key.to_vec()).or_insert_with(entry).data
    }

    /// Deletes a key that has become empty.
    pub(super) fn sweep(&mut self, key: &[u8]) {
        if self.get(key).is_some_and(Data::is_empty) {
            self.keys.remove(key);
        }
    }

    pub(super) fn set(&mut self, key: &[u8], text: Vec<u8>, ends_ms: Option<u64>) {
        self.keys.insert(key.to_vec(), Entry { data: Data::Text(text), ends_ms });
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        self.keys.remove(key).is_some()
    }

    /// Returns when a key expires: `None` if there is no such key, `Some(None)` if it never expires.
    pub(super) fn ends(&self, key: &[u8]) -> Option<Option<u64>> {
        self.keys.get(key).map(|entry| entry.ends_ms)
    }

    pub(super) fn set_end(&mut self, key: &[u8], ends_ms: u64) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.ends_ms = Some(ends_ms);
        }
    }

    /// Returns the names of all keys that exist after `moment_ms`.
    pub(super) fn after(&self, moment_ms: u64) -> Vec<String> {
        let lasts = |entry: &Entry| entry.ends_ms.is_none_or(|ends| ends > moment_ms);
        let names = self.keys.iter().filter(|(_, entry)| lasts(entry));
        names.map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }
}
