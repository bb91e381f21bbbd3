//! One worker of `verify`: a process that takes the lock again and again, and tells its parent what it believes.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock::{AttemptId, Clock};

use crate::commands::with_engine;
use crate::exit::Exit;
use crate::flags::Verify;

/// How long a worker stays inside, at most.
const INSIDE: Duration = Duration::from_millis(10);

/// The word that starts one, which help and manual pages do not show.
pub(crate) const COMMAND: &str = "verify-worker";

/// Works until its input ends.
pub(crate) fn main(mut flags: Verify) -> Exit {
    flags.engine.url = flags.target.take().or(flags.engine.url);
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    with_engine(&flags.engine, &flags.output, async |engine| {
        let clock = Clock::system();
        while !stop.load(Ordering::Relaxed) {
            say("asked", clock.now().as_nanos(), 0);
            let asking = engine.locker.lock(super::NAME).ttl(flags.ttl).wait(Duration::from_secs(1)).await;
            let guard = match asking {
                Ok(guard) => guard,
                // Also a server that is away for a while: the others go on, and so does this one.
                Err(error) if error.is_retryable() || error.kind() == distlock::ErrorKind::Timeout => continue,
                Err(error) => return Err(error),
            };
            say("entered", clock.now().as_nanos(), guard.fencing_token().get());
            tokio::time::sleep(INSIDE.mul_f64(random())).await;
            let now = clock.now();
            // One that was stopped inside believed in its lock until the deadline, and not when it woke up.
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
    // A parent that is gone has closed our input too.
    let _ = writeln!(stdout, "{what} {at} {token}").and_then(|()| stdout.flush());
}

/// From 0 to 1.
fn random() -> f64 {
    let id = AttemptId::random().to_string();
    f64::from(u32::from_str_radix(&id[..8], 16).unwrap_or(0)) / f64::from(u32::MAX)
}
