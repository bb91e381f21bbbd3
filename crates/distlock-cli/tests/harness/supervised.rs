//! `distlock run` on a lock that its environment controls, for the tests of supervision.
//!
//! - `LEASE_MS`: the lease; without it the lock has none.
//! - `RENEW_MS`: how long the lease is renewed; default: forever.
//! - `LOSE_MS`: when the lock is lost.
//! - `RELEASED`: the file that is written when the lock would be released: the time, in seconds of the boot clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use clap::Parser;
use distlock::{Clock, FencingToken, LossReason, Moment};
use distlock_cli::commands::run::{notes, run_held};
use distlock_cli::environment::Identity;
use distlock_cli::exit::{Exit, ExitCode};
use distlock_cli::flags::{Command, Flags};
use distlock_cli::hold::Hold;
use distlock_cli::plan::Plan;
use distlock_cli::signal_stream::Signals;

static START: LazyLock<Moment> = LazyLock::new(|| Clock::system().now());

struct FakeHold {
    lost_at: Moment,
    /// Nanoseconds after the start; zero without a lease.
    deadline: Arc<AtomicU64>,
}

impl FakeHold {
    fn new() -> FakeHold {
        let deadline = Arc::new(AtomicU64::new(0));
        if let Some(lease) = duration("LEASE_MS") {
            renew(&deadline, lease);
            let until = duration("RENEW_MS").map_or(Moment::NEVER, |limit| START.after(limit));
            let keeper = deadline.clone();
            std::thread::spawn(move || {
                while Clock::system().now().after(lease / 3) < until {
                    std::thread::sleep(lease / 3);
                    // As in the real keeper, an expired lease is not renewed.
                    if Clock::system().now().since(*START) < Duration::from_nanos(keeper.load(Ordering::SeqCst)) {
                        renew(&keeper, lease);
                    }
                }
            });
        }
        FakeHold { lost_at: duration("LOSE_MS").map_or(Moment::NEVER, |limit| START.after(limit)), deadline }
    }
}

fn renew(deadline: &AtomicU64, lease: Duration) {
    let end = Clock::system().now().after(lease).since(*START);
    deadline.store(u64::try_from(end.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
}

impl Hold for FakeHold {
    async fn lost(&self) -> LossReason {
        loop {
            let end = self.lost_at.min(self.deadline().unwrap_or(Moment::NEVER));
            if Clock::system().now() >= end {
                return if end == self.lost_at { LossReason::Revoked } else { LossReason::Expired };
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn is_lost(&self) -> bool {
        Clock::system().now() >= self.lost_at.min(self.deadline().unwrap_or(Moment::NEVER))
    }

    fn deadline(&self) -> Option<Moment> {
        let nanos = self.deadline.load(Ordering::SeqCst);
        (nanos > 0).then(|| START.after(Duration::from_nanos(nanos)))
    }
}

fn duration(name: &str) -> Option<Duration> {
    Some(Duration::from_millis(std::env::var(name).ok()?.parse().expect("a number of milliseconds")))
}

async fn run() -> Result<Exit, String> {
    let flags = Flags::try_parse().map_err(|error| error.to_string())?;
    let Command::Run(flags) = flags.command else { return Err("only run is here".into()) };
    let plan = Plan::new(&flags, None)?;
    let mut notes = notes(&flags)?;
    let mut signals = Signals::take_over().map_err(|error| error.to_string())?;
    LazyLock::force(&START);
    let hold = FakeHold::new();
    let ttl = duration("LEASE_MS");
    let identity = Identity {
        name: &plan.key,
        token: FencingToken::new(7),
        owner: "tester",
        ttl,
        slot: None,
        engine: "mem://secret:pw@x/",
    };
    let exit = run_held(&plan, &hold, &identity, &mut signals, &mut notes).await;
    if let Ok(path) = std::env::var("RELEASED") {
        std::fs::write(path, "released").map_err(|error| error.to_string())?;
    }
    Ok(exit)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match runtime.block_on(run()) {
        Ok(exit) => exit.leave(),
        Err(problem) => {
            eprintln!("{problem}");
            Exit::from(ExitCode::Usage).leave()
        }
    }
}
