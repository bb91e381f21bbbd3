//! The notes of locks' ticks: rows in a table of their own.

use std::collections::BTreeMap;

use crate::contract::{Claim, LockTicks, TickNotes};
use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::{column, garbled};
use crate::engines::shared::listing::{self, Allowance};
use crate::types::error::Result;
use crate::types::key::Key;
use crate::types::tick::{MAX_TICKS, Tick, TickNote, check_count};

/// How many notes one statement lists.
const PAGE: usize = 1000;

impl Client {
    /// Returns the notes of a lock, or that of one tick.
    pub(super) async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        let (name, tick) = (self.name(key), tick.map(Tick::to_string));
        let rows = self.query(&self.options.statements.read_ticks, &[&name, &tick, &count(MAX_TICKS)]).await?;
        let now_ms = column::<i64>(rows.first().ok_or_else(garbled)?, 0)?;
        let lines = rows.iter().map(|row| column::<Option<&str>>(row, 1)).collect::<Result<Vec<_>>>()?;
        let notes = lines.into_iter().flatten().filter_map(|line| TickNote::from_line(line.as_bytes()));
        Ok(TickNotes::at(u64::try_from(now_ms).map_err(|_| garbled())?, notes.collect()))
    }

    /// Writes a note as the holder of the lock. Returns whether it is stored.
    pub(super) async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        let (name, attempt) = (self.name(&claim.key), claim.attempt.to_string());
        let (tick, line, is_done) = (note.tick.to_string(), note.to_line()?, note.is_done());
        let forget_ms = i64::try_from(note.forget_ms).unwrap_or(i64::MAX);
        let statement = &self.options.statements.note_tick;
        let rows =
            self.query(statement, &[&name, &attempt, &tick, &forget_ms, &is_done, &line, &count(MAX_TICKS)]).await?;
        match column::<&str>(rows.first().ok_or_else(garbled)?, 0)? {
            "stored" => Ok(true),
            "refused" => Ok(false),
            "full" => check_count(MAX_TICKS).map(|()| false),
            _ => Err(garbled()),
        }
    }

    /// Returns the notes of all locks whose names begin with `start`.
    pub(super) async fn list_ticks(&self, start: &str) -> Result<Vec<LockTicks>> {
        let (mut all, mut allowance): (BTreeMap<Key, Vec<TickNote>>, _) = (BTreeMap::new(), Allowance::new());
        let start = format!("{}{start}", self.options.prefix);
        listing::in_time(async {
            let mut after = (String::new(), String::new());
            loop {
                let statement = &self.options.statements.list_ticks;
                let rows = self.query(statement, &[&start, &after.0, &after.1, &count(PAGE)]).await?;
                for row in &rows {
                    let (name, tick, line): (&str, &str, &str) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
                    allowance.spend(1, name.len() + line.len())?;
                    // A name that is not a key was written by hand.
                    let key = name.strip_prefix(&*self.options.prefix).and_then(|name| Key::new(name).ok());
                    if let (Some(key), Some(note)) = (key, TickNote::from_line(line.as_bytes())) {
                        all.entry(key).or_default().push(note);
                    }
                    after = (name.to_owned(), tick.to_owned());
                }
                if rows.len() < PAGE {
                    return Ok(());
                }
            }
        })
        .await?;
        Ok(all.into_iter().collect())
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
