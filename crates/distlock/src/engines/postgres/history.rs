//! The history of a lock: lines in a table of their own.

use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::column;
use crate::types::error::Result;
use crate::types::history::{HISTORY_TTL, HistoryEntry, answer_all};
use crate::types::key::Key;

/// How many entries one statement writes.
const AT_ONCE: usize = 256;
const SECONDS_PER_DAY: u64 = 24 * 3600;

impl Client {
    /// Adds entries to the histories of their locks.
    pub(super) async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        let mut outcomes = Vec::with_capacity(entries.len());
        for some in entries.chunks(AT_ONCE) {
            outcomes.extend(answer_all(&self.append(some, most).await, some.len()));
        }
        outcomes
    }

    async fn append(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Result<()> {
        let names: Vec<String> = entries.iter().map(|(key, _)| self.name(key)).collect();
        let lines = entries.iter().map(|(_, entry)| entry.to_line()).collect::<Result<Vec<_>>>()?;
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        self.query(&self.options.statements.write_history, &[&names, &lines, &most, &days()]).await.map(drop)
    }

    /// Returns the last entries of one lock, at most `most`.
    pub(super) async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let rows = self.query(&self.options.statements.read_history, &[&self.name(key), &most, &days()]).await?;
        let lines = rows.iter().map(|row| column::<&str>(row, 0)).collect::<Result<Vec<_>>>()?;
        Ok(lines.into_iter().filter_map(|line| HistoryEntry::from_line(line.as_bytes())).collect())
    }
}

fn days() -> i32 {
    i32::try_from(HISTORY_TTL.as_secs() / SECONDS_PER_DAY).unwrap_or(i32::MAX)
}
