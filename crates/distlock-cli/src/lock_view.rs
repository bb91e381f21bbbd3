//! Formats locks as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use distlock::backend::LockInfo;
use distlock::{Holder, Mode, Record, TickNote};
use serde_json::{Value, json};

use crate::once;

/// Returns a lock as one JSON object, with the notes of its ticks.
#[must_use]
pub fn with_ticks(lock: &LockInfo, ticks: &[TickNote]) -> Value {
    let mut fields = to_json(lock);
    fields["ticks"] = ticks.iter().map(once::to_json).collect();
    fields
}

/// Returns a lock as one JSON object.
#[must_use]
pub fn to_json(lock: &LockInfo) -> Value {
    json!({
        "name": lock.key.as_str(),
        "holder": lock.holder().map(holder_json),
        "holders": lock.holders.iter().map(holder_json).collect::<Vec<_>>(),
        "waiters": lock.waiters.iter().map(|waiter| record_json(waiter)).collect::<Vec<_>>(),
    })
}

pub(crate) fn holder_json(holder: &Holder) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let mut fields = holder.record.as_ref().map_or_else(|| json!({"foreign": true}), |record| record_json(record));
    // As text: JSON readers round numbers of this size.
    fields["token"] = json!(holder.token.map(|token| token.to_string()));
    fields["held_for_s"] = json!(seconds(holder.held_for));
    fields["ttl_left_s"] = json!(seconds(holder.ttl_left));
    fields
}

pub(crate) fn record_json(record: &Record) -> Value {
    json!({
        "owner": record.owner.as_str(),
        "host": record.process.host,
        "pid": record.process.pid,
        "user": record.process.user,
        "label": record.label,
        "mode": record.mode,
        "since_ms": record.since_ms,
    })
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
        record.map_or_else(|| "-".to_owned(), |record| mode(record.mode, lock.holders.len())),
        who,
        seconds(holder.and_then(|holder| holder.held_for)),
        seconds(holder.and_then(|holder| holder.ttl_left)),
        lock.waiters.len().to_string(),
        holder.and_then(|holder| holder.token).map_or_else(|| "-".to_owned(), |token| token.to_string()),
        record.and_then(|record| record.label.as_deref()).unwrap_or("-").to_owned(),
    ]
}

fn mode(mode: Mode, holders: usize) -> String {
    match mode {
        Mode::Shared => "shared".to_owned(),
        Mode::Reentrant => "reentrant".to_owned(),
        Mode::Slot { of } => format!("{holders} of {of}"),
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

    use distlock::{FencingToken, Key, OwnerId, Process};

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
