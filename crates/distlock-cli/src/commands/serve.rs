//! `distlock serve`: serves locks over HTTP until a signal.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use distlock::backend::file::default_dir;
use distlock::{DEFAULT_TTL, Error, ErrorKind, Locker};
use distlock_console::{AccessToken, Refused};
use distlock_serve::{Daemon, Listen, LogLine, News, Options, Place};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::advice::{RESTART, explain};
use crate::commands::block_on;
use crate::commands::run::ends_waiting;
use crate::engine::Settings;
use crate::exit::{Exit, ExitCode};
use crate::flags;
use crate::note::{Level, Note, Notes};
use crate::progress;
use crate::signal_stream::Signals;
use crate::sys;

/// The socket's name in the lock directory.
const SOCKET_NAME: &str = "serve.sock";

pub(super) fn main(flags: &flags::Serve) -> Exit {
    let notes = Arc::new(Mutex::new(Notes::new((&flags.output).into(), flags.output.json)));
    block_on(async {
        serve(flags, &notes).await.unwrap_or_else(|error| {
            say(&notes, &Note::Failed { message: explain(&error) });
            ExitCode::from(&error).into()
        })
    })
}

async fn serve(flags: &flags::Serve, notes: &Arc<Mutex<Notes>>) -> Result<Exit, Error> {
    let settings = Settings::read(&flags.engine)?;
    let token = flags.token_file.as_deref().map_or_else(|| Ok(AccessToken::random()), AccessToken::from_file);
    let token = token.map_err(|problem| refused(&problem))?;
    let listen = listen(flags)?;
    // Before the engine is opened: a signal would end the process through a thread that does not block it.
    let mut signals = Signals::take_over().map_err(|error| cannot(&error))?;
    allow_many_descriptors();
    let news = News::default();
    let opening = settings.open_with(Locker::builder().observer(news.clone()));
    let mut until_open = Notes::new((&flags.output).into(), flags.output.json);
    let engine = progress::watched(&mut until_open, settings.connecting(), opening).await?;
    let log = notes.clone();
    let options = Options {
        listen,
        token: token.clone(),
        hosts: flags.hosts.clone(),
        tls: flags.tls_cert.clone().zip(flags.tls_key.clone()),
        insecure_listen: flags.insecure_listen,
        default_ttl: settings.config.default_ttl.filter(|ttl| !ttl.is_zero()).unwrap_or(DEFAULT_TTL),
        log: Arc::new(move |line| say(&log, &note(line))),
        is_verbose: Level::from(&flags.output) == Level::Verbose,
    };
    let daemon = Daemon::bind(engine.locker.clone(), news, options).await.map_err(|problem| refused(&problem))?;
    print(daemon.place(), flags, &token, &engine.name);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let watch_signals = async move {
        let mut stop = Some(stop);
        // An error of the descriptor ends the daemon: it must not run without signals.
        while signals.next().await.is_ok_and(|delivery| !ends_waiting(delivery.signal) || stop.take().is_some()) {}
        // The second signal. Nothing is dropped: that would release locks before the deadlines of their clients.
        Exit::SUCCESS.leave()
    };
    let stopped = async {
        // The first signal drops the sender.
        let _ = stopped.await;
    };
    tokio::select! {
        () = daemon.serve(stopped) => {}
        () = watch_signals => {}
    }
    Ok(Exit::SUCCESS)
}

fn listen(flags: &flags::Serve) -> Result<Listen, Error> {
    if let Some(socket) = sys::activated_socket().map_err(|error| cannot(&error))? {
        if flags.socket.is_some() || flags.listen.is_some() {
            let message = "the service manager has opened a socket; leave --socket and --listen out";
            return Err(Error::new(ErrorKind::Config, message));
        }
        return Ok(Listen::Opened(socket));
    }
    Ok(match (&flags.socket, flags.listen) {
        (_, Some(address)) => Listen::Address(address),
        (Some(path), None) => Listen::Socket(path.clone()),
        (None, None) => Listen::Socket(default_socket()?),
    })
}

fn default_socket() -> Result<PathBuf, Error> {
    Ok(default_dir()?.join(SOCKET_NAME))
}

/// Raises the soft limit of open files: every client with a stream is one.
fn allow_many_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Fewer clients fit if it fails.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Prints on stdout where clients connect. A token from a file is not printed.
fn print(place: &Place, flags: &flags::Serve, token: &AccessToken, engine: &str) {
    let (field, text) = match place {
        Place::Socket(path) => ("socket", path.display().to_string()),
        Place::Url(url) if flags.token_file.is_some() => ("url", url.clone()),
        Place::Url(url) => ("url", format!("{url}#token={}", token.reveal())),
    };
    let line = if flags.output.json { json!({field: text, "engine": engine}).to_string() } else { text };
    let mut stdout = io::stdout();
    // A write error does not end the daemon.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

fn note(line: &LogLine) -> Note {
    let LogLine { client, lock, message } = line.clone();
    Note::Served { client, lock, message }
}

fn say(notes: &Mutex<Notes>, note: &Note) {
    notes.lock().unwrap_or_else(PoisonError::into_inner).say(note);
}

fn refused(problem: &Refused) -> Error {
    Error::new(ErrorKind::Config, problem.to_string())
}

fn cannot(problem: &io::Error) -> Error {
    Error::new(ErrorKind::Backend, format!("the daemon failed: {problem}")).with_help(RESTART)
}
