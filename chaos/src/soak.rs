//! A long run with many locks and a server that is restarted regularly, to detect growth of memory, threads, files and
//! keys.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use distlock::Locker;
use distlock_testkit::servers::{Data, Directory, Process, RedisServer};

use distlock_testkit::Dice;

/// The number of locks, and of processes that take them.
const LOCKS: usize = 1000;
const PROCESSES: usize = 8;
const TTL: Duration = Duration::from_secs(2);
/// The number of samples of a run.
const LOOKS: u32 = 24;
/// The server is restarted after this many samples.
const RESTART_EVERY: u32 = 4;

/// One sample of all processes and the server.
#[derive(Debug, Clone, Copy, Default)]
struct Look([u64; 6]);

/// The sampled figures, each with its normal variation.
const FIGURES: [(&str, u64); 6] = [
    ("memory, MB", 16),
    ("threads", 4),
    ("tasks", 40),
    ("descriptors", 16),
    ("connections", 8),
    ("keys but fences", 300),
];

/// Runs for `time` and prints the samples; returns whether all figures stayed flat.
///
/// # Panics
/// When the server or a worker cannot be started, or a worker ends.
#[must_use]
pub fn soak(program: &Path, time: Duration) -> bool {
    let directory = Directory::new();
    // The append-only file grows fast, and would take long to load at a restart.
    let mut server = RedisServer::options().persistent().config("auto-aof-rewrite-min-size 4mb").start();
    let mut workers: Vec<Process> =
        (0..PROCESSES).map(|number| start(program, &server, directory.path(), number)).collect();
    let (start, mut looks) = (Instant::now(), Vec::new());
    println!("{:>8}{}", "s", row(FIGURES.map(|(name, _)| name)));
    for number in 1..=LOOKS {
        thread::sleep((time * number / LOOKS).saturating_sub(start.elapsed()));
        for worker in &mut workers {
            assert!(worker.ended().is_none(), "a worker ended: {}", worker.log());
        }
        let look = look(&workers, &server, directory.path());
        let is_restarted = number % RESTART_EVERY == 0;
        let note = if is_restarted { "  then restarted" } else { "" };
        println!("{:>8}{}{note}", start.elapsed().as_secs(), row(look.0));
        looks.push(look);
        if is_restarted {
            server.restart(Data::Kept);
        }
    }
    let grown = grown(&looks);
    println!("{}", if grown.is_empty() { "flat".to_owned() } else { format!("GROWS: {}", grown.join(", ")) });
    grown.is_empty()
}

fn row<T: Display>(cells: [T; 6]) -> String {
    cells.map(|cell| format!("{cell:>18}")).concat()
}

fn start(program: &Path, server: &RedisServer, directory: &Path, number: usize) -> Process {
    let log = directory.join(format!("log-{number}"));
    let started = Process::start(program, &log, |command| {
        let tasks = directory.join(format!("tasks-{number}"));
        command.args(["soak-worker", &server.url(), &number.to_string()]).arg(tasks);
    });
    started.expect("our own program starts")
}

fn look(workers: &[Process], server: &RedisServer, directory: &Path) -> Look {
    let sum = |figure: &dyn Fn(u32) -> u64| workers.iter().map(|worker| figure(worker.pid())).sum::<u64>();
    let tasks = (0..PROCESSES).map(|number| number_in(&directory.join(format!("tasks-{number}")))).sum();
    let keys = server.command(&["KEYS", "*"]);
    let keys = keys.array().iter().filter(|key| !key.to_string().ends_with(":f")).count() as u64;
    let clients = server.info("clients", "connected_clients").and_then(|text| text.parse().ok()).unwrap_or(0);
    Look([
        sum(&|pid| status(pid, "VmRSS:")) / 1024,
        sum(&|pid| status(pid, "Threads:")),
        tasks,
        sum(&|pid| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64)),
        clients,
        keys,
    ])
}

fn status(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    value.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

fn number_in(file: &Path) -> u64 {
    fs::read_to_string(file).unwrap_or_default().trim().parse().unwrap_or(0)
}

/// Returns the figures that were higher in the last third than in the second, by more than a tenth and the normal
/// variation. The first third is for warming up.
fn grown(looks: &[Look]) -> Vec<&'static str> {
    let third = looks.len() / 3;
    let most = |looks: &[Look], figure: usize| looks.iter().map(|look| look.0[figure]).max().unwrap_or(0);
    let grows = |(figure, (name, slack)): (usize, &(&'static str, u64))| {
        let (before, last) = (most(&looks[third..2 * third], figure), most(&looks[2 * third..], figure));
        (last > before + before / 10 + slack).then_some(*name)
    };
    FIGURES.iter().enumerate().filter_map(grows).collect()
}

/// A process of the run: takes locks until it is killed.
///
/// # Errors
/// When its arguments are invalid, or the engine cannot be reached at first.
pub fn worker(words: &[String]) -> Result<(), String> {
    let [url, number, tasks] = words else { return Err("a worker is started by the runner".into()) };
    let number: u64 = number.parse().map_err(|error| format!("{number}: {error}"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let locker = Locker::connect(url).await.map_err(|error| error.to_string())?;
        for task in 0..LOCKS / PROCESSES {
            tokio::spawn(take(locker.clone(), Dice::new(number << 32 | task as u64)));
        }
        loop {
            let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
            // Renamed into place, so that the runner never reads half a number.
            let written = fs::write(format!("{tasks}.new"), alive.to_string());
            written.and_then(|()| fs::rename(format!("{tasks}.new"), tasks)).map_err(|error| error.to_string())?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
}

/// Takes random locks for up to two seconds each, for ever. Some guards are unlocked, some dropped, some waits given
/// up.
async fn take(locker: Locker, mut dice: Dice) {
    loop {
        let name = format!("soak{}", dice.below(LOCKS));
        let asked = locker.lock(name.as_str()).ttl(TTL).wait(dice.millis(100..3000)).await;
        let stay = dice.millis(10..2000);
        tokio::time::sleep(stay).await;
        match asked {
            Ok(guard) if dice.percent(80) => drop(guard.unlock().await),
            other => drop(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_figures_are_named_and_fluctuating_ones_are_not() {
        let looks = |last: u64| -> Vec<Look> {
            (0..9).map(|at| Look([100, 10, 10, 10, if at < 6 { 20 } else { last }, 5])).collect()
        };
        assert_eq!(grown(&looks(28)), [""; 0]);
        assert_eq!(grown(&looks(60)), ["connections"]);
    }
}
