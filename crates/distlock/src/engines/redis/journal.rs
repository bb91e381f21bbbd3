//! The history of a lock: a stream beside it that is kept short, and that the server forgets when nobody adds to it.

use crate::engines::redis::millis;
use crate::engines::redis::names::Names;
use crate::engines::redis::script::{JOURNAL, JOURNAL_READ, garbled};
use crate::engines::redis::session::Session;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::{HISTORY_TTL, HistoryEntry};

/// Adds lines to the history of one lock.
pub(super) async fn append(session: &Session, names: &Names, lines: &[String], most: u32) -> Result<()> {
    let fill = |command: &mut redis::Cmd, nonce| {
        command.arg(1).arg(names.journal()).arg(nonce).arg(most).arg(millis(HISTORY_TTL)).arg(lines.len());
        lines.iter().for_each(|line| {
            command.arg(line);
        });
    };
    let mut reply = session.run(&JOURNAL, fill).await?;
    match reply.int()? {
        1 => Ok(()),
        0 => {
            let kind = reply.word()?;
            Err(Error::new(ErrorKind::Foreign, format!("redis: {:?} holds a {kind} that is not ours", names.journal())))
        }
        _ => Err(garbled()),
    }
}

/// The last entries, at most `most`.
pub(super) async fn read(session: &Session, names: &Names, most: u32) -> Result<Vec<HistoryEntry>> {
    let fill = |command: &mut redis::Cmd, nonce| {
        command.arg(1).arg(names.journal()).arg(nonce).arg(most);
    };
    let mut reply = session.run(&JOURNAL_READ, fill).await?;
    let mut entries = Vec::new();
    while !reply.is_empty() {
        entries.extend(HistoryEntry::from_line(&reply.bytes()?));
    }
    Ok(entries)
}
