//! Entries on their way into the histories of locks: collected here, written in batches by the keeper beside its
//! other work.

use std::collections::VecDeque;
use std::time::Duration;

use crate::types::clock::Moment;
use crate::types::error::Result;
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::sync::{Mutex, MutexGuard};

/// How long entries are collected before a batch is written.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// The largest batch.
const BATCH: usize = 256;
/// How many entries may be pending; of more, the oldest are dropped.
const MOST_PENDING: usize = 4096;
/// The backoff after a failed call: the first pause and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// An entry and its lock.
pub(crate) type KeyedEntry = (Key, HistoryEntry);

/// Collects entries. It never waits for an engine.
pub(crate) struct HistoryWriter {
    /// How many entries each lock keeps.
    pub(crate) most: u32,
    pending: Mutex<PendingEntries>,
}

#[derive(Default)]
struct PendingEntries {
    entries: VecDeque<KeyedEntry>,
    /// When to write next; `None` while there is nothing to write.
    due: Option<Moment>,
    /// Failed calls since the last success.
    failures: u32,
    /// Whether the engine has refused an entry for good.
    is_refused: bool,
}

impl HistoryWriter {
    pub(crate) fn new(most: u32) -> HistoryWriter {
        HistoryWriter { most, pending: Mutex::default() }
    }

    /// Adds an entry. Returns whether the keeper must be woken, because nothing was pending before.
    pub(crate) fn add(&self, key: &Key, entry: HistoryEntry, now: Moment) -> bool {
        let mut pending = self.pending();
        pending.entries.push_back((key.clone(), entry));
        pending.forget_oldest();
        let is_first = pending.due.is_none();
        pending.due.get_or_insert(now.after(BATCH_DELAY));
        is_first
    }

    /// Returns when the next batch is due.
    pub(crate) fn due(&self) -> Moment {
        self.pending().due.unwrap_or(Moment::NEVER)
    }

    /// Takes the batch to write at `now`; empty before it is due.
    pub(crate) fn take(&self, now: Moment) -> Vec<KeyedEntry> {
        let mut pending = self.pending();
        if pending.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let count = pending.entries.len().min(BATCH);
        let batch = pending.entries.drain(..count).collect();
        // The rest is due as soon as this batch is written.
        pending.due = (!pending.entries.is_empty()).then_some(now);
        batch
    }

    /// Records the results of a batch. Entries with a retryable error are kept for later, those with a permanent
    /// error are dropped.
    pub(crate) fn written(&self, batch: Vec<KeyedEntry>, answers: Vec<Result<()>>, now: Moment) {
        let mut pending = self.pending();
        let mut failed = None;
        let mut again = Vec::new();
        for (entry, answer) in batch.into_iter().zip(answers) {
            if let Err(error) = answer {
                if error.is_retryable() || error.may_be_applied() {
                    again.push(entry);
                }
                failed = Some(error);
            }
        }
        let Some(error) = failed else {
            pending.failures = 0;
            return;
        };
        if again.is_empty() {
            // One lock's history may be refused permanently while others are written. That is logged once and causes
            // no backoff: the engine is reachable.
            pending.failures = 0;
            if !std::mem::replace(&mut pending.is_refused, true) {
                tracing::warn!(target: "distlock", { error = %error }, "the history of a lock is refused");
            }
            return;
        }
        pending.failures += 1;
        if pending.failures == 1 {
            tracing::warn!(target: "distlock", { error = %error }, "the history of locks is not written");
        }
        again.into_iter().rev().for_each(|entry| pending.entries.push_front(entry));
        pending.forget_oldest();
        let pause = FIRST_PAUSE.saturating_mul(1 << (pending.failures - 1).min(5)).min(LONGEST_PAUSE);
        pending.due = (!pending.entries.is_empty()).then(|| now.after(pause));
    }

    fn pending(&self) -> MutexGuard<'_, PendingEntries> {
        self.pending.lock()
    }
}

impl PendingEntries {
    fn forget_oldest(&mut self) {
        let over = self.entries.len().saturating_sub(MOST_PENDING);
        self.entries.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::types::error::{Error, ErrorKind};
    use crate::types::history::HistoryKind;
    use crate::types::owner::{OwnerId, Process, Record};
    use crate::types::token::FencingToken;

    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    fn add(history: &HistoryWriter, token: u64, now: Moment) -> bool {
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let entry = HistoryEntry::new(0, HistoryKind::Acquired, FencingToken::new(token), record);
        history.add(&Key::new("k").unwrap(), entry, now)
    }

    fn tokens(batch: &[KeyedEntry]) -> Vec<u64> {
        batch.iter().map(|(_, entry)| entry.token.get()).collect()
    }

    #[test]
    fn entries_are_written_in_batches() {
        let history = HistoryWriter::new(10);
        assert!(add(&history, 1, START), "the keeper is told of the first");
        assert!(!add(&history, 2, START.after(BATCH_DELAY / 2)), "and not of the second");
        assert!(history.take(START).is_empty(), "not yet");
        let due = history.due();
        assert_eq!(due, START.after(BATCH_DELAY));
        assert_eq!(tokens(&history.take(due)), [1, 2]);
        assert_eq!(history.due(), Moment::NEVER);
        assert!(add(&history, 3, due), "told again");
    }

    #[test]
    fn what_could_not_be_written_comes_first_the_next_time_unless_it_never_can_be() {
        let history = HistoryWriter::new(10);
        for token in 1..=3 {
            add(&history, token, START);
        }
        let now = history.due();
        let batch = history.take(now);
        add(&history, 4, now);
        let never = Err(Error::new(ErrorKind::Auth, "no"));
        history.written(batch, vec![Err(Error::unavailable("away")), Ok(()), never], now);
        assert!(history.take(now).is_empty(), "after a pause");
        let later = history.due();
        assert_eq!(later.since(now), FIRST_PAUSE);
        let batch = history.take(later);
        assert_eq!(tokens(&batch), [1, 4]);
        history.written(batch, vec![Ok(()), Ok(())], later);
        assert_eq!(history.due(), Moment::NEVER);
    }

    #[test]
    fn what_is_refused_holds_up_nobody_else() {
        let history = HistoryWriter::new(10);
        for token in 0..=BATCH as u64 {
            add(&history, token, START);
        }
        let now = history.due();
        let batch = history.take(now);
        history.pending().failures = 3;
        let answers = batch.iter().map(|_| Err(Error::new(ErrorKind::Foreign, "not ours"))).collect();
        history.written(batch, answers, now);
        assert_eq!(tokens(&history.take(now)), [BATCH as u64], "the rest at once");
        assert!(history.pending().is_refused && history.pending().failures == 0, "told, and not as an absence");
    }

    #[test]
    fn memory_is_bounded_while_the_engine_is_away() {
        let history = HistoryWriter::new(10);
        let most = MOST_PENDING as u64;
        for token in 0..most + 10 {
            add(&history, token, START);
        }
        let now = history.due();
        let batch = history.take(now);
        assert_eq!((batch.len(), tokens(&batch)[0]), (BATCH, 10), "the oldest are forgotten");
        for token in 0..20 {
            add(&history, token, now);
        }
        let away = batch.iter().map(|_| Err(Error::unavailable("away"))).collect();
        history.written(batch, away, now);
        assert_eq!(history.pending().entries.len(), MOST_PENDING);
    }
}
