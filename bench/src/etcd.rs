//! The etcd engine against raw requests and against the recipe of Go's client, in one run on one server.

// The engine's own messages: the raw requests are the same bytes.
#[path = "../../crates/distlock/src/engines/etcd/protocol/messages.rs"]
#[allow(dead_code, reason = "the engine uses the rest")]
mod messages;
mod raw;
mod recipe;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock::backend::etcd::{Etcd, EtcdHandle};
use distlock::{LockGuard, Locker};
use distlock_testkit::servers::{EtcdServer, EtcdVersion};

use self::raw::Raw;
use self::recipe::Recipe;

const ROUNDS: usize = 7;
const PAIRS: usize = 300;
const CONTENDED: Duration = Duration::from_secs(2);
const CONTENDED_ROUNDS: usize = 3;
const TASKS: usize = 64;
const HELD: usize = 10_000;
const TTL: Duration = Duration::from_secs(10);

/// Prints all figures of the engine, or the named ones: `uncontended`, `apart`, `contended`, `held`.
pub(crate) fn run(parts: &[String]) {
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    for version in [EtcdVersion::V3_4, EtcdVersion::V3_5] {
        let server = EtcdServer::options().version(version).start();
        println!("etcd {version:?}, {} cores", std::thread::available_parallelism().map_or(0, usize::from));
        runtime.block_on(async {
            if wanted("uncontended") {
                uncontended(&server).await;
            }
            if wanted("apart") {
                apart(&server).await;
            }
            if wanted("contended") {
                for waiters in [2, 8, 64] {
                    contended(&server, waiters).await;
                }
            }
            if wanted("held") {
                held(&server).await;
            }
        });
        println!();
    }
}

fn engine(server: &EtcdServer) -> (Locker, EtcdHandle) {
    let engine = Etcd::builder([server.address().to_string()]).build().expect("a client");
    let handle = engine.handle();
    (Locker::builder().default_ttl(TTL).build(engine).expect("a locker"), handle)
}

/// The rounds alternate, so that a slow moment of the machine affects all.
async fn uncontended(server: &EtcdServer) {
    let (locker, handle) = engine(server);
    let (apart, inside) = (Raw::connect_apart(server), Raw::connect(server).await);
    let lease = inside.grant(60).await;
    let (mut ours, mut raw_apart, mut raw_inside) = (Vec::new(), Vec::new(), Vec::new());
    locker.lock("bench").await.expect("granted").unlock().await.expect("released");
    let before = handle.requests();
    for _ in 0..ROUNDS {
        for _ in 0..PAIRS {
            raw_apart.push(timed(apart.pair("raw/bench/1", lease)).await);
            ours.push(
                timed(async { locker.lock("bench").await.expect("granted").unlock().await.expect("released") }).await,
            );
            raw_inside.push(timed(inside.pair("raw/bench/2", lease)).await);
        }
    }
    let requests = (handle.requests() - before) as f64 / (ROUNDS * PAIRS) as f64;
    let [ours, apart, inside] = [ours, raw_apart, raw_inside].map(median);
    let over = |raw: Duration| ours.as_secs_f64() / raw.as_secs_f64();
    println!("uncontended lock+unlock, p50: {ours:?}, {requests:.2} requests (aim: 2)");
    println!(
        "  raw Txn put + Txn delete, connection on a thread apart as ours: {apart:?}: {:.2}× (aim: 1.15×)",
        over(apart)
    );
    println!("  raw Txn put + Txn delete, connection in the caller's runtime: {inside:?}: {:.2}×", over(inside));
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    work.await;
    start.elapsed()
}

