//! The history of a lock: a short stream beside it, which expires when no entry is added.

use std::sync::Arc;

use crate::engines::redis::client::Client;
use crate::engines::redis::inspect::AT_ONCE;
use crate::engines::redis::protocol::script::{HISTORY_READ, HISTORY_WRITE, garbled};
use crate::engines::redis::protocol::time::millis;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::join_all::join_all;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::{HISTORY_TTL, HistoryEntry, answer_all, by_lock};
use crate::types::key::Key;

impl Client {
    /// Adds entries to the histories of their locks.
    pub(super) async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        let mut outcomes: Vec<_> = entries.iter().map(|_| Ok(())).collect();
        let locks: Vec<_> = by_lock(entries).into_iter().collect();
        for some in locks.chunks(AT_ONCE) {
            let calls = some.iter().map(|(key, places)| {
                let lines = places.iter().map(|place| entries[*place].1.to_line()).collect();
                self.append(key, lines, most)
            });
            for ((_, places), outcome) in some.iter().zip(join_all(calls).await) {
                let all = answer_all(&outcome, places.len());
                places.iter().zip(all).for_each(|(place, outcome)| outcomes[*place] = outcome);
            }
        }
        outcomes
    }

    /// Adds lines to the history of one lock.
    async fn append(&self, key: &Key, lines: Result<Vec<String>>, most: u32) -> Result<()> {
        let (names, lines) = (&self.names(key)?, lines?);
        let fill = |command: &mut redis::Cmd, nonce| {
            command.arg(1).arg(names.history()).arg(nonce).arg(most).arg(millis(HISTORY_TTL)).arg(lines.len());
            lines.iter().for_each(|line| {
                command.arg(line);
            });
        };
        let append = |_, connection: Arc<Connection>| async move {
            let mut reply = connection.run(&HISTORY_WRITE, fill).await?;
            match reply.int()? {
                1 => Ok(()),
                0 => {
                    let (kind, key) = (reply.word()?, names.history());
                    Err(Error::new(ErrorKind::Foreign, format!("redis: {key:?} holds a {kind} that is not ours")))
                }
                _ => Err(garbled()),
            }
        };
        self.on_main(names, append).await
    }

    /// Returns the last entries of one lock, at most `most`.
    pub(super) async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        let names = self.names(key)?;
        let fill = |command: &mut redis::Cmd, nonce| {
            command.arg(1).arg(names.history()).arg(nonce).arg(most);
        };
        let read = |_, connection: Arc<Connection>| async move {
            let mut reply = connection.run(&HISTORY_READ, fill).await?;
            let mut entries = Vec::new();
            while !reply.is_empty() {
                entries.extend(HistoryEntry::from_line(&reply.bytes()?));
            }
            Ok(entries)
        };
        self.on_main(&names, read).await
    }
}
