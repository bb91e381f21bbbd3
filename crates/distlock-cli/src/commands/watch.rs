//! `distlock watch`: locks as they change hands, a line for each change, until interrupted.

use std::io::{self, Write};
use std::time::Duration;

use distlock::Change;
use serde_json::json;

use crate::commands::with_engine;
use crate::exit::Exit;
use crate::flags::Ls;
use crate::lock_view;

/// How often to look.
const INTERVAL: Duration = Duration::from_millis(250);

pub(super) fn main(flags: &Ls) -> Exit {
    with_engine(&flags.engine, &flags.output, async |engine| {
        let mut watch = engine.locker.inspect().watch(&flags.prefix, INTERVAL);
        loop {
            let line = line(&watch.next().await?, flags.output.json);
            let mut stdout = io::stdout();
            if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
                return Ok(Exit::SUCCESS);
            }
        }
    })
}

fn line(change: &Change, as_json: bool) -> String {
    match change {
        Change::Changed(lock) if as_json => lock_view::to_json(lock).to_string(),
        Change::Freed(key) if as_json => {
            json!({"name": key.as_str(), "holder": null, "holders": [], "waiters": []}).to_string()
        }
        Change::Changed(lock) => {
            let holders: Vec<_> = lock.holders.iter().map(|holder| format!("held by {holder}")).collect();
            let holders = if holders.is_empty() { "free".to_owned() } else { holders.join("; ") };
            format!("{}  {holders}, {} waiting", lock.key, lock.waiters.len())
        }
        Change::Freed(key) => format!("{key}  free"),
        _ => String::new(),
    }
}
