//! The etcd engine against raw requests and against the recipe of Go's client, in one run on one server.

// The engine's own messages: the raw requests are the same bytes.
mod contended;
mod handoffs;
mod held;
#[path = "../../crates/distlock/src/engines/etcd/protocol/messages.rs"]
#[allow(dead_code, reason = "the engine uses the rest")]
mod messages;
mod pairs;
mod parts;
mod queue_floor;
mod raw;
mod recipe;

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::Locker;
use distlock::backend::etcd::{Etcd, EtcdHandle};
use distlock_testkit::servers::{EtcdServer, EtcdVersion};

pub(crate) use self::contended::contender;
use self::handoffs::Handoffs;
pub(crate) use self::pairs::pairs;
use self::raw::Raw;

const PAIRS: usize = 2100;
/// Pairs of one kind in a row.
const BLOCK: usize = 10;
const CONTENDED: Duration = Duration::from_secs(2);
const CONTENDED_ROUNDS: usize = 3;
const TASKS: usize = 64;
const TTL: Duration = Duration::from_secs(10);

/// Prints all figures of the engine, or the named ones: `uncontended`, `parts`, `apart`, `contended`,
/// `processes`, `held`; `3.4` or `3.5` alone with one of these words.
pub(crate) fn run(parts: &[String]) {
    let versions = ["3.4", "3.5"];
    let (only, parts): (Vec<_>, Vec<_>) = parts.iter().partition(|part| versions.contains(&part.as_str()));
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| *wanted == part);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    for (name, version) in versions.into_iter().zip([EtcdVersion::V3_4, EtcdVersion::V3_5]) {
        if !only.is_empty() && !only.iter().any(|only| *only == name) {
            continue;
        }
        let server = Arc::new(EtcdServer::options().version(version).start());
        println!("etcd {version:?}, {} cores", std::thread::available_parallelism().map_or(0, usize::from));
        runtime.block_on(async {
            // In tasks, as applications lock: the thread that blocks on a runtime of several threads is none of them.
            if wanted("uncontended") {
                let server = server.clone();
                tokio::spawn(async move { uncontended(&server).await }).await.expect("measured");
            }
            if wanted("parts") {
                let server = server.clone();
                tokio::spawn(async move { parts::measure(&server).await }).await.expect("measured");
            }
            if wanted("apart") {
                apart(&server).await;
            }
            if wanted("contended") {
                for waiters in [2, 8, 64] {
                    contended::in_one_process(&server, waiters).await;
                }
            }
            if wanted("held") {
                held::measure(&server).await;
            }
        });
        if wanted("processes") {
            for processes in [2, 8] {
                contended::in_processes(&server, processes);
            }
        }
        println!();
    }
}

fn engine(address: &str) -> (Locker, EtcdHandle) {
    let engine = Etcd::builder([address.to_owned()]).build().expect("a client");
    let handle = engine.handle();
    (Locker::builder().default_ttl(TTL).build(engine).expect("a locker"), handle)
}

/// Blocks of pairs alternate, so that a slow moment of the machine affects all, and each finds its caches as in a loop.
async fn uncontended(server: &EtcdServer) {
    let (locker, handle) = engine(&server.address().to_string());
    let (apart, inside) = (Raw::connect_apart(server), Raw::connect(&server.endpoint()).await);
    let lease = inside.grant(60).await;
    let (mut ours, mut raw_apart, mut raw_inside) = (Vec::new(), Vec::new(), Vec::new());
    // The connection of this runtime is opened after some requests.
    for _ in 0..BLOCK {
        locker.lock("bench").await.expect("granted").unlock().await.expect("released");
    }
    let before = handle.requests();
    for _ in 0..PAIRS / BLOCK {
        for _ in 0..BLOCK {
            raw_apart.push(timed(apart.pair("raw/bench/1", lease)).await);
        }
        for _ in 0..BLOCK {
            ours.push(
                timed(async { locker.lock("bench").await.expect("granted").unlock().await.expect("released") }).await,
            );
        }
        for _ in 0..BLOCK {
            raw_inside.push(timed(inside.pair("raw/bench/2", lease)).await);
        }
    }
    let requests = (handle.requests() - before) as f64 / ours.len() as f64;
    let [ours, apart, inside] = [ours, raw_apart, raw_inside].map(median);
    let over = |raw: Duration| ours.as_secs_f64() / raw.as_secs_f64();
    println!("uncontended lock+unlock, p50: {ours:?}, {requests:.2} requests (aim: 2)");
    println!(
        "  raw Txn put + Txn delete, connection in the caller's runtime: {inside:?}: {:.2}× (aim: 1.05×)",
        over(inside)
    );
    println!("  raw Txn put + Txn delete, connection on a thread apart: {apart:?}: {:.2}×", over(apart));
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    work.await;
    start.elapsed()
}

/// Many concurrent tasks, each with its own lock: ours, and as many raw requests over one connection.
async fn apart(server: &EtcdServer) {
    let (locker, handle) = engine(&server.address().to_string());
    let lockers: Arc<Vec<Locker>> = Arc::new((0..TASKS).map(|_| locker.clone()).collect());
    let raw = Raw::connect(&server.endpoint()).await;
    let lease = raw.grant(60).await;
    let before = handle.requests();
    let (mut ours, mut theirs) = (Handoffs::default(), Handoffs::default());
    for _ in 0..CONTENDED_ROUNDS {
        let lockers = lockers.clone();
        ours += handoffs::count(TASKS, CONTENDED, move |task| {
            let request = lockers[task].lock(format!("apart{task}"));
            async move { request.await.expect("granted").unlock().await.expect("released") }
        })
        .await;
        let raw = raw.clone();
        theirs += handoffs::count(TASKS, CONTENDED, move |task| {
            let raw = raw.clone();
            async move { raw.pair(&format!("raw/apart{task}/1"), lease).await }
        })
        .await;
    }
    let requests = (handle.requests() - before) as f64 / ours.count as f64;
    let (ours, theirs) = (ours.per_second(), theirs.per_second());
    println!(
        "{TASKS} tasks, a lock each: {ours:.0} lock+unlock/s, raw Txn put + Txn delete {theirs:.0}: {:.1}×, \
         {requests:.2} requests per lock+unlock",
        ours / theirs
    );
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
