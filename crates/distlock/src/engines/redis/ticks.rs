//! The notes of a lock's ticks: a hash beside it, which expires with its last note.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::contract::{Claim, LockTicks, TickNotes};
use crate::engines::redis::client::{CONNECT_WAIT, Client};
use crate::engines::redis::inspect::{AT_ONCE, scan_keys};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::script::{TICK_READ, TICK_WRITE, garbled};
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::join_all::join_all;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::shared::listing::{self, Allowance};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::tick::{MAX_TICKS, Tick, TickNote, check_count};

/// What a server did with a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum StoredNote {
    Stored,
    /// Stored, but forgotten already by the server's clock.
    Forgotten,
    /// Not stored: the attempt does not hold the lock there, or the tick is done.
    Refused,
}

impl Client {
    /// Returns the notes of a lock, or that of one tick.
    pub(super) async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        let names = self.names(key)?;
        let read = |_, connection: Arc<Connection>| async move {
            connection.ticks(&self.options.prefix, key, tick).await.map(|(found, _)| found)
        };
        self.on_main(&names, read).await
    }

    /// Writes a note as the holder of the lock. Returns whether it is stored.
    pub(super) async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        let names = &self.names(&claim.key)?;
        let write = |server: Arc<ServerConnections>, connection: Arc<Connection>| async move {
            // If the note is forgotten already, so is the tick: the clock that says so is the only one.
            let stored = connection.note_tick(&self.options.prefix, claim, note).await? != StoredNote::Refused;
            if let (true, Some(replicas)) = (stored, &server.replicas) {
                // The master has it, so it may count or not.
                let confirmed = replicas.confirm(names, claim).await;
                confirmed.map_err(|error| Error::unknown(format!("the note of a tick is not confirmed: {error}")))?;
            }
            Ok(stored)
        };
        self.on_main(names, write).await
    }

    /// Returns the notes of all locks whose names begin with `start`.
    pub(super) async fn list_ticks(&self, start: &str) -> Result<Vec<LockTicks>> {
        let (mut all, mut allowance) = (Vec::new(), Allowance::new());
        listing::in_time(async {
            for server in self.servers.all().await? {
                let connection = server.main.connection(CONNECT_WAIT).await?;
                all.extend(connection.list_ticks(&self.options.prefix, start, &mut allowance).await?);
            }
            Ok(())
        })
        .await?;
        all.sort_by(|(one, _): &(Key, _), (other, _)| one.cmp(other));
        Ok(all)
    }
}

impl Connection {
    /// Returns the notes that this server has of a lock's ticks, and how long their text is.
    pub(in crate::engines) async fn ticks(
        &self,
        prefix: &str,
        key: &Key,
        tick: Option<&Tick>,
    ) -> Result<(TickNotes, usize)> {
        let names = Names::new(prefix, key)?;
        let tick = tick.map_or_else(String::new, Tick::to_string);
        let fill = |command: &mut redis::Cmd, nonce| {
            command.arg(1).arg(names.ticks()).arg(nonce).arg(&tick);
        };
        let mut reply = self.run(&TICK_READ, fill).await?;
        let length = reply.length();
        let mut found = TickNotes::at(reply.unsigned()?, Vec::new());
        while !reply.is_empty() {
            found.notes.extend(TickNote::from_line(&reply.bytes()?));
        }
        Ok((found, length))
    }

    /// Writes a note on this server, if the attempt holds the lock here.
    pub(in crate::engines) async fn note_tick(
        &self,
        prefix: &str,
        claim: &Claim,
        note: &TickNote,
    ) -> Result<StoredNote> {
        let (names, line) = (Names::new(prefix, &claim.key)?, note.to_line()?);
        let state = if note.is_done() { "d" } else { "s" };
        let fill = |command: &mut redis::Cmd, nonce| {
            command.arg(2).arg(&names.lock).arg(names.ticks()).arg(nonce).arg(claim.attempt.to_string());
            command.arg(note.tick.to_string()).arg(note.forget_ms).arg(state).arg(&line).arg(MAX_TICKS);
        };
        let mut reply = self.run(&TICK_WRITE, fill).await?;
        match reply.int()? {
            1 => Ok(StoredNote::Stored),
            0 => Ok(StoredNote::Refused),
            2 => check_count(MAX_TICKS).map(|()| StoredNote::Refused),
            4 => Ok(StoredNote::Forgotten),
            3 => {
                let (kind, key) = (reply.word()?, names.ticks());
                Err(Error::new(ErrorKind::Foreign, format!("redis: {key:?} holds a {kind} that is not ours")))
            }
            _ => Err(garbled()),
        }
    }

    /// Returns the notes that this server has of the locks whose names begin with `start`.
    pub(in crate::engines) async fn list_ticks(
        &self,
        prefix: &str,
        start: &str,
        allowance: &mut Allowance,
    ) -> Result<Vec<LockTicks>> {
        let (mut all, mut seen, mut cursor) = (Vec::new(), BTreeSet::new(), b"0".to_vec());
        loop {
            let (next, found) = scan_keys(self, prefix, start, &cursor).await?;
            let names = found.iter().filter_map(|stored| Names::lock_with_ticks(prefix, stored));
            let names: Vec<Key> =
                names.filter(|key| key.as_str().starts_with(start) && seen.insert(key.clone())).collect();
            for some in names.chunks(AT_ONCE) {
                let replies = join_all(some.iter().map(|key| self.ticks(prefix, key, None))).await;
                for (key, reply) in some.iter().zip(replies) {
                    let (found, length) = match reply {
                        // A key of another type that only has the name of one of ours.
                        Err(error) if error.kind() == ErrorKind::Foreign => continue,
                        reply => reply?,
                    };
                    allowance.spend(found.notes.len(), key.as_str().len() + length)?;
                    if !found.notes.is_empty() {
                        all.push((key.clone(), found.notes));
                    }
                }
            }
            if next == b"0" {
                return Ok(all);
            }
            cursor = next;
        }
    }
}
