//! `distlock ls`: lists locks, their holders and waiters.

use std::collections::BTreeMap;
use std::io::{self, Write};

use distlock::backend::{LockInfo, LockTicks};
use distlock::{Key, TickNote};

use crate::commands::show::unless_kept;
use crate::commands::with_reply;
use crate::exit::Exit;
use crate::flags::Ls;
use crate::lock_view;

pub(super) fn main(flags: &Ls) -> Exit {
    with_reply(&flags.engine, &flags.output, async |engine| {
        let inspect = engine.locker.inspect();
        let locks = inspect.list(&flags.prefix).await?;
        let text = if flags.output.json {
            let ticks = unless_kept(inspect.list_ticks(&flags.prefix).await)?;
            all(locks, ticks).map(|(lock, ticks)| format!("{}\n", lock_view::with_ticks(&lock, &ticks))).collect()
        } else {
            lock_view::table(&locks)
        };
        // A reader that stops reading is not a failure.
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(Exit::SUCCESS)
    })
}

/// Returns all locks with the notes of their ticks. A lock with notes alone is free.
fn all(locks: Vec<LockInfo>, ticks: Vec<LockTicks>) -> impl Iterator<Item = (LockInfo, Vec<TickNote>)> {
    let mut all: BTreeMap<Key, (Option<LockInfo>, Vec<TickNote>)> = BTreeMap::new();
    for lock in locks {
        all.insert(lock.key.clone(), (Some(lock), Vec::new()));
    }
    ticks.into_iter().for_each(|(key, notes)| all.entry(key).or_default().1 = notes);
    all.into_iter().map(|(key, (lock, ticks))| (lock.unwrap_or_else(|| LockInfo::new(key, None, Vec::new())), ticks))
}
