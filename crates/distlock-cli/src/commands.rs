//! One file for each command.

mod acquire;
mod ask;
mod bench;
mod break_lock;
mod complete_name;
mod completions;
mod console;
mod doctor;
mod elect;
mod history;
mod hold;
mod holder;
mod ls;
mod man;
mod release;
mod renew;
pub mod run;
mod serve;
mod setup;
mod show;
mod verify;
mod watch;

use std::io::Write;

use clap::error::ErrorKind;
use distlock::{Config, Error};

use crate::advice::explain;
use crate::command_line;
use crate::engine::{Engine, Settings};
use crate::exit::{Exit, ExitCode};
use crate::flags::{self, Command, Flags};
use crate::help;
use crate::note::{Note, Notes};
use crate::progress;

/// Parses the command line and runs its command.
#[must_use]
pub fn main() -> Exit {
    let mut words = command_line::words();
    if words.get(1).is_some_and(|word| word == complete_name::COMMAND) {
        return complete_name::main(&words[2..]);
    }
    // Internal commands of `acquire` and `verify`: help, completions and manual pages do not list them.
    let is_holder = words.get(1).is_some_and(|word| word == holder::COMMAND);
    let is_worker = words.get(1).is_some_and(|word| word == verify::worker::COMMAND);
    if is_holder {
        words[1] = "acquire".into();
    }
    if is_worker {
        words[1] = "verify".into();
    }
    if words.len() < 2 {
        eprint_all(help::FIRST);
        return ExitCode::Usage.into();
    }
    match command_line::parse(words) {
        Ok(Flags { command: Command::Acquire(flags) }) if is_holder => holder::main(&flags),
        Ok(Flags { command: Command::Verify(flags) }) if is_worker => verify::worker::main(flags),
        Ok(flags) => {
            // Also without an engine: a typing error may be why there is none.
            for name in Config::unknown_vars() {
                Notes::default().say(&Note::UnknownVariable { name });
            }
            dispatch(flags.command)
        }
        Err(error) => refuse(&error),
    }
}

fn dispatch(command: Command) -> Exit {
    match command {
        Command::Run(flags) => run::main(&flags),
        Command::Elect(flags) => elect::main(flags),
        Command::Hold(flags) => hold::main(&flags),
        Command::Acquire(flags) => acquire::main(&flags),
        Command::Renew(flags) => renew::main(&flags),
        Command::Release(flags) => release::main(&flags),
        Command::Ls(flags) => ls::main(&flags),
        Command::Show(flags) => show::main(&flags),
        Command::Watch(flags) => watch::main(&flags),
        Command::History(flags) => history::main(&flags),
        Command::Ask(flags) => ask::main(&flags),
        Command::Break(flags) => break_lock::main(&flags),
        Command::Console(flags) => console::main(&flags),
        Command::Serve(flags) => serve::main(&flags),
        Command::Setup(flags) => setup::main(flags),
        Command::Doctor(flags) => doctor::main(flags),
        Command::Verify(flags) => verify::main(flags),
        Command::Bench(flags) => bench::main(flags),
        Command::Completions(flags) => completions::main(&flags),
        Command::Man(flags) => man::main(&flags),
    }
}

/// Prints help, the version or a usage error. Only the last is a failure.
fn refuse(error: &clap::Error) -> Exit {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            help::print(&text);
            Exit::SUCCESS
        }
        _ => {
            eprint_all(&text);
            ExitCode::Usage.into()
        }
    }
}

/// Writes to stderr. Nothing can be done when that fails.
fn eprint_all(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn fail(code: ExitCode, message: impl Into<String>) -> Exit {
    Notes::default().say(&Note::Failed { message: message.into() });
    code.into()
}

/// Runs a command's future on this thread, which must be the main thread.
fn block_on(work: impl Future<Output = Exit>) -> Exit {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => fail(ExitCode::Internal, format!("cannot start: {error}")),
    }
}

/// Opens the engine and runs `work` with it. Prints an error and returns its exit code.
fn with_engine(
    flags: &flags::Engine,
    output: &flags::Output,
    work: impl AsyncFnOnce(&Engine) -> Result<Exit, Error>,
) -> Exit {
    let mut notes = Notes::new(output.into(), output.json);
    block_on(async {
        let done = async {
            let settings = Settings::read(flags)?;
            let engine = progress::watched(&mut notes, settings.connecting(), settings.open()).await?;
            let done = work(&engine).await;
            engine.finish().await;
            done
        };
        done.await.unwrap_or_else(|error| {
            notes.say(&Note::Failed { message: explain(&error) });
            ExitCode::from(&error).into()
        })
    })
}

/// As [`with_engine`], for work that is over when the engine has replied: on a terminal, a late reply is announced.
fn with_reply(
    flags: &flags::Engine,
    output: &flags::Output,
    work: impl AsyncFnOnce(&Engine) -> Result<Exit, Error>,
) -> Exit {
    with_engine(flags, output, async |engine| {
        let mut notes = Notes::new(output.into(), output.json);
        progress::watched(&mut notes, engine.answering(), work(engine)).await
    })
}
