//! `distlock ls`: lists locks, their holders and waiters.

use std::io::{self, Write};

use crate::commands::with_engine;
use crate::exit::Exit;
use crate::flags::Ls;
use crate::lock_view;

pub(super) fn main(flags: &Ls) -> Exit {
    with_engine(&flags.engine, &flags.output, async |engine| {
        let locks = engine.locker.inspect().list(&flags.prefix).await?;
        let text = if flags.output.json {
            locks.iter().map(|lock| format!("{}\n", lock_view::to_json(lock))).collect()
        } else {
            lock_view::table(&locks)
        };
        // A reader that stops reading is not a failure.
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(Exit::SUCCESS)
    })
}
