//! `distlock show`: prints one lock with its holders and waiters.

use std::io::{self, Write};

use distlock::backend::LockInfo;

use crate::commands::{fail, with_engine};
use crate::exit::{Exit, ExitCode};
use crate::flags::Show;
use crate::{lock_view, plan};

pub(super) fn main(flags: &Show) -> Exit {
    let key = match plan::key(&flags.name) {
        Ok(key) => key,
        Err(problem) => return fail(ExitCode::Usage, problem),
    };
    with_engine(&flags.engine, &flags.output, async |engine| {
        let found = engine.locker.inspect().get(&key).await?;
        let lock = found.unwrap_or_else(|| LockInfo::new(key, None, Vec::new()));
        let text =
            if flags.output.json { format!("{}\n", lock_view::to_json(&lock)) } else { lock_view::details(&lock) };
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(Exit::SUCCESS)
    })
}
