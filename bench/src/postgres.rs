//! The PostgreSQL engine against a raw lower bound on the same client crate: an UPSERT that takes a row, and an UPDATE that
//! frees it.
//!
//! Both run in the same process against the same server in alternating rounds, so that the ratios hold on any machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock::backend::postgres::Postgres;
use distlock::{LockGuard, Locker};
use distlock_testkit::servers::PostgresServer;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Statement};

use crate::process::cpu_us;

const TABLE: &str = "CREATE TABLE raw (name text PRIMARY KEY, attempt text, token bigint NOT NULL, expires timestamptz, \
                     record text) WITH (fillfactor = 50)";
const TAKE: &str = "INSERT INTO raw VALUES ($1, $2, 1, clock_timestamp() + interval '10 s', $3) ON CONFLICT (name) DO UPDATE \
                    SET attempt = $2, token = raw.token + 1, expires = clock_timestamp() + interval '10 s', record = $3 \
                    WHERE raw.attempt IS NULL OR raw.expires < clock_timestamp() RETURNING token";
const FREE: &str = "UPDATE raw SET attempt = NULL WHERE name = $1 AND attempt = $2";
/// As long as the engine's own.
const RECORD: &str =
    r#"{"owner":"0123456789abcdef0123456789abcdef","host":"host","pid":12345,"user":"root","since_ms":1}"#;
const ATTEMPT: &str = "0123456789abcdef0123456789abcdef";
const ROUNDS: usize = 5;
/// A commit to the disk takes milliseconds.
const PAIRS: usize = 320;
const TASKS: usize = 64;
const CYCLES: u64 = 2_000;
const HELD: usize = 10_000;
const TTL: Duration = Duration::from_secs(10);
/// A session that is idle reports its transactions to the server's statistics after ten seconds.
const IDLE_REPORT: Duration = Duration::from_secs(11);

/// Prints all figures of the PostgreSQL engine, or those of one part: `one`, `many`, `contended`, `held` or `bloat`. With the
/// word `memory` nothing is forced to the disk.
pub(crate) fn run() {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let options = PostgresServer::options().set("autovacuum=on").set("shared_buffers=64MB");
    let is_durable = !words.iter().any(|word| word == "memory");
    let server = if is_durable { options.durable() } else { options }.start();
    let parts: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "memory").collect();
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        println!("postgres {}, 2 workers, fsync {is_durable}", server.sql("SHOW server_version"));
        engine(&server).setup().await.expect("the schema is made");
        server.sql(TABLE);
        let bench = Arc::new(Bench { raw: Raw::connect(&server).await, locker: locker(&server) });
        pair(&bench.locker, "warm").await;
        if wants("one") {
            uncontended(&bench).await;
        }
        if wants("many") {
            many_tasks(&bench).await;
        }
        if wants("contended") {
            contended(&server).await;
        }
        if wants("held") {
            held(&server).await;
        }
        if wants("bloat") {
            bloat(&server, &bench).await;
        }
    });
}

struct Bench {
    raw: Raw,
    locker: Locker,
}

struct Raw {
    client: Client,
    take: Statement,
    free: Statement,
}

impl Raw {
    async fn connect(server: &PostgresServer) -> Raw {
        let config = format!("host=127.0.0.1 port={} user=postgres", server.port());
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connected");
        tokio::spawn(connection);
        let (take, free) =
            (client.prepare(TAKE).await.expect("prepared"), client.prepare(FREE).await.expect("prepared"));
        Raw { client, take, free }
    }

    /// The naive lock: two statements, no queue, no loss signal.
    async fn pair(&self, key: &str) {
        let rows = self.client.query(&self.take, &[&key, &ATTEMPT, &RECORD]).await.expect("no error");
        assert_eq!(rows.len(), 1);
        assert_eq!(self.client.execute(&self.free, &[&key, &ATTEMPT]).await.expect("no error"), 1);
    }
}

fn engine(server: &PostgresServer) -> Postgres {
    Postgres::tcp("127.0.0.1", server.port()).user("postgres").build().expect("an engine")
}

fn locker(server: &PostgresServer) -> Locker {
    Locker::builder().default_ttl(TTL).build(engine(server)).expect("a locker")
}

