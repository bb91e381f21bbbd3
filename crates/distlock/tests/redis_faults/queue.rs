//! Queues with waiters of different leases, with many dead waiters, and with holders whose leases expire
//! intentionally.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::backend::{Backend, Claim, Claimed};
use distlock::{Clock, ErrorKind, Key, LockGuard, LockRequest, Locker, Mode, OwnerId, Process, Record};
use distlock_testkit::child::Child;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, sleep};

/// A lease whose waiter claims every ten seconds.
const LONG: Duration = Duration::from_secs(30);
/// A limit that is too short for such a claim.
const AT_ONCE: Duration = Duration::from_secs(8);

type Waiter = JoinHandle<distlock::Result<LockGuard>>;

fn claim_for(mode: Mode, ttl: Duration) -> Claim {
    let record = Record::new(OwnerId::random(), Process::current(), None, Clock::system().wall());
    Claim::new(Key::new("a").expect("a name"), ttl, true, Arc::new(record.with_mode(mode)))
}

fn engine(port: u16) -> Redis {
    Redis::tcp("127.0.0.1", port).build().expect("an engine")
}

pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let latest = now().after(TEST_LIMIT * 2);
    while !is_so() {
        assert!(now() < latest, "never: {what}");
        sleep(ms(5)).await;
    }
}

/// Returns when the queue of the lock `a` has `count` places, including dead waiters.
async fn expect_places(bench: &Bench, count: i64) {
    until("places in the queue", || bench.command("ZCARD {a}:q").int() >= count).await;
}

/// Starts a request, and returns when its owner is in the queue.
async fn queue(bench: &Bench, owner: &str, request: LockRequest) -> Waiter {
    let waiter = tokio::spawn(request.owner(owner).wait(TEST_LIMIT * 3).into_future());
    let name = format!("\"owner\":\"{owner}\"");
    let is_there = |reply: &distlock_testkit::servers::Reply| reply.to_string().contains(&name);
    until("a place in the queue", || bench.command("HVALS {a}:w").array().iter().any(is_there)).await;
    waiter
}

async fn granted(waiter: Waiter) -> LockGuard {
    timeout(TEST_LIMIT * 3, waiter).await.expect("in time").expect("no panic").expect("granted")
}

