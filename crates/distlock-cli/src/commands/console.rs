//! `distlock console`: serves the web console until a signal.

use std::io::{self, Write};

use distlock::{Error, ErrorKind};
use distlock_console::{AccessToken, Console, DEFAULT_LISTEN, Options, Refused};
use serde_json::json;

use crate::advice::{RESTART, explain};
use crate::commands::block_on;
use crate::commands::run::ends_waiting;
use crate::engine::Settings;
use crate::exit::{Exit, ExitCode};
use crate::flags;
use crate::note::{Note, Notes};
use crate::progress;
use crate::signal_stream::Signals;

pub(super) fn main(flags: &flags::Console) -> Exit {
    let mut notes = Notes::new((&flags.output).into(), flags.output.json);
    block_on(async {
        serve(flags, &mut notes).await.unwrap_or_else(|error| {
            notes.say(&Note::Failed { message: explain(&error) });
            ExitCode::from(&error).into()
        })
    })
}

async fn serve(flags: &flags::Console, notes: &mut Notes) -> Result<Exit, Error> {
    let settings = Settings::read(&flags.engine)?;
    let options = options(flags).map_err(|problem| refused(&problem))?;
    // Before the engine is opened: a signal would end the process through a thread that does not block it.
    let mut signals = Signals::take_over().map_err(|error| cannot(&error))?;
    let engine = progress::watched(notes, settings.connecting(), settings.open()).await?;
    let console = Console::bind(engine.locker.clone(), &engine.name, options).await;
    let console = console.map_err(|problem| refused(&problem))?;
    print(&console, flags, &engine.name);
    let stop = async {
        // An error of the descriptor ends the console: it must not run without signals.
        while signals.next().await.is_ok_and(|delivery| !ends_waiting(delivery.signal)) {}
    };
    console.serve(stop).await.map_err(|error| cannot(&error))?;
    Ok(Exit::SUCCESS)
}

fn options(flags: &flags::Console) -> Result<Options, Refused> {
    let token = flags.token_file.as_deref().map_or_else(|| Ok(AccessToken::random()), AccessToken::from_file)?;
    Ok(Options {
        listen: flags.listen.unwrap_or(DEFAULT_LISTEN),
        hosts: flags.hosts.clone(),
        read_only: flags.read_only,
        audit_file: flags.audit_file.clone(),
        tls: flags.tls_cert.clone().zip(flags.tls_key.clone()),
        insecure_listen: flags.insecure_listen,
        ..Options::new(token)
    })
}

/// Prints the URL on stdout. A token from a file is not printed.
fn print(console: &Console, flags: &flags::Console, engine: &str) {
    let url = if flags.token_file.is_some() { console.url() } else { console.url_with_token() };
    let line = if flags.output.json {
        json!({"url": url, "engine": engine, "read_only": flags.read_only}).to_string()
    } else {
        url
    };
    let mut stdout = io::stdout();
    // A write error does not end the console.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

fn refused(problem: &Refused) -> Error {
    Error::new(ErrorKind::Config, problem.to_string())
}

fn cannot(problem: &io::Error) -> Error {
    Error::new(ErrorKind::Backend, format!("the console failed: {problem}")).with_help(RESTART)
}
