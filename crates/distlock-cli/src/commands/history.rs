//! `distlock history`: prints who held a lock, and how each hold ended.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use distlock::{HistoryEntry, HistoryKind, Key};
use serde_json::{Value, json};

use crate::commands::{fail, with_reply};
use crate::exit::{Exit, ExitCode};
use crate::flags::History;
use crate::note::{Note, Notes};
use crate::{lock_view, plan};

pub(super) fn main(flags: &History) -> Exit {
    let key = match plan::key(&flags.name) {
        Ok(key) => key,
        Err(problem) => return fail(ExitCode::Usage, problem),
    };
    with_reply(&flags.engine, &flags.output, async |engine| {
        let entries = engine.locker.inspect().history(&key, flags.limit).await?;
        if entries.is_empty() {
            // Not a failure: the lock may have no entries yet.
            let mut notes = Notes::new((&flags.output).into(), flags.output.json);
            notes.say(&Note::NoHistory { name: key.to_string() });
        }
        let text = if flags.output.json {
            entries.iter().map(|entry| format!("{}\n", to_json(&key, entry))).collect()
        } else if entries.is_empty() {
            String::new()
        } else {
            table(&entries)
        };
        // A reader that stops reading is not a failure.
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(Exit::SUCCESS)
    })
}

fn to_json(key: &Key, entry: &HistoryEntry) -> Value {
    let mut fields = lock_view::record_json(&entry.record);
    fields["name"] = json!(key.as_str());
    fields["at_ms"] = json!(entry.at_ms);
    fields["what"] = json!(entry.kind.as_str());
    // As text: JSON readers round numbers of this size.
    fields["token"] = json!(entry.token.to_string());
    fields["reason"] = json!(entry.reason);
    let took = entry.took_ms.map(|took| Duration::from_millis(took).as_secs_f64());
    let (waited, held) = if entry.kind == HistoryKind::Acquired { (took, None) } else { (None, took) };
    (fields["waited_s"], fields["held_s"]) = (json!(waited), json!(held));
    fields
}

fn table(entries: &[HistoryEntry]) -> String {
    const HEADING: [&str; 7] = ["TIME", "WHAT", "TOOK", "WHO", "TOKEN", "LABEL", "REASON"];
    let or_dash = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(entry.at_ms));
            let took = entry.took_ms.map(|took| Duration::from_millis(took).as_secs_f64());
            let verb = if entry.kind == HistoryKind::Acquired { "waited" } else { "held" };
            [
                at.map_or_else(|| "-".to_owned(), |at| humantime::format_rfc3339_millis(at).to_string()),
                entry.kind.to_string(),
                took.map_or_else(|| "-".to_owned(), |took| format!("{verb} {took:.1}s")),
                lock_view::place(&entry.record),
                entry.token.to_string(),
                or_dash(entry.record.label.as_deref()),
                or_dash(entry.reason.as_deref()),
            ]
        })
        .collect();
    lock_view::columns(HEADING, &rows)
}
