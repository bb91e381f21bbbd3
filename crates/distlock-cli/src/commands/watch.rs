//! `distlock watch`: follows locks until interrupted, with a table on a terminal, else a line for each change.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use distlock::{Change, Error};
use rustix::termios::tcgetwinsize;
use serde_json::json;

use crate::commands::with_engine;
use crate::engine::Engine;
use crate::exit::Exit;
use crate::flags::Ls;
use crate::lock_view;

/// How often the locks are read.
const INTERVAL: Duration = Duration::from_millis(250);
/// How often the table is drawn, which shows seconds.
const REDRAW: Duration = Duration::from_millis(500);
/// Escape sequences: move to the upper left corner; clear to the end of the line; clear everything below.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

pub(super) fn main(flags: &Ls) -> Exit {
    with_engine(&flags.engine, &flags.output, async |engine| {
        if !flags.output.json && io::stdout().is_terminal() {
            return draw(engine, &flags.prefix).await;
        }
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

/// Draws a table over the last one.
async fn draw(engine: &Engine, prefix: &str) -> Result<Exit, Error> {
    let mut stdout = io::stdout();
    let _ = write!(stdout, "{HOME}{CLEAR_BELOW}");
    loop {
        let table = lock_view::table(&engine.locker.inspect().list(prefix).await?);
        let (rows, columns) = match tcgetwinsize(&stdout) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => (24, 80),
        };
        if stdout.write_all(screen(&table, rows, columns).as_bytes()).and_then(|()| stdout.flush()).is_err() {
            return Ok(Exit::SUCCESS);
        }
        tokio::time::sleep(REDRAW).await;
    }
}

/// Returns as much of the table as fits; the last line counts the rows that do not.
fn screen(table: &str, rows: usize, columns: usize) -> String {
    let lines: Vec<&str> = table.lines().collect();
    let fit = |line: &str| line.chars().take(columns).collect::<String>();
    // The cursor needs a line of its own.
    let shown = if lines.len() < rows { lines.len() } else { rows.saturating_sub(2) };
    let mut text = HOME.to_owned();
    for line in &lines[..shown] {
        text.push_str(&format!("{}{CLEAR_LINE}\n", fit(line)));
    }
    if shown < lines.len() {
        text.push_str(&format!("{}{CLEAR_LINE}\n", fit(&format!("… and {} more", lines.len() - shown))));
    }
    text + CLEAR_BELOW
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_never_scrolls_and_never_wraps() {
        let table: String = (0..50).map(|number| format!("{number} {}\n", "日".repeat(100))).collect();
        let text = screen(&table, 10, 40);
        let lines: Vec<&str> = text.split("\n").collect();
        assert_eq!(lines.len(), 10, "nine and the cursor's");
        assert!(lines[8].contains("… and 42 more"), "{text}");
        let width = |line: &&str| line.replace(HOME, "").replace(CLEAR_LINE, "").chars().count();
        assert!(lines[..9].iter().map(width).all(|width| width <= 40), "{text}");
        assert_eq!(screen("a\nb\n", 10, 40).split("\n").count(), 3);
    }
}