/// Many concurrent tasks, each with its own lock: ours, and as many raw requests over one connection.
async fn apart(server: &EtcdServer) {
    let (locker, handle) = engine(server);
    let lockers: Arc<Vec<Locker>> = Arc::new((0..TASKS).map(|_| locker.clone()).collect());
    let raw = Raw::connect(server).await;
    let lease = raw.grant(60).await;
    let before = handle.requests();
    let (mut ours, mut theirs) = (Handoffs::default(), Handoffs::default());
    for _ in 0..CONTENDED_ROUNDS {
        let lockers = lockers.clone();
        ours += handoffs(TASKS, move |task| {
            let request = lockers[task].lock(format!("apart{task}"));
            async move { request.await.expect("granted").unlock().await.expect("released") }
        })
        .await;
        let raw = raw.clone();
        theirs += handoffs(TASKS, move |task| {
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

/// The same number of waiters for one lock, ours and the recipe's in alternation, each in this process over its own
/// connection.
async fn contended(server: &EtcdServer, waiters: usize) {
    let (locker, handle) = engine(server);
    let lockers: Arc<Vec<Locker>> = Arc::new((0..waiters).map(|_| locker.clone()).collect());
    let recipe = Arc::new(Recipe::connect(server, &format!("recipe{waiters}"), waiters).await);
    let before = handle.requests();
    let floor = Raw::connect(server).await;
    let lease = floor.grant(60).await;
    let (mut ours, mut theirs, mut serial) = (Handoffs::default(), Handoffs::default(), Handoffs::default());
    for _ in 0..CONTENDED_ROUNDS {
        let (lockers, name) = (lockers.clone(), format!("contended{waiters}"));
        ours += handoffs(waiters, move |waiter| {
            let request = lockers[waiter].lock(&name);
            async move { request.await.expect("granted").unlock().await.expect("released") }
        })
        .await;
        // A handover by a write cannot be faster than sequential writes without contention.
        let floor = floor.clone();
        serial += handoffs(1, move |_| {
            let floor = floor.clone();
            async move { floor.pair("raw/floor", lease).await }
        })
        .await;
        let recipe = recipe.clone();
        theirs += handoffs(waiters, move |waiter| {
            let recipe = recipe.clone();
            async move { recipe.lock_and_unlock(waiter).await }
        })
        .await;
    }
    let requests = (handle.requests() - before) as f64 / ours.count as f64;
    let (ours, theirs, most) = (ours.per_second(), theirs.per_second(), serial.per_second() * 2.0);
    let ratio = ours / theirs;
    println!(
        "{waiters} waiters: {ours:.0} handoffs/s, the recipe of Go's client {theirs:.0}: {ratio:.1}× (aim: 5×), \
         {requests:.2} requests per lock+unlock (aim: 3); one write after the other: {most:.0}/s, {:.1}× the recipe",
        most / theirs
    );
}

#[derive(Default)]
struct Handoffs {
    count: u64,
    time: Duration,
}

impl Handoffs {
    fn per_second(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }
}

impl std::ops::AddAssign for Handoffs {
    fn add_assign(&mut self, other: Handoffs) {
        self.count += other.count;
        self.time += other.time;
    }
}

/// Counts how often `waiters` tasks get the lock.
async fn handoffs<T>(waiters: usize, take_turn: impl Fn(usize) -> T + Send + Sync + 'static) -> Handoffs
where
    T: Future<Output = ()> + Send,
{
    let take_turn = Arc::new(take_turn);
    let turns = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..waiters {
        let (take_turn, turns) = (take_turn.clone(), turns.clone());
        tasks.spawn(async move {
            while start.elapsed() < CONTENDED {
                take_turn(number).await;
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tasks.join_all().await;
    Handoffs { count: turns.load(Ordering::Relaxed), time: start.elapsed() }
}

async fn held(server: &EtcdServer) {
    let (locker, handle) = engine(server);
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..50 {
        let locker = locker.clone();
        tasks.spawn(async move {
            let mut guards: Vec<LockGuard> = Vec::new();
            for number in 0..HELD / 50 {
                guards.push(locker.lock(format!("held:{task}:{number}")).await.expect("granted"));
            }
            guards
        });
    }
    let guards = tasks.join_all().await.into_iter().flatten().collect::<Vec<_>>();
    println!("{HELD} locks taken in {:?}", start.elapsed());
    // Their watches are still being opened.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, cpu, start) = (handle.requests(), crate::process::cpu_ms(), Instant::now());
    tokio::time::sleep(TTL * 3).await;
    let seconds = start.elapsed().as_secs_f64();
    let sent = handle.requests() - before;
    let most = seconds / (TTL.as_secs_f64() / 3.0 * 0.9);
    let used = (crate::process::cpu_ms() - cpu) as f64 / seconds / 10.0;
    println!(
        "{HELD} held for {seconds:.0} s: {sent} requests (aim: one per third of the TTL, {most:.0}), {used:.1} % of one core"
    );
    assert!(guards.iter().all(|guard| !guard.is_lost()), "a lock was lost");
    let start = Instant::now();
    drop(guards);
    let all = if locker.close().await.is_ok() { "all" } else { "not all" };
    println!("{HELD} locks released in {:?}, {all} confirmed", start.elapsed());
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
