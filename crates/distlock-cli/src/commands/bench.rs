//! `distlock bench`: how fast locks are on this engine, from this machine.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use distlock::{Error, Locker};
use serde_json::json;
use tokio::task::JoinSet;

use crate::commands::with_engine;
use crate::exit::Exit;
use crate::flags::Bench;
use crate::histogram::Histogram;

/// The locks' name, the same in every run: engines that keep a fencing counter per name keep few.
const NAME: &str = "distlock-bench";

/// The result of one measurement.
struct Part {
    name: &'static str,
    /// The number of operations, and how long they took.
    count: usize,
    took: Duration,
    times: Histogram,
}

pub(super) fn main(mut flags: Bench) -> Exit {
    flags.engine.url = flags.target.take().or(flags.engine.url);
    with_engine(&flags.engine, &flags.output, async |engine| {
        let say = |part: &Part| {
            let text = if flags.output.json { to_json(part) } else { to_text(part) };
            let _ = io::stdout().write_all(text.as_bytes());
        };
        let progress = |what: &str| {
            if !flags.output.json && !flags.output.quiet && io::stderr().is_terminal() {
                eprintln!("{what} …");
            }
        };
        progress("one task");
        say(&uncontended(&engine.locker, 1, flags.time).await?);
        progress("concurrent tasks, one lock each");
        say(&uncontended(&engine.locker, flags.tasks.into(), flags.time).await?);
        progress("concurrent tasks, one shared lock");
        say(&contended(&engine.locker, flags.tasks.into(), flags.time).await?);
        progress("many locks held");
        say(&held(&engine.locker, flags.holds.into()).await?);
        engine.locker.close().await?;
        Ok(Exit::SUCCESS)
    })
}

/// Each task takes and releases a lock of its own.
async fn uncontended(locker: &Locker, tasks: usize, time: Duration) -> Result<Part, Error> {
    let name = if tasks == 1 { "alone" } else { "uncontended" };
    let (took, times) = cycles(locker, tasks, time, |number| format!("{NAME}:{number}")).await?;
    Ok(Part { name, count: times.len(), took, times: Histogram::new(times) })
}

/// All tasks take and release the same lock; measures from the request to the grant.
async fn contended(locker: &Locker, tasks: usize, time: Duration) -> Result<Part, Error> {
    let (took, times) = cycles(locker, tasks, time, |_| NAME.to_owned()).await?;
    Ok(Part { name: "contended", count: times.len(), took, times: Histogram::new(times) })
}

/// Runs the tasks. A task alone with its lock measures the whole cycle, a contending one the wait.
async fn cycles(
    locker: &Locker,
    tasks: usize,
    time: Duration,
    name: impl Fn(usize) -> String,
) -> Result<(Duration, Vec<Duration>), Error> {
    let start = Instant::now();
    let mut running = JoinSet::new();
    for number in 0..tasks {
        let (locker, name) = (locker.clone(), name(number));
        running.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < time {
                let asked = Instant::now();
                let guard = locker.lock(&*name).await?;
                let got = asked.elapsed();
                guard.unlock().await?;
                times.push(if name == NAME { got } else { asked.elapsed() });
            }
            Ok::<_, Error>(times)
        });
    }
    let mut all = Vec::new();
    while let Some(times) = running.join_next().await {
        all.extend(times.map_err(|_| Error::unavailable("a task of the measurement failed"))??);
    }
    Ok((start.elapsed(), all))
}

/// Takes many locks and keeps them all through a renewal.
async fn held(locker: &Locker, count: usize) -> Result<Part, Error> {
    let ttl = Duration::from_secs(3);
    let start = Instant::now();
    let (mut guards, mut times) = (Vec::new(), Vec::new());
    for number in 0..count {
        let asked = Instant::now();
        guards.push(locker.lock(format!("{NAME}:{number}")).ttl(ttl).await?);
        times.push(asked.elapsed());
    }
    tokio::time::sleep(ttl).await;
    for guard in guards {
        guard.check()?;
        guard.unlock().await?;
    }
    Ok(Part { name: "held", count, took: start.elapsed(), times: Histogram::new(times) })
}

fn to_json(part: &Part) -> String {
    let mut fields = part.times.to_json();
    fields["part"] = json!(part.name);
    fields["took_s"] = json!(part.took.as_secs_f64());
    fields["per_second"] = json!(rate(part));
    format!("{fields}\n")
}

fn to_text(part: &Part) -> String {
    let what = match part.name {
        "contended" => "handoffs",
        "held" => "locks taken, held through a renewal and released",
        _ => "locks and unlocks",
    };
    let title = format!("{}: {} {what} in {:.1?}, {:.0}/s", part.name, part.count, part.took, rate(part));
    format!("{title}\n  {}\n{}\n", part.times.summary(), part.times.bars())
}

fn rate(part: &Part) -> f64 {
    part.count as f64 / part.took.as_secs_f64().max(1e-9)
}
