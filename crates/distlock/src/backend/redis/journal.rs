//! The history of a lock: a stream beside it that is kept short, and that the server forgets when nobody adds to it.

use redis::Value;

use crate::backend::redis::millis;
use crate::backend::redis::names::Names;
use crate::backend::redis::script::{JOURNAL, garbled};
use crate::backend::redis::session::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::history::{HISTORY_TTL, HistoryEntry};

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
    let mut command = redis::cmd("XREVRANGE");
    command.arg(names.journal()).arg("+").arg("-").arg("COUNT").arg(most);
    let answer = session.send(&command).await?;
    let stored: Vec<(Value, Vec<Vec<u8>>)> = redis::from_redis_value(answer).map_err(|_| garbled())?;
    // Each has one field: its name, then the line.
    Ok(stored.iter().filter_map(|(_, fields)| HistoryEntry::from_line(fields.get(1)?)).collect())
}
