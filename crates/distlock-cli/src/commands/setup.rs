//! `distlock setup`: prepares the servers of an engine that needs it.

use std::io::{self, Write as _};

use crate::advice::explain;
use crate::commands::{block_on, fail};
use crate::engine::Settings;
use crate::exit::{Exit, ExitCode};
use crate::flags::Setup;
use crate::note::Notes;
use crate::progress;

pub(super) fn main(mut flags: Setup) -> Exit {
    flags.engine.url = flags.target.take().or(flags.engine.url);
    block_on(async {
        let settings = match Settings::read(&flags.engine) {
            Ok(settings) => settings,
            Err(error) => return fail(ExitCode::from(&error), explain(&error)),
        };
        let done = match flags.print {
            true => settings.setup_sql().map(|sql| sql.unwrap_or_default()),
            false => {
                let mut notes = Notes::new((&flags.output).into(), flags.output.json);
                let is_needed = progress::watched(&mut notes, settings.connecting(), settings.set_up()).await;
                is_needed.map(|is_needed| match is_needed {
                    true => "ready for locks\n".into(),
                    false => "this engine needs no preparation\n".into(),
                })
            }
        };
        match done {
            Ok(text) if flags.print || !flags.output.quiet => {
                let _ = io::stdout().write_all(text.as_bytes());
                Exit::SUCCESS
            }
            Ok(_) => Exit::SUCCESS,
            Err(error) => fail(ExitCode::from(&error), explain(&error)),
        }
    })
}
