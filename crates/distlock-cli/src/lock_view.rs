//! Formats locks as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use distlock::backend::LockInfo;
use distlock::{Mode, Record, TickNote};
use serde_json::Value;

pub use distlock_serve::{holder_json, lock_json as to_json, record_json};

use crate::once;

/// Returns a lock as one JSON object, with the notes of its ticks.
#[must_use]
pub fn with_ticks(lock: &LockInfo, ticks: &[TickNote]) -> Value {
    let mut fields = to_json(lock);
    fields["ticks"] = ticks.iter().map(once::to_json).collect();
    fields
}

/// Returns locks as a table with a heading, one line each.
#[must_use]
pub fn table(locks: &[LockInfo]) -> String {
    const HEADING: [&str; 8] = ["NAME", "MODE", "HOLDER", "HELD", "LEASE", "WAITERS", "TOKEN", "LABEL"];
    columns(HEADING, &locks.iter().map(row).collect::<Vec<_>>())
}

/// Formats rows below a heading; each column is as wide as its widest cell.
pub(crate) fn columns<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in std::iter::once(&heading.map(str::to_owned)).chain(rows) {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

fn row(lock: &LockInfo) -> [String; 8] {
    let holder = lock.holder();
    let record = holder.and_then(|holder| holder.record.as_deref());
    let who = match (holder, record) {
        (None, _) => "-".to_owned(),
        (Some(_), None) => "not distlock".to_owned(),
        (Some(_), Some(record)) if lock.holders.len() > 1 => format!("{} +{}", place(record), lock.holders.len() - 1),
        (Some(_), Some(record)) => place(record),
    };
    let seconds =
        |time: Option<Duration>| time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}s", time.as_secs_f64()));
    [
        lock.key.to_string(),
        record.map_or_else(|| "-".to_owned(), |record| mode(record.mode, lock)),
        who,
        seconds(holder.and_then(|holder| holder.held_for)),
        seconds(holder.and_then(|holder| holder.ttl_left)),
        lock.waiters.len().to_string(),
        holder.and_then(|holder| holder.token).map_or_else(|| "-".to_owned(), |token| token.to_string()),
        record.and_then(|record| record.label.as_deref()).unwrap_or("-").to_owned(),
    ]
}

fn mode(mode: Mode, lock: &LockInfo) -> String {
    match mode {
        Mode::Shared => "shared".to_owned(),
        Mode::Reentrant => "reentrant".to_owned(),
        Mode::Slot { of } => {
            // While it is resized, its holders may have requested it with different numbers.
            let sizes = lock.holders.iter().filter_map(|holder| Some(holder.record.as_ref()?.mode.most_holders()));
            format!("{} of {}", lock.holders.len(), sizes.max().unwrap_or(of as usize))
        }
        _ => "exclusive".to_owned(),
    }
}

/// Returns all details of a lock, with its waiters in order.
#[must_use]
pub fn details(lock: &LockInfo) -> String {
    let mut text = format!("{}\n", lock.key);
    if lock.holders.is_empty() {
        text.push_str("  free\n");
    }
    for holder in &lock.holders {
        let _ = writeln!(text, "  held by  {holder}");
    }
    for (number, waiter) in lock.waiters.iter().enumerate() {
        let _ = writeln!(text, "  waiter {}  {waiter}", number + 1);
    }
    text
}

pub(crate) fn place(record: &Record) -> String {
    format!("{}@{}/{}", record.process.user, record.process.host, record.process.pid)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use distlock::{FencingToken, Holder, Key, OwnerId, Process};
    use serde_json::Value;

    use super::*;

    fn lock(name: &str, label: &str) -> LockInfo {
        let owner = OwnerId::new("req-7").unwrap();
        let process = Arc::new(Process { host: "vm".into(), pid: 7, user: "me".into() });
        let record = Arc::new(Record::new(owner, process, Some(label.into()), SystemTime::now()));
        let holder = Holder::new(Some(record.clone()), Some(FencingToken::new(u64::MAX)))
            .with_held_for(Some(Duration::from_millis(1_500)));
        LockInfo::new(Key::new(name).unwrap(), Some(holder), vec![record])
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = table(&[lock("a", "x"), lock("日本語-long", "y")]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let column =
            |line: &str, word: &str| line.chars().collect::<String>().find(word).map(|at| line[..at].chars().count());
        assert_eq!(column(lines[0], "HOLDER"), column(lines[1], "me@vm/7"));
        assert_eq!(column(lines[1], "me@vm/7"), column(lines[2], "me@vm/7"));
        assert!(lines[1].contains("1.5s") && lines[1].ends_with("18446744073709551615  x"), "{text}");
    }

    #[test]
    fn tokens_are_text_in_json() {
        let json = to_json(&lock("a", "x"));
        assert_eq!(json["holder"]["token"], "18446744073709551615");
        assert_eq!(json["holder"]["ttl_left_s"], Value::Null);
        assert_eq!(json["waiters"][0]["owner"], "req-7");
        let foreign = LockInfo::new(Key::new("a").unwrap(), Some(Holder::new(None, None)), Vec::new());
        assert_eq!(to_json(&foreign)["holder"]["foreign"], true);
    }
}
