//! `distlock hold`: holds a lock until a signal or the end of stdin.

use std::io::{self, Write};

use distlock::{Key, LockGuard};
use serde_json::json;

use crate::acquire::{Wanted, acquire, refused};
use crate::advice::{RESTART, explain};
use crate::commands::run::ends_waiting;
use crate::commands::{block_on, fail};
use crate::engine::{Engine, Settings};
use crate::exit::{Exit, ExitCode};
use crate::flags::Hold;
use crate::input;
use crate::note::{Note, Notes};
use crate::plan::{self, Wait};
use crate::progress;
use crate::signal_stream::Signals;

pub(super) fn main(flags: &Hold) -> Exit {
    match plan::key(&flags.name) {
        Ok(key) => block_on(hold(flags, &key)),
        Err(problem) => fail(ExitCode::Usage, problem),
    }
}

async fn hold(flags: &Hold, key: &Key) -> Exit {
    let mut notes = Notes::new((&flags.output).into(), flags.output.json);
    let opened = async {
        let settings = Settings::read(&flags.engine)?;
        let signals = Signals::take_over().map_err(|error| cannot_listen(&error))?;
        let ttl = plan::ttl(flags.lock.ttl, settings.config.default_ttl);
        let engine = progress::watched(&mut notes, settings.connecting(), settings.open()).await?;
        Ok((engine, signals, ttl))
    };
    let (engine, mut signals, ttl) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return refused(&error, &flags.lock, &mut notes),
    };
    let wait = Wait::from(&flags.lock);
    let wanted = Wanted { key, ttl, wait, flags: &flags.lock, purpose: "distlock hold" };
    let guard = match acquire(&engine, &wanted, &mut signals, &mut notes).await {
        Ok(guard) => guard,
        Err(exit) => return exit,
    };
    print(&guard, &engine, flags.output.json);
    let end = wait_for_end(&guard, &mut signals, &mut notes).await;
    let released = async {
        let released = guard.unlock().await;
        engine.finish().await;
        released
    };
    let released = progress::watched(&mut notes, engine.releasing(), released).await;
    match released {
        Ok(()) => notes.say(&Note::Released),
        Err(_) if end == ExitCode::Lost.into() => {}
        Err(error) => {
            notes.say(&Note::Failed { message: explain(&error) });
            return ExitCode::from(&error).into();
        }
    }
    end
}

fn cannot_listen(error: &io::Error) -> distlock::Error {
    distlock::Error::new(distlock::ErrorKind::Backend, format!("cannot wait for signals: {error}")).with_help(RESTART)
}

/// Prints the hold on stdout, for the script that reads it.
fn print(guard: &LockGuard, engine: &Engine, as_json: bool) {
    let (name, token, owner) = (guard.key(), guard.fencing_token(), guard.owner());
    let line = if as_json {
        let (name, owner) = (name.as_str(), owner.as_str());
        let (mode, slot) = (guard.mode(), guard.slot());
        json!({
            "name": name,
            "token": token.to_string(),
            "owner": owner,
            "mode": mode,
            "slot": slot,
            "engine": engine.name,
        })
        .to_string()
    } else {
        let slot = guard.slot().map(|slot| format!(" slot {slot}")).unwrap_or_default();
        format!("{name} token {token} owner {owner}{slot}")
    };
    let mut stdout = io::stdout();
    // A write error does not end the hold.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Waits for a signal, the end of stdin, or a loss.
async fn wait_for_end(guard: &LockGuard, signals: &mut Signals, notes: &mut Notes) -> Exit {
    let mut stdin = input::end();
    loop {
        tokio::select! {
            delivery = signals.next() => match delivery {
                Ok(delivery) if ends_waiting(delivery.signal) => return Exit::SUCCESS,
                Ok(_) => {}
                Err(_) => return ExitCode::Internal.into(),
            },
            _ = &mut stdin => return Exit::SUCCESS,
            reason = guard.lost() => {
                notes.say(&Note::Lost { reason });
                return ExitCode::Lost.into();
            }
        }
    }
}
