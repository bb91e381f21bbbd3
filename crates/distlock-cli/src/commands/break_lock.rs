//! `distlock break`: releases another owner's lock by force.

use distlock::{ErrorKind, FencingToken};

use crate::commands::{fail, with_reply};
use crate::exit::{Exit, ExitCode};
use crate::flags::Break;
use crate::note::{Note, Notes};
use crate::plan;

pub(super) fn main(flags: &Break) -> Exit {
    let key = match plan::key(&flags.name) {
        Ok(key) => key,
        Err(problem) => return fail(ExitCode::Usage, problem),
    };
    with_reply(&flags.engine, &flags.output, async |engine| {
        let mut notes = Notes::new((&flags.output).into(), flags.output.json);
        let token = FencingToken::new(flags.if_token);
        match engine.locker.inspect().force_release(&key, token, &flags.reason).await {
            Ok(()) => {
                notes.say(&Note::Broken { token });
                Ok(Exit::SUCCESS)
            }
            // Another hold has the lock by now: as with a lock held by another owner, nothing was done.
            Err(error) if error.kind() == ErrorKind::NotHeld => {
                let next = "`distlock show` tells who holds it now";
                let error = if error.help().is_none() { error.with_help(next) } else { error };
                notes.say(&Note::Failed { message: error.to_string() });
                Ok(ExitCode::NotAcquired.into())
            }
            Err(error) => Err(error),
        }
    })
}
