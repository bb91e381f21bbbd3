//! `distlock ask`: asks the holder of a lock to release it.

use crate::commands::{fail, with_engine};
use crate::exit::{Exit, ExitCode};
use crate::flags::Ask;
use crate::note::{Note, Notes};
use crate::plan;
use crate::progress;

pub(super) fn main(flags: &Ask) -> Exit {
    let key = match plan::key(&flags.name) {
        Ok(key) => key,
        Err(problem) => return fail(ExitCode::Usage, problem),
    };
    with_engine(&flags.engine, &flags.output, async |engine| {
        let request = engine.locker.ask(&key, flags.reason.as_str());
        let asked = async {
            match flags.wait {
                Some(most) => request.wait(most).await,
                None => request.await,
            }
        };
        let mut notes = Notes::new((&flags.output).into(), flags.output.json);
        let waiting = async { Note::Waiting { name: key.to_string(), holder: None } };
        let asked = progress::watched(&mut notes, waiting, asked).await;
        // Withdraws the request now, not when its lease ends.
        let _ = engine.locker.close().await;
        asked.map(|_| Exit::SUCCESS)
    })
}
