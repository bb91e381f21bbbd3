//! `distlock show`: prints one lock with its holders and waiters.

use std::io::{self, Write};

use distlock::backend::LockInfo;
use distlock::{Error, ErrorKind};

use crate::commands::{fail, with_reply};
use crate::exit::{Exit, ExitCode};
use crate::flags::Show;
use crate::{lock_view, once, plan};

pub(super) fn main(flags: &Show) -> Exit {
    let key = match plan::key(&flags.name) {
        Ok(key) => key,
        Err(problem) => return fail(ExitCode::Usage, problem),
    };
    with_reply(&flags.engine, &flags.output, async |engine| {
        let inspect = engine.locker.inspect();
        let found = inspect.get(&key).await?;
        let ticks = unless_kept(inspect.ticks(&key).await)?;
        let lock = found.unwrap_or_else(|| LockInfo::new(key, None, Vec::new()));
        let text = if flags.output.json {
            format!("{}\n", lock_view::with_ticks(&lock, &ticks))
        } else {
            let ticks = ticks.iter().map(|note| format!("  {}\n", once::describe(note)));
            lock_view::details(&lock) + &ticks.collect::<String>()
        };
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(Exit::SUCCESS)
    })
}

/// Returns notes of ticks; none where the engine keeps none, or this user may not read them.
pub(super) fn unless_kept<T: Default>(notes: Result<T, Error>) -> Result<T, Error> {
    match notes {
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Auth) => Ok(T::default()),
        notes => notes,
    }
}
