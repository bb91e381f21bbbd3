//! One measurement of one contestant.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::contestants::{Load, Programs};
use crate::histogram::Histogram;
use crate::monitor::Origins;
use crate::peer::TTL_MS;
use crate::process::{Failure, Worker};
use crate::servers::Servers;

/// The lease of the holder that is killed.
const KILLED_TTL_MS: u64 = 3_000;
/// How long a worker may take to connect and to take its locks.
const READY: Duration = Duration::from_secs(120);
/// How long a worker may take to reply, beside the measured time.
const REPLY: Duration = Duration::from_secs(20);
/// How long a waiter may take after the holder was killed.
const NEXT_GRANT: Duration = Duration::from_secs(20);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) rounds: usize,
    pub(crate) warm: Duration,
    pub(crate) measured: Duration,
    pub(crate) locks: usize,
    pub(crate) held_for: Duration,
}

impl Extent {
    pub(crate) const WHOLE: Extent = Extent {
        rounds: 3,
        warm: Duration::from_millis(500),
        measured: Duration::from_millis(1_500),
        locks: 10_000,
        held_for: Duration::from_secs(10),
    };
    pub(crate) const SHORT: Extent = Extent {
        rounds: 1,
        warm: Duration::from_millis(200),
        measured: Duration::from_millis(300),
        locks: 500,
        held_for: Duration::from_secs(4),
    };
}

/// What one measurement found, as `name=value`.
pub(crate) type Found = String;

/// Measures `contestant` once.
pub(crate) fn measure(
    contestant: &str,
    load: Load,
    servers: &Servers,
    programs: &Programs,
    extent: &Extent,
) -> Result<Found, Failure> {
    let bench = Bench { contestant, servers, programs, extent };
    match load {
        Load::Own { tasks } => bench.cycles(1, "own", tasks),
        Load::Shared { processes, tasks } => bench.cycles(processes, "shared", tasks),
        Load::Held => bench.held(),
        Load::Killed => bench.killed(),
    }
}

struct Bench<'a> {
    contestant: &'a str,
    servers: &'a Servers,
    programs: &'a Programs,
    extent: &'a Extent,
}

impl Bench<'_> {
    fn start(&self, order: &str, count: usize, key: &str, ttl_ms: u64) -> Result<Worker, Failure> {
        let words = [order.into(), count.to_string(), key.into(), ttl_ms.to_string(), self.servers.addresses()];
        Worker::start(self.contestant, &words, self.programs)
    }

    fn cycles(&self, processes: usize, order: &str, tasks: usize) -> Result<Found, Failure> {
        let key = new_key();
        let start = |_| self.start(order, tasks, &key, TTL_MS);
        let mut workers: Vec<Worker> = (0..processes).map(start).collect::<Result<_, _>>()?;
        for worker in &workers {
            worker.expect("ready", READY)?;
        }
        let Extent { warm, measured, .. } = *self.extent;
        for worker in &mut workers {
            worker.say(&format!("go {} {}", warm.as_millis(), measured.as_millis()))?;
        }
        let begin = Instant::now() + warm;
        let origins = self.servers.origins(warm / 2);
        sleep_until(begin);
        let before = self.servers.read();
        // A little before the workers end: what they did not do must not count.
        sleep_until(begin + measured * 9 / 10);
        let (server_us, requests) = self.servers.read().since(&before, &origins, measured);
        let (mut histogram, mut handovers, mut client_us, mut rss_kb) = (Histogram::default(), 0, 0, 0);
        for worker in &workers {
            let said = worker.read_until("done", REPLY)?;
            let number = |name: &str| said.get(name).and_then(|text| text.parse::<u64>().ok()).ok_or("a number");
            histogram.add(&said.get("histogram").and_then(|text| text.parse().ok()).ok_or("a histogram")?);
            handovers += number("handovers")?;
            (client_us, rss_kb) = (client_us + number("cpu_us")?, rss_kb + number("rss_kb")?);
        }
        let mut found = format!("ops={} handovers={handovers} seconds={}", histogram.count(), measured.as_secs_f64());
        for (name, share) in [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("max_us", 1.0)] {
            let _ = write!(found, " {name}={:.1}", histogram.percentile_us(share));
        }
        let _ = write!(found, " requests={requests:.0} client_us={client_us} server_us={server_us:.0} rss_kb={rss_kb}");
        Ok(found)
    }

    fn held(&self) -> Result<Found, Failure> {
        let (key, Extent { locks, held_for, .. }) = (new_key(), *self.extent);
        let mut worker = self.start("keep", locks, &key, TTL_MS)?;
        worker.expect("ready", READY)?;
        let origins = self.settle();
        let (client_before, _) = look(&mut worker)?;
        let before = self.servers.read();
        std::thread::sleep(held_for);
        let (client_after, rss_kb) = look(&mut worker)?;
        let (server_us, requests) = self.servers.read().since(&before, &origins, held_for);
        let lost = locks - self.servers.held(&key, locks);
        let (seconds, client_us) = (held_for.as_secs_f64(), client_after - client_before);
        Ok(format!(
            "locks={locks} seconds={seconds} requests={requests:.0} client_us={client_us} server_us={server_us:.0} \
             rss_kb={rss_kb} lost={lost}"
        ))
    }

    /// Waits until the first renewals are over; returns which commands they are.
    fn settle(&self) -> Origins {
        self.servers.origins(self.extent.held_for.min(Duration::from_millis(TTL_MS / 3 + 500)))
    }

    /// Measures the time from the end of a killed holder's lease to the next grant.
    fn killed(&self) -> Result<Found, Failure> {
        let key = new_key();
        let mut holder = self.start("hold", 1, &key, KILLED_TTL_MS)?;
        let granted = nanoseconds(&holder.expect("held", READY)?)?;
        holder.kill();
        let waiter = self.start("wait", 1, &key, KILLED_TTL_MS)?;
        waiter.expect("ready", READY)?;
        let next = nanoseconds(&waiter.expect("held", NEXT_GRANT)?)?;
        let late_ms = (next as f64 - granted as f64) / 1e6 - KILLED_TTL_MS as f64;
        Ok(format!("late_ms={late_ms:.1}"))
    }
}

fn sleep_until(time: Instant) {
    std::thread::sleep(time.saturating_duration_since(Instant::now()));
}

fn look(worker: &mut Worker) -> Result<(u64, u64), Failure> {
    worker.say("look")?;
    let said = worker.read_until("done", REPLY)?;
    let number = |name: &str| said.get(name).and_then(|text| text.parse().ok()).ok_or("a number");
    Ok((number("cpu_us")?, number("rss_kb")?))
}

fn nanoseconds(text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| format!("{text:?} is not a time"))
}

/// Returns a lock's name that was not used before on these servers: no contestant cleans up after another.
fn new_key() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("peers{}", LAST.fetch_add(1, Ordering::Relaxed))
}
