//! Handover under constant contention against a raw lower bound: a minimal FIFO queue with direct handoff.
//!
//! The raw queue is what a contended lock costs at least on this client crate: a claim that finds the key set appends
//! itself to a list; a release sets the key for the first of the list and publishes that to the channel of its process.
//! No fence, no lease of waiters, no dead waiters, no modes, no record. Both run in alternating rounds against one server.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{PushInfo, PushKind, Value};
use distlock::Locker;
use distlock_testkit::servers::RedisServer;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// KEYS: lock, queue; ARGV: id, lease_ms; reply: 1 granted, 0 queued.
const CLAIM: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0";
/// KEYS: lock, queue; ARGV: id, lease_ms; reply: 1 released, 0 not held. An id is 'channel:number'.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local head = redis.call('LPOP', KEYS[2])
if not head then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], head, 'PX', ARGV[2])
redis.call('PUBLISH', string.match(head, '^(.*):'), head)
return 1";

const TASKS: usize = 64;
const PROCESSES: usize = 8;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);
const WARM_UP: Duration = Duration::from_millis(200);

/// Which queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Raw,
    /// The raw queue with its connection on a thread of its own: as the engine's is where the locker was made outside of a
    /// runtime, or the runtime stood still.
    Apart,
    Ours,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Raw, Kind::Apart, Kind::Ours];

    fn word(self) -> &'static str {
        match self {
            Kind::Raw => "raw",
            Kind::Apart => "apart",
            Kind::Ours => "ours",
        }
    }

    fn of(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// Prints the figures of handover; `only` chooses one queue, for a profiler.
pub(crate) async fn run(server: &RedisServer, only: Option<&str>) {
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| only.is_none_or(|only| only == kind.word())).collect();
    let mut one = Figures::default();
    let mut many = Figures::default();
    for _ in 0..ROUNDS {
        for kind in &kinds {
            let before = Usage::read(server);
            let (handoffs, cpu_ms) = in_this_process(server.port(), *kind, TASKS).await;
            one.add(*kind, handoffs, cpu_ms, &before, server);
            let before = Usage::read(server);
            let (handoffs, cpu_ms) = in_processes(server.port(), *kind);
            many.add(*kind, handoffs, cpu_ms, &before, server);
        }
    }
    one.print(&format!("handover, 1 process with {TASKS} tasks"));
    many.print(&format!("handover, {PROCESSES} processes with 1 task each"));
}

/// Runs `tasks` tasks for a round. Returns the handoffs and the time of the processor that this process used.
async fn in_this_process(port: u16, kind: Kind, tasks: usize) -> (u64, u64) {
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut all = JoinSet::new();
    match kind {
        Kind::Raw | Kind::Apart => {
            let connected = match kind {
                Kind::Apart => thread_apart().spawn(RawQueue::connect(port)),
                _ => tokio::spawn(RawQueue::connect(port)),
            };
            let queue = connected.await.expect("connected");
            for _ in 0..tasks {
                let (queue, stop, count) = (queue.clone(), stop.clone(), count.clone());
                all.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let id = queue.claim().await;
                        count.fetch_add(1, Ordering::Relaxed);
                        queue.release(&id).await;
                    }
                });
            }
        }
        Kind::Ours => {
            let locker = super::locker(port);
            for _ in 0..tasks {
                let (locker, stop, count) = (Locker::clone(&locker), stop.clone(), count.clone());
                all.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = locker.lock("handover").await.expect("granted");
                        count.fetch_add(1, Ordering::Relaxed);
                        guard.unlock().await.expect("released");
                    }
                });
            }
        }
    }
    tokio::time::sleep(WARM_UP).await;
    let (before, cpu, start) = (count.load(Ordering::Relaxed), crate::process::cpu_ms(), Instant::now());
    tokio::time::sleep(ROUND).await;
    let handoffs = count.load(Ordering::Relaxed) - before;
    let (cpu, took) = (crate::process::cpu_ms() - cpu, start.elapsed());
    stop.store(true, Ordering::Relaxed);
    all.join_all().await;
    // As if the round had lasted exactly as long as it should.
    let exact = |number: u64| (number as f64 * ROUND.as_secs_f64() / took.as_secs_f64()) as u64;
    (exact(handoffs), exact(cpu))
}

/// Returns a runtime with one thread, which ends with the process.
fn thread_apart() -> &'static Runtime {
    static APART: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime"));
    &APART
}

/// Runs one task in each of several processes for a round.
fn in_processes(port: u16, kind: Kind) -> (u64, u64) {
    let mut children: Vec<Waiter> = (0..PROCESSES).map(|_| Waiter::start(port, kind)).collect();
    children.iter_mut().for_each(|child| assert_eq!(child.line(), "ready"));
    children.iter_mut().for_each(Waiter::go);
    let reports = children.iter_mut().map(|child| {
        let line = child.line();
        let (handoffs, cpu) = line.split_once(' ').expect("two numbers");
        (handoffs.parse::<u64>().expect("a number"), cpu.parse::<u64>().expect("a number"))
    });
    let (handoffs, cpu) = reports.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    children.iter_mut().for_each(|child| assert!(child.0.wait().expect("waited for").success()));
    (handoffs, cpu)
}

/// A child process with one task.
struct Waiter(Child, BufReader<std::process::ChildStdout>);

