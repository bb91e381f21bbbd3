//! `distlock acquire`: takes a lock that stays held after this program has ended.
//!
//! A background process holds the lock, since the kernel's locks end with their process; see `holder.rs`. The two
//! communicate over a socket pair. When this end is closed, the caller is gone and the lock is not wanted any more: so
//! the wait ends with this process, whatever ends it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use distlock::Key;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::acquire::{Refusal, interruption};
use crate::command_line;
use crate::commands::{block_on, fail, holder};
use crate::control_socket::read_line;
use crate::exit::{Exit, ExitCode};
use crate::flags::Acquire;
use crate::note::{Note, Notes};
use crate::plan;
use crate::progress;
use crate::report::{HeldReport, Report};
use crate::signal_stream::Signals;

/// How long the holder may take to give up its place in the queue after this process has ended the wait.
const WITHDRAWAL_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn main(flags: &Acquire) -> Exit {
    match plan::key(&flags.name) {
        Ok(key) => block_on(acquire(flags, &key)),
        Err(problem) => fail(ExitCode::Usage, problem),
    }
}

async fn acquire(flags: &Acquire, key: &Key) -> Exit {
    let mut notes = Notes::new((&flags.output).into(), flags.output.json);
    let started = async { Ok((Signals::take_over()?, start_holder()?)) };
    let (mut signals, mut holder) = match started.await {
        Ok(started) => started,
        Err(error) => return internal(&error, &mut notes),
    };
    let report = async {
        tokio::select! {
            line = read_line(&mut holder) => line.ok().and_then(|line| Report::decode(&line)),
            refusal = interruption(&mut signals) => Some(Report::Refused(refusal)),
        }
    };
    let waiting = async { Note::Waiting { name: key.to_string(), holder: None } };
    let report = progress::watched(&mut notes, waiting, report).await;
    match report {
        Some(Report::Held(held)) => finish(&held, key, flags, holder, &mut notes).await,
        Some(Report::Refused(refusal)) => {
            withdraw(holder).await;
            refusal.say(&mut notes)
        }
        None => internal(&io::Error::other("the background process ended without a report"), &mut notes),
    }
}

/// Prints the token, then confirms it to the holder: the holder does not keep a lock that no process can release.
async fn finish(held: &HeldReport, key: &Key, flags: &Acquire, mut holder: UnixStream, notes: &mut Notes) -> Exit {
    notes.say(&Note::Acquired { token: held.token.fencing, waited: held.waited });
    let confirmed = match print(held, key, flags.output.json) {
        Ok(()) => holder.write_all(b"\n").await,
        Err(error) => Err(error),
    };
    match confirmed {
        Ok(()) => Exit::SUCCESS,
        Err(error) => {
            withdraw(holder).await;
            internal(&error, notes)
        }
    }
}

/// Waits until the holder is gone, so that no process is left when this one ends.
async fn withdraw(mut holder: UnixStream) {
    let gone = async {
        let _ = holder.shutdown().await;
        while read_line(&mut holder).await.is_ok_and(|line| !line.is_empty()) {}
    };
    let _ = timeout(WITHDRAWAL_LIMIT, gone).await;
}

fn print(held: &HeldReport, key: &Key, as_json: bool) -> io::Result<()> {
    let HeldReport { token, owner, engine, slot, ttl, .. } = held;
    let line = if as_json {
        let (name, fencing) = (key.as_str(), token.fencing.to_string());
        json!({
            "name": name,
            "token": token.to_string(),
            "fencing_token": fencing,
            "owner": owner,
            "engine": engine,
            "slot": slot,
            "ttl_s": ttl.as_secs_f64(),
        })
        .to_string()
    } else {
        token.to_string()
    };
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// Starts this program again in the background, with the same arguments after the command's name.
fn start_holder() -> io::Result<UnixStream> {
    let (ours, theirs) = Pair::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("distlock").arg(holder::COMMAND);
    command.args(command_line::words().into_iter().skip(2));
    // The shell that reads this program's output must not wait for the holder to close it.
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()?;
    // Closes this process's copy of the holder's end: otherwise the end of the holder would not show.
    drop(command);
    ours.set_nonblocking(true)?;
    UnixStream::from_std(ours)
}

fn internal(error: &io::Error, notes: &mut Notes) -> Exit {
    let message = Some(format!("cannot hold the lock in the background: {error}"));
    Refusal { exit: ExitCode::Internal.into(), message }.say(notes)
}
