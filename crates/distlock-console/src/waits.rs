//! The wait-for graph: owners that hold one lock and wait for another, and deadlocks among them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::lock::Who;
use crate::locks::Locks;

/// How many waits are shown: deadlocks first.
const MAX_WAITS: usize = 40;

/// The wait-for graph.
#[derive(Debug, Serialize)]
pub(crate) struct Waits<'a> {
    parties: Vec<Party<'a>>,
    edges: Vec<Edge<'a>>,
    /// How many more waits there are.
    left_off: usize,
}

/// An owner.
#[derive(Debug, Serialize)]
struct Party<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    holds: BTreeSet<&'a str>,
}

/// `from` waits for `lock`, which `to` holds; both are indexes into the parties.
#[derive(Debug, Serialize)]
struct Edge<'a> {
    from: usize,
    to: usize,
    lock: &'a str,
    /// A deadlock: the wait is part of a cycle, or between two cycles.
    is_stuck: bool,
}

/// A waiting owner, the lock, and the owner that holds it.
type Wait<'a> = (&'a str, &'a str, &'a str);

impl<'a> Waits<'a> {
    pub(crate) fn of(locks: &'a Locks) -> Waits<'a> {
        let mut parties: BTreeMap<&str, Party<'a>> = BTreeMap::new();
        for lock in locks.iter() {
            for record in lock.holds.iter().filter_map(|hold| hold.record.as_deref()) {
                let new = || Party { who: Who::from(record), holds: BTreeSet::new() };
                parties.entry(record.owner.as_str()).or_insert_with(new).holds.insert(lock.key.as_str());
            }
        }
        let mut waits: Vec<(Wait<'a>, bool)> = all(locks, &parties).into_iter().map(|wait| (wait, false)).collect();
        let deadlocked = deadlocked(waits.iter().map(|(wait, _)| *wait).collect());
        waits.iter_mut().for_each(|(wait, is_stuck)| *is_stuck = deadlocked.contains(wait));
        waits.sort_by_key(|(wait, is_stuck)| (!is_stuck, *wait));
        let left_off = waits.len().saturating_sub(MAX_WAITS);
        waits.truncate(MAX_WAITS);
        let owners: BTreeSet<&str> = waits.iter().flat_map(|((from, _, to), _)| [*from, *to]).collect();
        parties.retain(|owner, _| owners.contains(owner));
        let place = |owner: &str| owners.iter().position(|other| *other == owner).unwrap_or_default();
        let edge = |((from, lock, to), is_stuck)| Edge { from: place(from), to: place(to), lock, is_stuck };
        let edges = waits.into_iter().map(edge).collect();
        Waits { parties: parties.into_values().collect(), edges, left_off }
    }
}

/// Returns all waits of owners that hold a lock. An owner without a lock blocks no other.
fn all<'a>(locks: &'a Locks, parties: &BTreeMap<&str, Party<'a>>) -> BTreeSet<Wait<'a>> {
    let mut waits = BTreeSet::new();
    for lock in locks.iter() {
        let waiting = lock.waiters.iter().map(|waiter| waiter.owner.as_str());
        for from in waiting.filter(|owner| parties.contains_key(owner)) {
            let holders = lock.holds.iter().filter_map(|hold| hold.record.as_deref());
            waits.extend(holders.map(|holder| (from, lock.key.as_str(), holder.owner.as_str())));
        }
    }
    waits
}

/// Returns the deadlocked waits: repeatedly removes owners that do not wait, and owners that no other waits for.
fn deadlocked(mut waits: BTreeSet<Wait<'_>>) -> BTreeSet<Wait<'_>> {
    loop {
        let from: BTreeSet<&str> = waits.iter().map(|(from, ..)| *from).collect();
        let to: BTreeSet<&str> = waits.iter().map(|(.., to)| *to).collect();
        let before = waits.len();
        waits.retain(|(one, _, other)| from.contains(other) && to.contains(one));
        if waits.len() == before {
            return waits;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use distlock::backend::LockInfo;
    use distlock::{FencingToken, Holder, Key, OwnerId, Process, Record};
    use serde_json::{Value, json};

    use super::*;
    use crate::frame::ListingInfo;

    fn graph(locks: &[(&str, &[&str], &[&str])]) -> Value {
        let record = |owner: &&str| {
            let owner = OwnerId::new(owner).unwrap();
            Arc::new(Record::new(owner, Process::current(), None, SystemTime::UNIX_EPOCH))
        };
        let holder = |owner: &&str| Holder::new(Some(record(owner)), Some(FencingToken::new(owner.len() as u64)));
        let info = |(name, holders, waiters): &(&str, &[&str], &[&str])| {
            let waiters = waiters.iter().map(record).collect();
            LockInfo::new(Key::new(name).unwrap(), holders.iter().map(holder), waiters)
        };
        let mut all = Locks::default();
        all.replace(locks.iter().map(info).collect(), ListingInfo { look: 1, at_ms: 1, took_ms: 0 });
        let waits = serde_json::to_value(Waits::of(&all)).unwrap();
        let owner = |place: &Value| waits["parties"][place.as_u64().unwrap() as usize]["owner"].clone();
        let edge = |edge: &Value| json!([owner(&edge["from"]), edge["lock"], owner(&edge["to"]), edge["is_stuck"]]);
        waits["edges"].as_array().unwrap().iter().map(edge).collect()
    }

    #[test]
    fn waits_in_a_cycle_are_deadlocked_and_waits_for_the_cycle_are_not() {
        let locks: [(&str, &[&str], &[&str]); 5] = [
            ("x", &["ann"], &["bob", "eve", "cid"]),
            ("y", &["bob"], &["ann"]),
            ("z", &["cid"], &["nobody's"]),
            ("alone", &["dan"], &[]),
            ("own", &["fay"], &["fay"]),
        ];
        let expected = json!([
            ["ann", "y", "bob", true],
            ["bob", "x", "ann", true],
            ["fay", "own", "fay", true],
            ["cid", "x", "ann", false]
        ]);
        assert_eq!(graph(&locks), expected, "eve and the holder without a record hold nothing");
    }

    #[test]
    fn a_long_chain_is_not_a_cycle() {
        let locks: [(&str, &[&str], &[&str]); 4] =
            [("1", &["a"], &["b"]), ("2", &["b"], &["c"]), ("3", &["c"], &["d"]), ("4", &["d"], &[])];
        assert!(graph(&locks).as_array().unwrap().iter().all(|edge| edge[3] == false));
    }
}