#[tokio::test]
async fn f72_a_waiter_behind_one_with_a_shorter_lease_keeps_its_place() {
    let bench = Bench::start();
    let [holder, patient, newcomer] = [bench.direct().await, bench.direct().await, bench.direct().await];
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut hasty = Child::start();
    hasty.connect(&bench.server.url());
    hasty.send("lock a 3000");
    expect_places(&bench, 1).await;
    let first = bench.command("ZRANGE {a}:q 0 0").array()[0].to_string();
    let entry = || bench.command(&format!("HGET {{a}}:w {first}")).to_string();
    let patient = queue(&bench, "patient", patient.lock("a").ttl(LONG)).await;
    // The first waiter claims again: that must not shorten the TTL of the queue for the waiter behind it.
    let before = entry();
    until("another claim of the first", || entry() != before).await;
    for key in ["{a}:q", "{a}:w"] {
        let left = bench.command(&format!("PTTL {key}")).int();
        assert!((15_000..=30_000).contains(&left), "{key} lasts for {left} ms");
    }
    hasty.kill9();
    // As long as the first waiter's heartbeat.
    sleep(ms(3500)).await;
    let newcomer = queue(&bench, "newcomer", newcomer.lock("a").ttl(TTL)).await;
    guard.unlock().await.expect("released");
    let (second, third) = tokio::join!(
        async {
            let guard = granted(patient).await;
            let token = guard.fencing_token();
            guard.unlock().await.expect("released");
            token
        },
        granted(newcomer)
    );
    assert!(second < third.fencing_token(), "the newcomer was served first");
    third.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f72_both_keys_of_a_queue_expire_independently() {
    let bench = Bench::start();
    let (holder, waiter) = (engine(bench.server.port()), engine(bench.server.port()));
    let (long, short) = (claim_for(Mode::Exclusive, LONG), claim_for(Mode::Exclusive, ms(3000)));
    assert!(matches!(holder.claim(&claim_for(Mode::Exclusive, TEST_LIMIT)).await, Ok(Claimed::Granted(_))));
    for key in ["{a}:q", "{a}:w"] {
        for claim in [&long, &short] {
            assert!(matches!(waiter.claim(claim).await, Ok(Claimed::Busy(_))));
        }
        bench.command(&format!("DEL {key}"));
        assert!(matches!(waiter.claim(&short).await, Ok(Claimed::Busy(_))));
        assert!(matches!(waiter.claim(&long).await, Ok(Claimed::Busy(_))));
        for key in ["{a}:q", "{a}:w"] {
            let left = bench.command(&format!("PTTL {key}")).int();
            assert!((20_000..=30_000).contains(&left), "{key} lasts for {left} ms");
        }
        // As after the clock was set back by an hour.
        bench.command(&format!("PEXPIRE {key} 3600000"));
        assert!(matches!(waiter.claim(&short).await, Ok(Claimed::Busy(_))));
        let left = bench.command(&format!("PTTL {key}")).int();
        assert!((3000..=30_000).contains(&left), "{key} lasts for {left} ms");
    }
}

/// Queues a claim. A busy machine may not reply in time at first.
async fn take_place(engine: &Redis, claim: &Claim) {
    let latest = now().after(TEST_LIMIT);
    loop {
        match engine.claim(claim).await {
            Ok(Claimed::Busy(_)) => return,
            Err(error) if error.kind() != ErrorKind::Auth && now() < latest => sleep(ms(20)).await,
            other => panic!("no place in the queue: {other:?}"),
        }
    }
}

/// Puts dead waiters into the queue of `a`: each has its own connection, which is closed. Some are killed processes.
async fn die_waiting(bench: &Bench, mode: Mode, ttl: Duration, count: usize) {
    let listeners = || bench.command("PUBSUB CHANNELS distlock:wake:*").array().len();
    let before = (listeners(), bench.command("ZCARD {a}:q").int());
    let mut engines = Vec::new();
    for _ in 0..count {
        let engine = engine(bench.server.port());
        take_place(&engine, &claim_for(mode, ttl)).await;
        engines.push(engine);
    }
    assert_eq!(bench.command("ZCARD {a}:q").int(), before.1 + i64::try_from(count).expect("few"));
    drop(engines);
    until("that the server has seen them go", || listeners() <= before.0).await;
}

/// The lock is released with dead waiters before a live one: the live waiter is served at once, and no newcomer before
/// it.
async fn expect_next(bench: &Bench, release: impl AsyncFnOnce(), waiter: Waiter, newcomer: LockRequest) {
    let released = now();
    release().await;
    let newcomer = tokio::spawn(newcomer.wait(TEST_LIMIT * 3).into_future());
    let next = granted(waiter).await;
    let late = now().since(released);
    assert!(late < AT_ONCE, "served after {late:?}");
    let token = next.fencing_token();
    next.unlock().await.expect("released");
    let last = granted(newcomer).await;
    assert!(last.fencing_token() > token, "a newcomer was served first");
    last.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f73_a_live_waiter_behind_many_killed_ones_is_served_at_once() {
    for count in [40, 100, 300] {
        let bench = Bench::start();
        let [holder, alive, newcomer] = [bench.direct().await, bench.direct().await, bench.direct().await];
        let guard = holder.lock("a").ttl(LONG).await.expect("granted");
        let mut killed: Vec<Child> = (0..4).map(|_| Child::start()).collect();
        for (child, place) in killed.iter_mut().zip(1..) {
            child.connect(&bench.server.url());
            child.send("lock a 30000");
            expect_places(&bench, place).await;
        }
        die_waiting(&bench, Mode::Exclusive, LONG, count - 4).await;
        let waiter = queue(&bench, "alive", alive.lock("a").ttl(LONG)).await;
        let listeners = || bench.command("PUBSUB CHANNELS distlock:wake:*").array().len();
        killed.iter_mut().for_each(|child| child.kill9());
        until("that the server has seen them go", || listeners() == 3).await;
        let release = async || guard.unlock().await.expect("released");
        expect_next(&bench, release, waiter, newcomer.lock("a").ttl(LONG)).await;
    }
}

#[tokio::test]
async fn f73_a_live_waiter_behind_many_of_one_killed_process_is_served_at_once() {
    let bench = Bench::start();
    let [holder, alive, newcomer] = [bench.direct().await, bench.direct().await, bench.direct().await];
    let guard = holder.lock("a").ttl(LONG).await.expect("granted");
    let gone = engine(bench.server.port());
    for _ in 0..300 {
        take_place(&gone, &claim_for(Mode::Exclusive, LONG)).await;
    }
    drop(gone);
    let waiter = queue(&bench, "alive", alive.lock("a").ttl(LONG)).await;
    let listeners = || bench.command("PUBSUB CHANNELS distlock:wake:*").array().len();
    until("that the server has seen it go", || listeners() == 3).await;
    let release = async || guard.unlock().await.expect("released");
    expect_next(&bench, release, waiter, newcomer.lock("a").ttl(LONG)).await;
}

#[tokio::test]
async fn f73_a_live_waiter_behind_many_silent_ones_is_served_at_once() {
    let bench = Bench::start();
    let [holder, alive, newcomer] = [bench.direct().await, bench.direct().await, bench.direct().await];
    let guard = holder.lock("a").ttl(LONG).await.expect("granted");
    // They stay subscribed, and give no sign of life.
    let silent = engine(bench.server.port());
    let long = claim_for(Mode::Exclusive, LONG);
    for count in 0..100 {
        // The last of them only keeps the queue alive until the live waiter comes.
        let claim = if count == 99 { long.clone() } else { claim_for(Mode::Exclusive, ms(3000)) };
        take_place(&silent, &claim).await;
    }
    silent.release(&long).await.expect("withdrawn");
    let waiter = queue(&bench, "alive", alive.lock("a").ttl(LONG)).await;
    sleep(ms(3100)).await;
    assert_eq!(bench.command("ZCARD {a}:q").int(), 100);
    let release = async || guard.unlock().await.expect("released");
    expect_next(&bench, release, waiter, newcomer.lock("a").ttl(LONG)).await;
}

#[tokio::test]
async fn f73_a_newcomer_does_not_overtake_a_live_waiter_behind_dead_ones() {
    for count in [40, 300] {
        let bench = Bench::start();
        let [alive, newcomer] = [bench.direct().await, bench.direct().await];
        bench.command("SET a foreign PX 600000");
        die_waiting(&bench, Mode::Exclusive, LONG, count).await;
        let waiter = queue(&bench, "alive", alive.lock("a").ttl(LONG)).await;
        let release = async || drop(bench.command("DEL a"));
        expect_next(&bench, release, waiter, newcomer.lock("a").ttl(LONG)).await;
    }
}

#[tokio::test]
async fn f73_a_permit_and_a_reader_behind_many_dead_waiters_enter_at_once() {
    type Ask = fn(&Locker) -> LockRequest;
    let permit: Ask = |locker| locker.semaphore("a", 2).acquire().ttl(LONG);
    let writer: Ask = |locker| locker.lock("a").ttl(LONG);
    let reader: Ask = |locker| locker.read("a").ttl(LONG);
    for (mode, first, next) in [(Mode::Slot { of: 2 }, permit, permit), (Mode::Shared, writer, reader)] {
        for count in [40, 300] {
            let bench = Bench::start();
            let [holder, other, alive, newcomer] =
                [bench.direct().await, bench.direct().await, bench.direct().await, bench.direct().await];
            let guard = first(&holder).await.expect("granted");
            let second = if mode == Mode::Shared { None } else { Some(first(&other).await.expect("granted")) };
            die_waiting(&bench, mode, LONG, count).await;
            let waiter = queue(&bench, "alive", next(&alive)).await;
            let release = async || guard.unlock().await.expect("released");
            let newcomer = if mode == Mode::Shared { writer(&newcomer) } else { permit(&newcomer) };
            if let Some(second) = second {
                // Released later, so that no state is left in the end.
                tokio::spawn(async move {
                    sleep(AT_ONCE).await;
                    drop(second.unlock().await);
                });
            }
            expect_next(&bench, release, waiter, newcomer).await;
        }
    }
}

#[tokio::test]
async fn f73_a_stopped_process_with_many_waiters_delays_by_one_first_lease() {
    let bench = Bench::start();
    let [holder, alive] = [bench.direct().await, bench.direct().await];
    let guard = holder.lock("a").ttl(LONG).await.expect("granted");
    // Its connection accepts messages, but its process does not read them.
    let stopped = engine(bench.proxy.port());
    for _ in 0..60 {
        take_place(&stopped, &claim_for(Mode::Exclusive, LONG)).await;
    }
    bench.proxy.freeze();
    let waiter = queue(&bench, "alive", alive.lock("a").ttl(ms(3000))).await;
    let released = now();
    guard.unlock().await.expect("released");
    let next = granted(waiter).await;
    assert!(now().since(released) < AT_ONCE, "served after {:?}", now().since(released));
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn an_intended_expiry_keeps_the_queue_places_of_its_process() {
    type Ask = fn(&Locker) -> LockRequest;
    let unwatched: Ask = |locker| locker.lock("a").ttl(TTL).watchdog(false);
    let bounded: Ask = |locker| locker.lock("a").ttl(ms(3000)).max_hold(ms(500)).lock_delay(ms(1000));
    // It ends before the first lease would be renewed.
    let brief: Ask = |locker| locker.lock("a").ttl(ms(10_000)).max_hold(ms(200)).lock_delay(ms(500));
    for ask in [unwatched, bounded, brief] {
        let bench = Bench::start();
        let [holder, alive, other] = [bench.direct().await, bench.direct().await, bench.direct().await];
        let guard = holder.lock("a").ttl(LONG).await.expect("granted");
        let first = queue(&bench, "first", ask(&alive)).await;
        // Claims every ten seconds, so that the waiter behind it is the first to find the lock free.
        let second = queue(&bench, "second", alive.lock("a").ttl(LONG)).await;
        let third = queue(&bench, "third", other.lock("a").ttl(ms(3000))).await;
        guard.unlock().await.expect("released");
        let lapsed = granted(first).await;
        timeout(TEST_LIMIT, lapsed.lost()).await.expect("its lease runs out");
        let after = async |waiter| {
            let guard = granted(waiter).await;
            let token = guard.fencing_token();
            guard.unlock().await.expect("released");
            token
        };
        let (second, third) = tokio::join!(after(second), after(third));
        assert!(second < third, "a live process's waiter was sent to the end");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn an_intended_permit_expiry_keeps_the_queue_places_of_its_process() {
    let bench = Bench::start();
    let (alive, other) = (engine(bench.server.port()), engine(bench.server.port()));
    let owner = OwnerId::random();
    let entry = |ttl: Duration, lapses: bool| {
        let mut record = Record::new(owner.clone(), Process::current(), None, Clock::system().wall());
        record.lapses = lapses;
        Claim::new(Key::new("a").expect("a name"), ttl, true, Arc::new(record.with_mode(Mode::Reentrant)))
    };
    assert!(matches!(alive.claim(&entry(LONG, false)).await, Ok(Claimed::Granted(_))));
    let waiter = claim_for(Mode::Exclusive, LONG);
    take_place(&alive, &waiter).await;
    // As long as a first lease, without one: entries of the owner bypass the queue.
    sleep(ms(5)).await;
    assert!(matches!(alive.claim(&entry(ms(1000), true)).await, Ok(Claimed::Granted(_))));
    until("the end of the lease", || {
        let ends = bench.command("ZRANGE {a}:e 0 0 WITHSCORES").array()[1].to_string();
        let time = bench.command("TIME").array()[0].to_string();
        time.parse::<f64>().expect("a number") * 1000.0 > ends.parse::<f64>().expect("a number")
    })
    .await;
    // It removes the entry whose lease has ended.
    assert!(matches!(other.claim(&entry(LONG, false)).await, Ok(Claimed::Granted(_))));
    assert_eq!(bench.command("ZCARD {a}:e").int(), 2);
    assert_eq!(bench.command("ZRANGE {a}:q 0 0").array()[0].to_string(), waiter.attempt.to_string());
}

#[tokio::test]
async fn a_claim_waits_behind_dead_waiters_without_a_token() {
    let bench = Bench::start();
    let mode = Mode::Slot { of: 2 };
    let holder = engine(bench.server.port());
    let (first, second) = (claim_for(mode, LONG), claim_for(mode, LONG));
    for claim in [&first, &second] {
        assert!(matches!(holder.claim(claim).await, Ok(Claimed::Granted(_))));
    }
    die_waiting(&bench, mode, LONG, 3).await;
    // Without a token no claim can be granted.
    bench.command("SET {distlock}:f film");
    holder.release(&second).await.expect("released");
    let waits = claim_for(mode, LONG);
    let answer = holder.claim(&waits).await;
    assert!(matches!(answer, Ok(Claimed::Busy(_))), "{answer:?}");
    assert!(matches!(bench.command(&format!("ZRANK {{a}}:q {}", waits.attempt)).int(), 0..=3));
}

/// Fills the queue of `a` with waiters of `processes` processes in turn, none of which can be reached by a message.
fn fill_queue(bench: &Bench, count: usize, processes: usize) {
    let script = "local time = redis.call('TIME') \
        local alive_until = string.format('%.0f', time[1] * 1000 + time[2] / 1000 + 29000) \
        for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do \
          local id = string.format('%032x', i) \
          redis.call('ZADD', KEYS[1], i, id) \
          redis.call('HSET', KEYS[2], id, '30000 ' .. alive_until .. ' dead' .. i % ARGV[3] .. ' 0 x {}') \
        end \
        redis.call('PEXPIRE', KEYS[1], 30000) \
        redis.call('PEXPIRE', KEYS[2], 30000) \
        return redis.call('ZCARD', KEYS[1])";
    for from in (0..count).step_by(10_000) {
        let till = (from + 10_000).min(count) - 1;
        let (from, till, processes) = (from.to_string(), till.to_string(), processes.to_string());
        bench.server.command(&["EVAL", script, "2", "{a}:q", "{a}:w", &from, &till, &processes]);
    }
    assert_eq!(bench.command("ZCARD {a}:q").int(), i64::try_from(count).expect("few"));
}

#[tokio::test]
async fn f73_no_call_blocks_the_server_for_long_with_very_many_dead_waiters() {
    let bench = Bench::start();
    let newcomer = engine(bench.server.port());
    let mine = claim_for(Mode::Exclusive, LONG);
    assert!(matches!(newcomer.claim(&mine).await, Ok(Claimed::Granted(_))));
    newcomer.release(&mine).await.expect("released");
    fill_queue(&bench, 60_000, 1);
    // The lock was handed over to one of them, and its first lease expired.
    let seconds = bench.command("TIME").array()[0].to_string();
    bench.server.command(&["HSET", "{a}:w", "handed", &format!("dead0 {seconds}000 30000 h")]);
    bench.command("CONFIG SET slowlog-log-slower-than 150000");
    bench.command("SLOWLOG RESET");
    let answer = newcomer.claim(&mine).await;
    assert!(matches!(answer, Ok(Claimed::Granted(_))), "{answer:?}");
    let slow = bench.command("SLOWLOG GET 5");
    assert!(slow.array().is_empty(), "{slow:?}");
}

#[tokio::test]
async fn f73_dead_waiters_of_many_processes_are_dropped_in_any_order() {
    let bench = Bench::start();
    let newcomer = engine(bench.server.port());
    fill_queue(&bench, 20_000, 300);
    let mine = claim_for(Mode::Exclusive, LONG);
    let answer = newcomer.claim(&mine).await;
    assert!(matches!(answer, Ok(Claimed::Granted(_))), "{answer:?}");
    newcomer.release(&mine).await.expect("released");
    bench.expect_nothing_left().await;
}
