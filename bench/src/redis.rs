//! The Redis engine against a raw lower bound on the same client crate: `SET NX PX`, and a compare-and-delete, which is a
//! native command where the server has one, otherwise a script.
//!
//! Both run in the same process against the same server in alternating rounds, so that the ratios hold on any machine.

mod handover;
mod keep;
mod pairs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use distlock::backend::redis::Redis;
use distlock::{LockGuard, Locker};
use distlock_testkit::servers::RedisServer;
use tokio::task::JoinSet;

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const ROUNDS: usize = 7;
const PAIRS: usize = 4_000;
const TASKS: usize = 64;
const CYCLES: u64 = 20_000;
const HELD: usize = 10_000;
const TTL: Duration = Duration::from_secs(10);

/// Prints all figures of the Redis engine, or those of one part: `one`, `many`, `contended`, `handover` or `held`.
pub(crate) fn run() {
    if let [part, port, kind] = &std::env::args().skip(2).collect::<Vec<_>>()[..]
        && part == "waiter"
    {
        return handover::waiter(port.parse().expect("a port"), kind);
    }
    if let [part, port, kind, tasks, pairs] = &std::env::args().skip(2).collect::<Vec<_>>()[..]
        && part == "pairs"
    {
        let number = |text: &str| text.parse().expect("a number");
        return pairs::run(port.parse().expect("a port"), kind, number(tasks), number(pairs));
    }
    if let [part, port, locks, seconds] = &std::env::args().skip(2).collect::<Vec<_>>()[..]
        && part == "keep"
    {
        let number = |text: &str| text.parse().expect("a number");
        return keep::run(port.parse().expect("a port"), number(locks), number(seconds) as u64);
    }
    let server = RedisServer::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        println!("redis {}, 2 workers", server.info("server", "redis_version").unwrap_or_default());
        let bench = Arc::new(Bench { raw: raw_connection(&server).await, locker: locker(server.port()) });
        bench.locker.lock("warm").await.expect("granted").unlock().await.expect("released");
        let raw_release = RawRelease::find(&mut bench.raw.clone()).await;
        println!("raw releases by {}", raw_release.name());
        let only = std::env::args().nth(2);
        let wants = |part: &str| only.as_deref().is_none_or(|only| only == part);
        if wants("one") {
            uncontended(&server, &bench, &raw_release).await;
        }
        if wants("many") {
            many_tasks(&server, &bench, &raw_release).await;
            println!("in a runtime of one thread:");
            std::thread::scope(|scope| drop(scope.spawn(|| on_one_thread(&server, &raw_release)).join()));
        }
        if wants("contended") {
            contended(&server).await;
        }
        if wants("handover") {
            handover::run(&server, std::env::args().nth(3).as_deref()).await;
        }
        if wants("held") {
            held(&server).await;
        }
    });
}

struct Bench {
    raw: MultiplexedConnection,
    locker: Locker,
}

fn locker(port: u16) -> Locker {
    let engine = Redis::tcp("127.0.0.1", port).build().expect("an engine");
    Locker::builder().default_ttl(TTL).build(engine).expect("a locker")
}

async fn raw_connection(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/?protocol=resp3", server.port())).expect("a client");
    client.get_multiplexed_async_connection().await.expect("connected")
}

/// How the naive lock is released on a server.
#[derive(Debug, Clone)]
enum RawRelease {
    /// `DELIFEQ key value` of Valkey, `DELEX key IFEQ value` of Redis.
    Native(&'static [&'static str]),
    /// The hash of a script.
    Script(String),
}

impl RawRelease {
    async fn find(connection: &mut MultiplexedConnection) -> RawRelease {
        for native in [&["DELIFEQ"][..], &["DELEX", "IFEQ"]] {
            let release = RawRelease::Native(native);
            if release.command("raw", "no value").query_async::<i64>(connection).await.is_ok() {
                return release;
            }
        }
        let mut load = redis::cmd("SCRIPT");
        RawRelease::Script(load.arg("LOAD").arg(COMPARE_AND_DELETE).query_async(connection).await.expect("loaded"))
    }

    fn name(&self) -> &'static str {
        match self {
            RawRelease::Native(words) => words[0],
            RawRelease::Script(_) => "a script",
        }
    }

    fn command(&self, key: &str, value: &str) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        match self {
            RawRelease::Native(words) => command.arg(words[0]).arg(key).arg(&words[1..]).arg(value),
            RawRelease::Script(sha) => command.arg("EVALSHA").arg(sha).arg(1).arg(key).arg(value),
        };
        command
    }
}

