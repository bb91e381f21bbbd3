//! The worker: one process of one contestant.
//!
//! The protocol is the same in every language. The arguments are the contestant, the order, the number of tasks or
//! locks, the lock's name, the lease in milliseconds and the servers, separated by commas. The orders:
//!
//! - `own`, `shared`: connects, prints `ready`, and waits for the line `go WARM_MS MEASURE_MS`. Then each task takes
//!   and releases its lock in a loop: a lock of its own, or the one that all share. Each cycle that ends in the measured
//!   time counts. Its latency is that of lock and unlock together; for a shared lock, that of the grant alone. The
//!   holder of a shared lock writes the number of its task, eight bytes, into the file that `DISTLOCK_PEERS_FILE` names;
//!   where it finds another number it counts a handover. At the end the worker prints `cpu_us N`, `rss_kb N`,
//!   `handovers N`, `histogram BUCKET:COUNT …` and `done`.
//! - `keep`: takes so many locks and prints `ready`. Renews them until it is killed. At each line `look` it prints
//!   `cpu_us N`, `rss_kb N` and `done`.
//! - `hold`: takes the lock and prints `held NS`, the monotonic time of the grant; does nothing else until it is killed.
//! - `wait`: prints `ready`, takes the lock and prints `held NS`.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::clock;
use crate::floors::{EtcdPair, EtcdQueue, RedisPair, RedisQueue, RedlockPair};
use crate::histogram::Histogram;
use crate::last_holder::{self, LastHolder};
use crate::peer::Peer;
use crate::peers::{DistributedLock, Ours, Rslock};

/// How much longer than the measured time a task may take to end; it may be in the middle of a pause.
const LAST_CYCLE: Duration = Duration::from_secs(3);

/// The arguments of a worker.
struct Order<'a> {
    name: &'a str,
    count: usize,
    key: &'a str,
}

/// Runs the worker that the arguments describe.
pub(crate) fn run(words: &[&str]) -> ExitCode {
    let [contestant, name, count, key, ttl, servers] = words else {
        eprintln!("usage: worker CONTESTANT ORDER COUNT KEY TTL_MS SERVERS");
        return ExitCode::from(64);
    };
    let order = Order { name, count: count.parse().expect("a number"), key };
    let ttl = Duration::from_millis(ttl.parse().expect("milliseconds"));
    let servers: Vec<&str> = servers.split(',').collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match *contestant {
            "distlock" => serve(&order, Ours::redis(servers[0], ttl)).await,
            "distlock-redlock" => serve(&order, Ours::redlock(&servers, ttl)).await,
            "distlock-etcd" => serve(&order, Ours::etcd(servers[0], ttl)).await,
            "raw-redis" => serve(&order, RedisPair::connect(servers[0], ttl).await).await,
            "raw-queue" => serve(&order, RedisQueue::connect(servers[0], ttl).await).await,
            "raw-redlock" => serve(&order, RedlockPair::connect(&servers, ttl).await).await,
            "raw-etcd" => serve(&order, EtcdPair::connect(servers[0], ttl).await).await,
            "etcd-queue" => serve(&order, EtcdQueue::connect(servers[0], order.key, ttl).await).await,
            "rslock" | "rslock-redlock" => serve(&order, Rslock::new(&servers, ttl)).await,
            "distributed-lock" => serve(&order, DistributedLock::connect(servers[0], ttl).await).await,
            unknown => panic!("{unknown} is not a contestant"),
        }
    })
}

async fn serve<P: Peer>(order: &Order<'_>, peer: P) -> ExitCode {
    let peer = Arc::new(peer);
    match order.name {
        "own" | "shared" => cycle(order, peer).await,
        "keep" => keep(order, peer).await,
        "hold" => {
            let _guard = peer.lock(order.key).await;
            println!("held {}", clock::monotonic_ns());
            std::future::pending::<()>().await;
        }
        "wait" => {
            println!("ready");
            let guard = peer.lock(order.key).await;
            println!("held {}", clock::monotonic_ns());
            peer.unlock(guard).await;
        }
        unknown => panic!("{unknown} is not an order"),
    }
    ExitCode::SUCCESS
}

async fn cycle<P: Peer>(order: &Order<'_>, peer: Arc<P>) {
    // Opens the connection and loads the scripts.
    let guard = peer.lock(&format!("{}:first:{}", order.key, std::process::id())).await;
    peer.unlock(guard).await;
    println!("ready");
    let go = read_line();
    let times: Vec<u64> = go.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect();
    let (warm, measured) = (Duration::from_millis(times[0]), Duration::from_millis(times[1]));
    let begin = Instant::now() + warm;
    let end = begin + measured;
    let mut tasks = JoinSet::new();
    for number in 0..order.count {
        let is_shared = order.name == "shared";
        let key = if is_shared { order.key.to_owned() } else { format!("{}:{number}", order.key) };
        let (peer, last_holder) = (peer.for_task(), is_shared.then(LastHolder::open));
        tasks.spawn(async move {
            let (mut histogram, mut handovers) = (Histogram::default(), 0);
            loop {
                let asked = Instant::now();
                let guard = peer.lock(&key).await;
                let granted = Instant::now();
                let is_handover = last_holder.as_ref().is_some_and(|last| last.change(last_holder::holder(number)));
                peer.unlock(guard).await;
                let now = Instant::now();
                if now >= end {
                    return (histogram, handovers);
                }
                if now >= begin {
                    handovers += u64::from(is_handover);
                    histogram.record(if is_shared { granted - asked } else { now - asked });
                }
            }
        });
    }
    tokio::time::sleep_until(begin.into()).await;
    let before = clock::cpu_us();
    tokio::time::sleep_until(end.into()).await;
    println!("cpu_us {}\nrss_kb {}", clock::cpu_us() - before, rss_kb());
    let (mut total, mut handovers) = (Histogram::default(), 0);
    // A task that is not back by then waits for a lock that it gets too late to count.
    while let Ok(Some(ended)) = tokio::time::timeout_at((end + LAST_CYCLE).into(), tasks.join_next()).await {
        let (histogram, count) = ended.expect("no task panics");
        total.add(&histogram);
        handovers += count;
    }
    assert!(tasks.is_empty(), "{} tasks did not end, and their counts are missing", tasks.len());
    println!("handovers {handovers}\nhistogram {total}\ndone");
}

async fn keep<P: Peer>(order: &Order<'_>, peer: Arc<P>) {
    peer.keep_many((0..order.count).map(|number| format!("{}:{number}:", order.key)).collect()).await;
    println!("ready");
    let looks = || {
        while read_line().starts_with("look") {
            println!("cpu_us {}\nrss_kb {}\ndone", clock::cpu_us(), rss_kb());
        }
    };
    tokio::task::spawn_blocking(looks).await.expect("no panic");
}

fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("the driver's order");
    line
}

fn rss_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}