impl Waiter {
    fn start(port: u16, kind: Kind) -> Waiter {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["redis", "waiter", &port.to_string(), kind.word()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Waiter(child, output)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn go(&mut self) {
        self.0.stdin.take().expect("piped").write_all(b"go\n").expect("written");
    }
}

/// The child: waits for a line, runs one task for a round, prints its handoffs and its time of the processor.
pub(crate) fn waiter(port: u16, kind: &str) {
    let kind = Kind::of(kind).expect("a queue");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let (handoffs, cpu) = runtime.block_on(in_this_process(port, kind, 1));
    println!("{handoffs} {cpu}");
}

/// The raw queue's client: one connection, and the tasks that wait for a message.
#[derive(Clone)]
struct RawQueue {
    connection: MultiplexedConnection,
    channel: Arc<str>,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>,
    next: Arc<AtomicU64>,
    claim: Arc<str>,
    release: Arc<str>,
}

impl RawQueue {
    async fn connect(port: u16) -> RawQueue {
        let waiting = Arc::new(Mutex::new(HashMap::<u64, oneshot::Sender<()>>::new()));
        let heard = waiting.clone();
        let config = redis::AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| -> Result<(), ()> {
            if let (PushKind::Message, [_, Value::BulkString(id)]) = (&push.kind, &push.data[..])
                && let Some(number) = std::str::from_utf8(id).ok().and_then(|id| id.rsplit(':').next()?.parse().ok())
                && let Some(waiter) = heard.lock().expect("no panic").remove(&number)
            {
                let _ = waiter.send(());
            }
            Ok(())
        });
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp3")).expect("a client");
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.expect("connected");
        let channel: Arc<str> = format!("raw:{}", std::process::id()).into();
        connection.subscribe(&*channel).await.expect("subscribed");
        let mut shas = Vec::new();
        for script in [CLAIM, RELEASE] {
            let mut load = redis::cmd("SCRIPT");
            let sha: String = load.arg("LOAD").arg(script).query_async(&mut connection).await.expect("loaded");
            shas.push(Arc::from(sha));
        }
        let [claim, release] = shas.try_into().expect("two");
        RawQueue { connection, channel, waiting, next: Arc::default(), claim, release }
    }

    /// Returns the id of the grant.
    async fn claim(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}:{number}", self.channel);
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().expect("no panic").insert(number, sender);
        if self.call(&self.claim, &id).await == 1 {
            self.waiting.lock().expect("no panic").remove(&number);
        } else {
            receiver.await.expect("a message");
        }
        id
    }

    async fn release(&self, id: &str) {
        assert_eq!(self.call(&self.release, id).await, 1);
    }

    async fn call(&self, sha: &str, id: &str) -> i64 {
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha).arg(2).arg("raw:handover").arg("{raw:handover}:q").arg(id).arg(10_000);
        command.query_async(&mut self.connection.clone()).await.expect("no error")
    }
}

/// What the server has counted so far.
struct Usage {
    commands: u64,
    messages: u64,
    cpu_s: f64,
}

impl Usage {
    fn read(server: &RedisServer) -> Usage {
        let cpu = |field| server.info("cpu", field).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        Usage {
            commands: server.calls("evalsha"),
            messages: server.calls("publish"),
            cpu_s: cpu("used_cpu_sys_main_thread") + cpu("used_cpu_user_main_thread"),
        }
    }
}

/// The figures of one set-up.
#[derive(Default)]
struct Figures([Vec<Round>; 3]);

/// One round: handoffs per second, and costs per handoff.
struct Round {
    rate: f64,
    client_us: f64,
    server_us: f64,
    commands: f64,
    messages: f64,
}

impl Figures {
    fn add(&mut self, kind: Kind, handoffs: u64, cpu_ms: u64, before: &Usage, server: &RedisServer) {
        let (after, handoffs) = (Usage::read(server), handoffs as f64);
        // The server's counters also cover the warm-up: its commands are in proportion to it.
        let messages = (after.messages - before.messages) as f64;
        let round = Round {
            rate: handoffs / ROUND.as_secs_f64(),
            client_us: cpu_ms as f64 * 1000.0 / handoffs,
            server_us: (after.cpu_s - before.cpu_s) * 1e6 / messages,
            commands: (after.commands - before.commands) as f64 / messages,
            messages: messages / handoffs,
        };
        self.0[kind as usize].push(round);
    }

    fn print(&self, title: &str) {
        println!("{title}");
        let names = ["raw queue", "raw queue, its connection on a thread apart", "ours"];
        for (name, rounds) in names.into_iter().zip(&self.0) {
            let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
            println!(
                "  {name}: {:.0} handoffs/s, client {:.1} us, server {:.1} us, {:.2} commands per message",
                of(|round| round.rate),
                of(|round| round.client_us),
                of(|round| round.server_us),
                of(|round| round.commands),
            );
            println!("    messages counted with the warm-up: {:.2} per handoff", of(|round| round.messages));
        }
        let [raw, apart, ours] = &self.0;
        let ratio = |floor: &[Round]| median(floor.iter().zip(ours).map(|(raw, ours)| ours.rate / raw.rate).collect());
        println!("  ratio {:.2} (aim: 0.9), {:.2} to the one with a thread apart", ratio(raw), ratio(apart));
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
