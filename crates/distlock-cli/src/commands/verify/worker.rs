//! One worker of `verify`: a process that takes the lock repeatedly and reports its holds to its parent.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock::{AttemptId, Clock};

use crate::commands::with_engine;
use crate::exit::Exit;
use crate::flags::Verify;

/// How long a worker holds the lock, at most.
const MAX_HOLD: Duration = Duration::from_millis(10);

/// The internal command that starts a worker; help and manual pages do not list it.
pub(crate) const COMMAND: &str = "verify-worker";

/// Takes the lock until stdin ends.
pub(crate) fn main(mut flags: Verify) -> Exit {
    flags.engine.url = flags.target.take().or(flags.engine.url);
    let stop = Arc::new(AtomicBool::new(false));
    let stdin_ended = stop.clone();
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        stdin_ended.store(true, Ordering::Relaxed);
    });
    with_engine(&flags.engine, &flags.output, async |engine| {
        let clock = Clock::system();
        while !stop.load(Ordering::Relaxed) {
            say("asked", clock.now().as_nanos(), 0);
            let asking = engine.locker.lock(super::NAME).ttl(flags.ttl).wait(Duration::from_secs(1)).await;
            let guard = match asking {
                Ok(guard) => guard,
                // Also an unreachable server: the worker continues, like the others.
                Err(error) if error.is_retryable() || error.kind() == distlock::ErrorKind::Timeout => continue,
                Err(error) => return Err(error),
            };
            say("entered", clock.now().as_nanos(), guard.fencing_token().get());
            tokio::time::sleep(MAX_HOLD.mul_f64(random())).await;
            let now = clock.now();
            // A worker that was stopped while holding could rely on its lock until the deadline, not until it was
            // continued.
            let until = if guard.is_lost() { guard.deadline().unwrap_or(now).min(now) } else { now };
            say("left", until.as_nanos(), 0);
            let _ = guard.unlock().await;
        }
        engine.locker.close().await?;
        Ok(Exit::SUCCESS)
    })
}

fn say(what: &str, at: u64, token: u64) {
    let mut stdout = io::stdout();
    // When the parent is gone, stdin has ended too.
    let _ = writeln!(stdout, "{what} {at} {token}").and_then(|()| stdout.flush());
}

/// Returns a number from 0 to 1.
fn random() -> f64 {
    let id = AttemptId::random().to_string();
    f64::from(u32::from_str_radix(&id[..8], 16).unwrap_or(0)) / f64::from(u32::MAX)
}
