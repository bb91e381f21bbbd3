//! One file for each command.

mod completions;
mod man;
pub mod run;

use clap::Parser;
use clap::error::ErrorKind;

use crate::exit::{Exit, ExitCode};
use crate::flags::{Command, Flags};
use crate::note::{Note, Notes};

/// Does what the command line says.
#[must_use]
pub fn main() -> Exit {
    match Flags::try_parse() {
        Ok(flags) => dispatch(flags.command),
        Err(error) => refuse(&error),
    }
}

fn dispatch(command: Command) -> Exit {
    match command {
        Command::Run(flags) => run::main(&flags),
        Command::Completions(flags) => completions::main(&flags),
        Command::Man(flags) => man::main(&flags),
        // Until the library's lockers are here.
        _ => fail(ExitCode::Internal, "this command is not there yet"),
    }
}

/// Help and version are answers; everything else is a usage error.
fn refuse(error: &clap::Error) -> Exit {
    // Nobody is left to tell when this cannot be printed.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::SUCCESS,
        _ => ExitCode::Usage.into(),
    }
}

fn fail(code: ExitCode, message: impl Into<String>) -> Exit {
    Notes::default().say(&Note::Failed { message: message.into() });
    code.into()
}