async fn pair(locker: &Locker, key: &str) {
    locker.lock(key).await.expect("granted").unlock().await.expect("released");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Returns how many transactions the server has committed, once its sessions have reported them.
async fn commits(server: &PostgresServer) -> i64 {
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let count = server.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'");
    count.parse().expect("a number")
}

async fn uncontended(bench: &Arc<Bench>) {
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (is_raw, medians) in [(true, &mut raw), (false, &mut ours)] {
            let task = bench.clone();
            let times = tokio::spawn(async move {
                let mut times = Vec::with_capacity(PAIRS);
                for _ in 0..PAIRS {
                    let start = Instant::now();
                    if is_raw {
                        task.raw.pair("raw").await;
                    } else {
                        pair(&task.locker, "ours").await;
                    }
                    times.push(start.elapsed());
                }
                times
            });
            medians.push(median(&mut times.await.expect("done")));
        }
    }
    let (raw, ours) = (median(&mut raw), median(&mut ours));
    let ratio = ours.as_secs_f64() / raw.as_secs_f64();
    println!("uncontended lock+unlock, 1 task, p50: raw {raw:?}, ours {ours:?}, ratio {ratio:.2} (aim: 1.15)");
}

async fn many_tasks(bench: &Arc<Bench>) {
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (is_raw, times) in [(true, &mut raw), (false, &mut ours)] {
            let start = Instant::now();
            let mut tasks = JoinSet::new();
            for number in 0..TASKS {
                let bench = bench.clone();
                tasks.spawn(async move {
                    let key = format!("many:{number}");
                    for _ in 0..PAIRS / 16 {
                        if is_raw { bench.raw.pair(&key).await } else { pair(&bench.locker, &key).await }
                    }
                });
            }
            tasks.join_all().await;
            times.push(start.elapsed());
        }
    }
    let rate = |times: &mut [Duration]| (TASKS * (PAIRS / 16)) as f64 / median(times).as_secs_f64();
    let (raw, ours) = (rate(&mut raw), rate(&mut ours));
    println!("{TASKS} tasks: raw {raw:.0} pairs/s, ours {ours:.0}, ratio {:.2} (aim: 1.5)", ours / raw);
}

/// One lock under constant contention.
async fn contended(server: &PostgresServer) {
    let locker = Arc::new(locker(server));
    let left = Arc::new(AtomicU64::new(CYCLES));
    pair(&locker, "warm").await;
    let before = commits(server).await;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (locker, left) = (Locker::clone(&locker), left.clone());
        tasks.spawn(async move {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                pair(&locker, "contended").await;
            }
        });
    }
    tasks.join_all().await;
    let took = start.elapsed();
    let statements = commits(server).await - before;
    println!("contended, {TASKS} tasks: {:.0} handoffs/s", CYCLES as f64 / took.as_secs_f64());
    println!(
        "transactions per cycle: {:.2} (aim: 2 statements; a session that is sent a message runs one, too)",
        statements as f64 / CYCLES as f64
    );
}

/// Many held locks: the cost of keeping them.
async fn held(server: &PostgresServer) {
    let locker = Arc::new(locker(server));
    let mut tasks = JoinSet::new();
    for number in 0..HELD {
        let locker = Locker::clone(&locker);
        tasks.spawn(async move { locker.lock(format!("held:{number}")).await.expect("granted") });
    }
    let guards: Vec<LockGuard> = tasks.join_all().await;
    // The sessions that took the locks are idle from now on, and report what they have done before only after a while.
    tokio::time::sleep(IDLE_REPORT).await;
    let (before, cpu, start) = (commits(server).await, cpu_us(), Instant::now());
    tokio::time::sleep(TTL).await;
    let (used, held_for) = (cpu_us() - cpu, start.elapsed());
    let statements = commits(server).await - before;
    let ticks = start.elapsed().as_secs_f64() / (TTL / 3).as_secs_f64();
    let used = used as f64 / held_for.as_micros() as f64 * 100.0;
    let statements = statements as f64 / ticks;
    println!("{HELD} held: {statements:.0} statements per third of a lease (aim: 25), client {used:.2} % of a core");
    assert!(guards.iter().all(|guard| !guard.is_lost()), "a lock was lost");
}

/// The size of the tables and their indexes after many cycles, without the maps that the first vacuum adds once.
async fn bloat(server: &PostgresServer, bench: &Arc<Bench>) {
    let size =
        || server.sql("SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = 'distlock'::regnamespace");
    let mut sizes = Vec::new();
    for cycles in [10_000, 90_000, 900_000] {
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let bench = bench.clone();
            tasks.spawn(async move {
                for _ in 0..cycles / TASKS {
                    pair(&bench.locker, &format!("bloat:{number}")).await;
                }
            });
        }
        tasks.join_all().await;
        sizes.push(size());
    }
    println!("bytes of the tables after 10 000, 100 000 and 1 000 000 cycles: {} (aim: no growth)", sizes.join(", "));
    let hot = "SELECT round(100.0 * n_tup_hot_upd / n_tup_upd, 2) FROM pg_stat_user_tables WHERE relname = 'locks'";
    println!("updates that touch no index: {} %", server.sql(hot));
}
