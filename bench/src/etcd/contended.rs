//! One lock and many waiters: in one process, and in several.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::Locker;
use distlock_testkit::servers::EtcdServer;

use super::handoffs::{self, Handoffs};
use super::queue_floor::QueueFloor;
use super::raw::Raw;
use super::recipe::Recipe;
use super::{CONTENDED, CONTENDED_ROUNDS, engine};

/// Longer than a hold that costs no watch.
const LONG_HOLD: Duration = Duration::from_millis(600);

/// The same number of waiters for one lock: ours, the queue floor and the recipe in alternation, each in this process
/// over its own connection.
pub(super) async fn in_one_process(server: &EtcdServer, waiters: usize) {
    let (locker, handle) = engine(&server.address().to_string());
    let lockers: Arc<Vec<Locker>> = Arc::new((0..waiters).map(|_| locker.clone()).collect());
    let recipe = Arc::new(Recipe::connect(server, &format!("recipe{waiters}"), waiters).await);
    let raw = Raw::connect(&server.endpoint()).await;
    let floor = Arc::new(QueueFloor::connect(raw.clone(), &format!("floor{waiters}")).await);
    let lease = raw.grant(60).await;
    let name = format!("contended{waiters}");
    let ours = |lockers: &Arc<Vec<Locker>>| {
        let (lockers, name) = (lockers.clone(), name.clone());
        handoffs::count(waiters, CONTENDED, move |waiter| {
            let request = lockers[waiter].lock(&name);
            async move { request.await.expect("granted").unlock().await.expect("released") }
        })
    };
    let (mut fresh, mut by_floor) = (Handoffs::default(), Handoffs::default());
    let (mut theirs, mut serial) = (Handoffs::default(), Handoffs::default());
    let before = handle.requests();
    for _ in 0..CONTENDED_ROUNDS {
        fresh += ours(&lockers).await;
        let floor = floor.clone();
        by_floor += handoffs::count(waiters, CONTENDED, move |waiter| {
            let floor = floor.clone();
            async move { floor.lock_and_unlock(&waiter.to_string()).await }
        })
        .await;
        // A handover by a write cannot be faster than sequential writes without contention.
        let raw = raw.clone();
        serial += handoffs::count(1, CONTENDED, move |_| {
            let raw = raw.clone();
            async move { raw.pair("raw/floor", lease).await }
        })
        .await;
        let recipe = recipe.clone();
        theirs += handoffs::count(waiters, CONTENDED, move |waiter| {
            let recipe = recipe.clone();
            async move { recipe.lock_and_unlock(waiter).await }
        })
        .await;
    }
    let requests = (handle.requests() - before) as f64 / fresh.count as f64;
    // A long hold opens a watch on the lock, which stays for a while.
    let held = lockers[0].lock(&name).await.expect("granted");
    tokio::time::sleep(LONG_HOLD).await;
    held.unlock().await.expect("released");
    let mut watched = ours(&lockers).await;
    println!(
        "{waiters} waiters: {:.0} handoffs/s, {:.2}× the queue floor of {:.0} (aim: 0.8×), {:.1}× the recipe of Go's client \
         with {:.0}; {requests:.2} requests per lock+unlock; gap p50 {:.2?}, p99 {:.2?}, longest {:.2?}; the \
         floor's p50 {:.2?}, p99 {:.2?}",
        fresh.per_second(),
        fresh.per_second() / by_floor.per_second(),
        by_floor.per_second(),
        fresh.per_second() / theirs.per_second(),
        theirs.per_second(),
        fresh.gap(0.5),
        fresh.gap(0.99),
        fresh.gap(1.0),
        by_floor.gap(0.5),
        by_floor.gap(0.99),
    );
    println!(
        "  after a long hold: {:.0} handoffs/s, {:.2}× the queue floor, gap p99 {:.2?}; one write after the other: {:.0}/s",
        watched.per_second(),
        watched.per_second() / by_floor.per_second(),
        watched.gap(0.99),
        serial.per_second() * 2.0
    );
}

/// One waiter in each of several processes, ours and the queue floor in alternation.
pub(super) fn in_processes(server: &EtcdServer, processes: usize) {
    let (mut ours, mut floor) = (Handoffs::default(), Handoffs::default());
    for round in 0..CONTENDED_ROUNDS {
        ours += contend(server, "ours", &format!("processes{processes}.{round}"), processes);
        floor += contend(server, "floor", &format!("floors{processes}.{round}"), processes);
    }
    let (ours, floor) = (ours.per_second(), floor.per_second());
    println!(
        "{processes} processes: {ours:.0} handoffs/s, {:.2}× the queue floor of {floor:.0} (aim: 0.8×)",
        ours / floor
    );
}

/// Runs a contender in each of several processes at the same time, and adds up their turns.
fn contend(server: &EtcdServer, kind: &str, name: &str, processes: usize) -> Handoffs {
    let program = std::env::current_exe().expect("this program");
    let start = || {
        let mut command = Command::new(&program);
        command.args(["etcd-contender", kind, &server.address().to_string(), name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process")
    };
    let mut contenders: Vec<_> = (0..processes).map(|_| start()).collect();
    let mut outputs: Vec<_> =
        contenders.iter_mut().map(|one| BufReader::new(one.stdout.take().expect("piped"))).collect();
    for output in &mut outputs {
        output.read_line(&mut String::new()).expect("it is ready");
    }
    let begin = Instant::now();
    for contender in &mut contenders {
        contender.stdin.take().expect("piped").write_all(b"go\n").expect("it waits");
    }
    let turns = outputs.iter_mut().map(|output| {
        let mut turns = String::new();
        output.read_to_string(&mut turns).expect("it ends");
        turns.trim().parse::<u64>().expect("a number")
    });
    let turns = turns.sum();
    let time = begin.elapsed();
    contenders.iter_mut().for_each(|contender| assert!(contender.wait().expect("it ends").success()));
    Handoffs::new(turns, time)
}

/// One contender: connects, says so, and takes turns when it is told to begin. Prints how many.
pub(crate) fn contender(arguments: &[String]) {
    let [kind, address, name] = arguments else { panic!("kind, address, name") };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let ready = || {
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).expect("told to begin");
    };
    let turns = runtime.block_on(async {
        let raw = Raw::connect(&format!("http://{address}")).await;
        if kind == "floor" {
            let floor = Arc::new(QueueFloor::connect(raw, name).await);
            ready();
            let waiter = Arc::new(std::process::id().to_string());
            let take_turn = move |_| {
                let (floor, waiter) = (floor.clone(), waiter.clone());
                async move { floor.lock_and_unlock(&waiter).await }
            };
            return handoffs::count(1, CONTENDED, take_turn).await;
        }
        let (locker, _) = engine(address);
        locker.lock(format!("{name}.{}", std::process::id())).await.expect("granted").unlock().await.expect("released");
        ready();
        let name = name.clone();
        let take_turn = move |_| {
            let request = locker.lock(&name);
            async move { request.await.expect("granted").unlock().await.expect("released") }
        };
        handoffs::count(1, CONTENDED, take_turn).await
    });
    println!("{}", turns.count);
}
