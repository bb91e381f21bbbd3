//! The Redlock engine against a raw lower bound: the same two commands to all nodes at once, on the same client crate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use distlock::Locker;
use distlock::backend::redis::Redis;
use distlock::backend::redlock::Redlock;
use distlock_testkit::servers::RedlockNodes;
use tokio::task::JoinSet;

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const SET: &str = "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
const NODES: usize = 5;
const ROUNDS: usize = 7;
const PAIRS: usize = 1_500;
const TASKS: usize = 64;
const TTL: Duration = Duration::from_secs(10);
const VALUE: &str = "0123456789abcdef0123456789abcdef";
/// The engine's reply timeout of a node at this lease.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// Prints all figures of the Redlock engine. `pairs raw|ours TASKS PAIRS` makes nothing but pairs, for counting the client's
/// instructions: what two numbers of pairs differ by is their cost.
pub(crate) fn run(args: &[String]) {
    if let [mode, kind, tasks, pairs] = args
        && mode == "pairs"
    {
        return only_pairs(kind, tasks.parse().expect("a number of tasks"), pairs.parse().expect("a number of pairs"));
    }
    let nodes = RedlockNodes::start(NODES);
    nodes.settle();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        println!(
            "redlock over {NODES} nodes, redis {}, 2 workers",
            nodes[0].info("server", "redis_version").unwrap_or_default()
        );
        let raw = Arc::new(Raw::connect(&nodes).await);
        let apart = Arc::new(Raw::connect_apart(&nodes));
        let locker = Arc::new(locker(&nodes));
        pair(&locker, "warm").await;
        uncontended(&nodes, &raw, &apart, &locker).await;
        many_tasks(&raw, &locker).await;
        frozen(&nodes, &locker).await;
    });
}

fn only_pairs(kind: &str, tasks: usize, pairs: usize) {
    let nodes = RedlockNodes::start(NODES);
    nodes.settle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let raw = Arc::new(Raw::connect(&nodes).await);
        let locker = Arc::new(locker(&nodes));
        pair(&locker, "warm").await;
        let mut all = JoinSet::new();
        for number in 0..tasks {
            let (raw, locker, is_raw) = (raw.clone(), locker.clone(), kind == "raw");
            all.spawn(async move {
                for _ in 0..pairs / tasks {
                    match is_raw {
                        true => raw.pair(&format!("raw:{number}")).await,
                        false => pair(&locker, &format!("ours:{number}")).await,
                    }
                }
            });
        }
        all.join_all().await;
    });
}

fn locker(nodes: &RedlockNodes) -> Locker {
    let engine = Redlock::of(nodes.ports().map(|port| Redis::tcp("127.0.0.1", port))).build().expect("an engine");
    Locker::builder().default_ttl(TTL).build(engine).expect("a locker")
}

/// The naive lock: two rounds, no ballot, no fence, no loss signal.
struct Raw {
    connections: Vec<MultiplexedConnection>,
    compare_and_delete: String,
    set: String,
}

impl Raw {
    async fn connect(nodes: &RedlockNodes) -> Raw {
        let mut raw = Raw { connections: Vec::new(), compare_and_delete: String::new(), set: String::new() };
        for port in nodes.ports() {
            let client = redis::Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp3")).expect("a client");
            let mut connection = client.get_multiplexed_async_connection().await.expect("connected");
            for (text, sha) in [(COMPARE_AND_DELETE, &mut raw.compare_and_delete), (SET, &mut raw.set)] {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(text);
                *sha = load.query_async(&mut connection).await.expect("loaded");
            }
            raw.connections.push(connection);
        }
        raw
    }

    /// Connects with the connections on a thread of their own: as the engine's are where the locker was made outside of a
    /// runtime, or the runtime stood still.
    fn connect_apart(nodes: &RedlockNodes) -> Raw {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        // It ends with the process.
        let runtime: &'static _ = Box::leak(Box::new(runtime.expect("a runtime")));
        std::thread::scope(|scope| scope.spawn(|| runtime.block_on(Raw::connect(nodes))).join().expect("connected"))
    }

    async fn pair(&self, key: &str) {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(VALUE).arg("NX").arg("PX").arg(10_000);
        self.everywhere(&set).await;
        self.release(key).await;
    }

    /// Like [`pair`](Raw::pair), with the claim as a script.
    async fn scripted_pair(&self, key: &str) {
        let mut set = redis::cmd("EVALSHA");
        set.arg(&self.set).arg(1).arg(key).arg(VALUE).arg(10_000);
        self.everywhere(&set).await;
        self.release(key).await;
    }

