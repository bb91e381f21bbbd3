//! The entries of each lock among those for several histories.

use crate::types::error::Result;
use crate::types::history::{HistoryEntry, answer_all, by_lock};
use crate::types::key::Key;

/// The entries of one lock among those of a call to `write_history`.
#[derive(Debug)]
pub(super) struct LockEntries<'a> {
    pub(super) key: &'a Key,
    pub(super) entries: Vec<&'a HistoryEntry>,
    /// Where the entries stood in the call.
    positions: Vec<usize>,
}

/// Groups `entries` by lock, in the order in which they came.
pub(super) fn group_by_lock(entries: &[(Key, HistoryEntry)]) -> Vec<LockEntries<'_>> {
    let group = |(key, positions): (_, Vec<usize>)| {
        let of_lock = positions.iter().map(|position| &entries[*position].1).collect();
        LockEntries { key, entries: of_lock, positions }
    };
    by_lock(entries).into_iter().map(group).collect()
}

/// Returns the outcome of each entry, from the outcome of each group.
pub(super) fn outcomes_of_entries(
    groups: &[LockEntries<'_>],
    outcomes: impl IntoIterator<Item = Result<()>>,
) -> Vec<Result<()>> {
    let mut of_entries: Vec<_> = groups.iter().flat_map(|group| &group.positions).map(|_| Ok(())).collect();
    for (group, outcome) in groups.iter().zip(outcomes) {
        for (position, outcome) in group.positions.iter().zip(answer_all(&outcome, group.positions.len())) {
            of_entries[*position] = outcome;
        }
    }
    of_entries
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::types::error::Error;
    use crate::types::history::HistoryKind;
    use crate::types::owner::{OwnerId, Process, Record};
    use crate::types::token::FencingToken;

    #[test]
    fn each_entry_has_the_outcome_of_its_lock() {
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let entries: Vec<_> = ["b", "a", "b"]
            .into_iter()
            .zip(1..)
            .map(|(key, token)| {
                let token = FencingToken::new(token);
                (Key::new(key).unwrap(), HistoryEntry::new(0, HistoryKind::Acquired, token, record.clone()))
            })
            .collect();
        let groups = group_by_lock(&entries);
        let tokens = |group: &LockEntries<'_>| group.entries.iter().map(|entry| entry.token.get()).collect::<Vec<_>>();
        let found: Vec<_> = groups.iter().map(|group| (group.key.as_str(), tokens(group))).collect();
        assert_eq!(found, [("a", vec![2]), ("b", vec![1, 3])]);
        let outcomes = outcomes_of_entries(&groups, [Ok(()), Err(Error::unavailable("full"))]);
        let is_written: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
        assert_eq!(is_written, [false, true, false]);
        assert!(outcomes[2].as_ref().is_err_and(Error::is_retryable), "every entry has the kind of the error");
    }
}