/// Returns how many commands for claims and releases the server has carried out.
fn calls(server: &RedisServer) -> u64 {
    ["evalsha", "delifeq", "delex"].map(|command| server.calls(command)).iter().sum()
}

/// The naive lock: two commands, no queue, no fence, no loss signal.
async fn raw_pair(connection: &mut MultiplexedConnection, release: &RawRelease, key: &str, value: &str) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value).arg("NX").arg("PX").arg(10_000);
    let _: redis::Value = set.query_async(connection).await.expect("no error");
    let deleted: i64 = release.command(key, value).query_async(connection).await.expect("no error");
    assert_eq!(deleted, 1);
}

async fn pair(locker: &Locker, key: &str) {
    locker.lock(key).await.expect("granted").unlock().await.expect("released");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn uncontended(server: &RedisServer, bench: &Arc<Bench>, release: &RawRelease) {
    let (mut raw, mut ours, mut evals) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let (task, release) = (bench.clone(), release.clone());
        let times = tokio::spawn(async move {
            let mut connection = task.raw.clone();
            let mut times = Vec::with_capacity(PAIRS);
            for _ in 0..PAIRS {
                let start = Instant::now();
                raw_pair(&mut connection, &release, "raw", "0123456789abcdef0123456789abcdef").await;
                times.push(start.elapsed());
            }
            times
        });
        raw.push(median(&mut times.await.expect("done")));
        let (task, before) = (bench.clone(), calls(server));
        let times = tokio::spawn(async move {
            let mut times = Vec::with_capacity(PAIRS);
            for _ in 0..PAIRS {
                let start = Instant::now();
                pair(&task.locker, "ours").await;
                times.push(start.elapsed());
            }
            times
        });
        ours.push(median(&mut times.await.expect("done")));
        evals += calls(server) - before;
    }
    let (raw, ours) = (median(&mut raw), median(&mut ours));
    let ratio = ours.as_secs_f64() / raw.as_secs_f64();
    let aim = if matches!(release, RawRelease::Native(_)) { 1.06 } else { 1.12 };
    println!("uncontended lock+unlock, 1 task, p50: raw {raw:?}, ours {ours:?}, ratio {ratio:.2} (aim: {aim})");
    println!("commands per pair: {:.3} (aim: 2)", evals as f64 / (ROUNDS * PAIRS) as f64);
}

async fn many_tasks(server: &RedisServer, bench: &Arc<Bench>, release: &RawRelease) {
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    let (mut sent, mut longest) = (0, 0);
    for _ in 0..ROUNDS {
        raw.push(
            rate(bench, |bench, number| {
                let release = release.clone();
                async move {
                    let (mut connection, key) = (bench.raw.clone(), format!("raw:{number}"));
                    for _ in 0..PAIRS / 8 {
                        raw_pair(&mut connection, &release, &key, "0123456789abcdef0123456789abcdef").await;
                    }
                }
            })
            .await,
        );
        let before = calls(server);
        watch_slow(server);
        ours.push(
            rate(bench, |bench, number| async move {
                let key = format!("ours:{number}");
                for _ in 0..PAIRS / 8 {
                    pair(&bench.locker, &key).await;
                }
            })
            .await,
        );
        sent += calls(server) - before;
        longest += slow(server);
    }
    let per_pair = |times: &mut [Duration]| median(times).as_secs_f64() / (TASKS * PAIRS / 8) as f64;
    let (raw, ours) = (1.0 / per_pair(&mut raw), 1.0 / per_pair(&mut ours));
    println!("{TASKS} tasks: raw {raw:.0} pairs/s, ours {ours:.0}, ratio {:.2} (aim: 1.0)", ours / raw);
    let sent = sent as f64 / (ROUNDS * TASKS * PAIRS / 8) as f64;
    println!("commands per pair then: {sent:.2}, scripts over 0.5 ms: {longest} (aim: 0)");
}

fn on_one_thread(server: &RedisServer, release: &RawRelease) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let bench = Arc::new(Bench { raw: raw_connection(server).await, locker: locker(server.port()) });
        bench.locker.lock("warm").await.expect("granted").unlock().await.expect("released");
        many_tasks(server, &bench, release).await;
    });
}