    async fn release(&self, key: &str) {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.compare_and_delete).arg(1).arg(key).arg(VALUE);
        self.everywhere(&release).await;
    }

    /// Sends to all nodes at once, and waits for all replies.
    async fn everywhere(&self, command: &redis::Cmd) {
        let [mut a, mut b, mut c, mut d, mut e] = std::array::from_fn(|at| self.connections[at].clone());
        let answers = tokio::join!(
            a.send_packed_command(command),
            b.send_packed_command(command),
            c.send_packed_command(command),
            d.send_packed_command(command),
            e.send_packed_command(command),
        );
        assert!(answers.0.is_ok() && answers.1.is_ok() && answers.2.is_ok() && answers.3.is_ok() && answers.4.is_ok());
    }
}

async fn pair(locker: &Locker, key: &str) {
    locker.lock(key).await.expect("granted").unlock().await.expect("released");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn timed<F: Future<Output = ()>>(mut one: impl FnMut() -> F) -> Duration {
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let start = Instant::now();
        one().await;
        times.push(start.elapsed());
    }
    median(&mut times)
}

async fn uncontended(nodes: &RedlockNodes, raw: &Arc<Raw>, apart: &Arc<Raw>, locker: &Arc<Locker>) {
    let evals = || (0..NODES).map(|at| nodes[at].calls("evalsha")).sum::<u64>();
    let (mut floors, mut ours, mut commands) = ([const { Vec::new() }; 3], Vec::new(), 0);
    for _ in 0..ROUNDS {
        for (floor, times) in floors.iter_mut().enumerate() {
            let (raw, apart) = (raw.clone(), apart.clone());
            let measured = tokio::spawn(async move {
                match floor {
                    0 => timed(|| raw.pair("raw")).await,
                    1 => timed(|| apart.pair("raw")).await,
                    _ => timed(|| apart.scripted_pair("raw")).await,
                }
            });
            times.push(measured.await.expect("done"));
        }
        let (task, before) = (locker.clone(), evals());
        ours.push(tokio::spawn(async move { timed(|| pair(&task, "ours")).await }).await.expect("done"));
        commands += evals() - before;
    }
    let ([floor, apart, scripted], ours) = (floors.map(|mut times| median(&mut times)), median(&mut ours));
    let to = |floor: Duration| ours.as_secs_f64() / floor.as_secs_f64();
    println!("uncontended lock+unlock, 1 task, p50: raw {floor:?}, ours {ours:?}, ratio {:.2} (aim: 1.20)", to(floor));
    println!("  raw with its connections on a thread apart: {apart:?}: {:.2}", to(apart));
    println!("  the same with the claim as a script: {scripted:?}: {:.2}", to(scripted));
    println!("commands per pair: {:.2} (aim: 10)", commands as f64 / (ROUNDS * PAIRS) as f64);
}

async fn many_tasks(raw: &Arc<Raw>, locker: &Arc<Locker>) {
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let raw = raw.clone();
            tasks.spawn(async move {
                for _ in 0..PAIRS / 15 {
                    raw.pair(&format!("raw:{number}")).await;
                }
            });
        }
        tasks.join_all().await;
        floor.push(start.elapsed());
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let locker = locker.clone();
            tasks.spawn(async move {
                for _ in 0..PAIRS / 15 {
                    pair(&locker, &format!("ours:{number}")).await;
                }
            });
        }
        tasks.join_all().await;
        ours.push(start.elapsed());
    }
    let rate = |times: &mut [Duration]| (TASKS * PAIRS / 15) as f64 / median(times).as_secs_f64();
    let (floor, ours) = (rate(&mut floor), rate(&mut ours));
    println!("{TASKS} tasks: raw {floor:.0} pairs/s, ours {ours:.0}, ratio {:.2} (aim: 0.95)", ours / floor);
}

/// Two of five nodes are frozen.
async fn frozen(nodes: &RedlockNodes, locker: &Arc<Locker>) {
    nodes[1].stop();
    nodes[3].stop();
    let mut times = Vec::new();
    // First while their connections count as open, then when they no longer do.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let asked = Instant::now();
        let guard = locker.lock("frozen").await.expect("granted");
        times.push(asked.elapsed());
        guard.unlock().await.expect("released");
    }
    nodes[1].cont();
    nodes[3].cont();
    let (worst, count) = (*times.iter().max().expect("some"), times.len());
    let p50 = median(&mut times);
    println!(
        "2 of 5 frozen, {count} locks: p50 {p50:?}, longest {worst:?} (aim: p50 within {:?})",
        NODE_TIMEOUT.mul_f64(1.2)
    );
}