async fn rate<F>(bench: &Arc<Bench>, task: impl Fn(Arc<Bench>, usize) -> F) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        tasks.spawn(task(bench.clone(), number));
    }
    tasks.join_all().await;
    start.elapsed()
}

/// From now on counts the calls that take the server longer than half a millisecond.
fn watch_slow(server: &RedisServer) {
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "500"]);
    server.command(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
    server.command(&["SLOWLOG", "RESET"]);
}

fn slow(server: &RedisServer) -> i64 {
    server.command(&["SLOWLOG", "LEN"]).int()
}

/// One lock under constant contention.
async fn contended(server: &RedisServer) {
    let locker = Arc::new(locker(server.port()));
    let left = Arc::new(AtomicU64::new(CYCLES));
    locker.lock("warm").await.expect("granted").unlock().await.expect("released");
    let (evals, publishes) = (server.calls("evalsha"), server.calls("publish"));
    let released = Arc::new(std::sync::Mutex::new((None::<Instant>, Vec::with_capacity(CYCLES as usize))));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (locker, left, released) = (Locker::clone(&locker), left.clone(), released.clone());
        tasks.spawn(async move {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                let guard = locker.lock("contended").await.expect("granted");
                {
                    let mut released = released.lock().expect("no panic");
                    if let Some(at) = released.0.take() {
                        released.1.push(at.elapsed());
                    }
                    released.0 = Some(Instant::now());
                }
                guard.unlock().await.expect("released");
            }
        });
    }
    tasks.join_all().await;
    let took = start.elapsed();
    let (evals, publishes) = (server.calls("evalsha") - evals, server.calls("publish") - publishes);
    let cycles = CYCLES as f64;
    let gap = median(&mut released.lock().expect("no panic").1);
    let push = publish_to_push(server).await;
    println!("contended, {TASKS} tasks: {:.0} handoffs/s", cycles / took.as_secs_f64());
    println!("commands per cycle: {:.2} (aim: 2.1)", evals as f64 / cycles);
    println!("messages per handoff: {:.2} (aim: 1.0)", publishes as f64 / cycles);
    let ratio = gap.as_secs_f64() / push.as_secs_f64();
    println!("gap p50: {gap:?}, raw publish to push {push:?}, ratio {ratio:.2} (aim: 2)");
}

/// The lower bound of a handoff: one command, and one message to another connection.
async fn publish_to_push(server: &RedisServer) -> Duration {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/?protocol=resp3", server.port())).expect("a client");
    let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
    let mut listening = client.get_multiplexed_async_connection_with_config(&config).await.expect("connected");
    listening.subscribe("raw").await.expect("subscribed");
    receiver.recv().await.expect("the subscription");
    let mut publishing = raw_connection(server).await;
    let task = tokio::spawn(async move {
        let mut times = Vec::new();
        for _ in 0..PAIRS {
            let start = Instant::now();
            let heard = async {
                receiver.recv().await.expect("a message");
                start.elapsed()
            };
            let mut publish = redis::cmd("PUBLISH");
            publish.arg("raw").arg("x");
            let (time, told) = tokio::join!(heard, publish.query_async::<i64>(&mut publishing));
            assert_eq!(told.expect("no error"), 1);
            times.push(time);
        }
        median(&mut times)
    });
    task.await.expect("done")
}

/// Many held locks: the cost of keeping them.
async fn held(server: &RedisServer) {
    let locker = locker(server.port());
    let mut guards: Vec<LockGuard> = Vec::with_capacity(HELD);
    for number in 0..HELD {
        guards.push(locker.lock(format!("held:{number}")).await.expect("granted"));
    }
    watch_slow(server);
    // They were taken one after the other, so their renewals are spread over time; after a few ticks the jitter has
    // mixed them.
    let (evals, cpu, start) = (server.calls("evalsha"), crate::process::cpu_us(), Instant::now());
    tokio::time::sleep(TTL).await;
    let ticks = start.elapsed().as_secs_f64() / (TTL / 3).as_secs_f64();
    let evals = (server.calls("evalsha") - evals) as f64 / ticks;
    let used = (crate::process::cpu_us() - cpu) as f64 / start.elapsed().as_micros() as f64 * 100.0;
    println!("{HELD} held: {evals:.0} renewal commands per third of a lease (aim: 80), client {used:.2} % (aim: 0.3)");
    println!("scripts over 0.5 ms: {} (aim: 0)", slow(server));
    assert!(guards.iter().all(|guard| !guard.is_lost()), "a lock was lost");
}
