//! Locks with several holders: readers, permits, entries of one owner; and holds that are relabelled or adopted.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::backend::{Backend, Claim, Claimed, Wake};
use distlock::{Clock, ErrorKind, Key, LockRequest, Locker, LossReason, Mode, OwnerId, Process, Record};
use distlock_testkit::child::Child;
use distlock_testkit::servers::{Data, RedisServer};
use distlock_testkit::{Turns, poll_times};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, sleep};
use crate::natives::listed;

/// A request in a mode with several holders.
type Ask = fn(&Locker, &str) -> LockRequest;

/// One request in each such mode.
const MODES: [Ask; 3] = [
    |locker, key| locker.read(key),
    |locker, key| locker.semaphore(key, 3).acquire(),
    |locker, key| locker.lock(key).owner("order-7").reentrant(),
];

/// Returns a claim of the lock `a` that queues.
fn claim_for(mode: Mode, ttl: Duration) -> Claim {
    let record = Record::new(OwnerId::random(), Process::current(), None, Clock::system().wall());
    Claim::new(Key::new("a").expect("a name"), ttl, true, Arc::new(record.with_mode(mode)))
}

/// Returns when `count` clients wait for the lock `a`.
async fn expect_waiters(bench: &Bench, count: i64) {
    let until = now().after(TEST_LIMIT);
    while bench.command("ZCARD {a}:q").int() != count {
        assert!(now() < until, "never {count} in the queue");
        sleep(ms(5)).await;
    }
}

#[tokio::test]
async fn f12_a_killed_group_holder_leaves_after_its_lease_and_the_others_stay() {
    let bench = Bench::start();
    let (locker, writer) = (bench.direct().await, bench.direct().await);
    for (order, ask) in ["read a 1500", "permit a 1500 3", "enter a 1500 order-7"].into_iter().zip(MODES) {
        let mut child = Child::start();
        child.connect(&bench.server.url());
        child.ask(order).token();
        let living = ask(&locker, "a").await.expect("beside it");
        assert_eq!(bench.command("ZCARD {a}:e").int(), 2);
        child.kill9();
        let killed = now();
        let until = killed.after(TEST_LIMIT);
        // A joining client removes the dead one; a client that leaves again at once changes nothing else.
        while bench.command("ZCARD {a}:e").int() > 1 {
            assert!(now() < until, "{order}: it never left");
            let joined = ask(&writer.clone(), "a").owner("order-7").await;
            joined.expect("joined").unlock().await.expect("left");
            sleep(ms(20)).await;
        }
        assert!(now().since(killed) > ms(500), "{order}: out before its lease was over");
        living.check().expect("the living one stays");
        if !order.starts_with("permit") {
            assert!(writer.try_lock("a").await.expect("no failure").is_none(), "{order}: one is inside");
        }
        living.unlock().await.expect("released");
        writer.lock("a").wait(TEST_LIMIT).await.expect("free").unlock().await.expect("released");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f01_a_group_claim_with_a_lost_reply_counts_once() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    for ask in MODES {
        bench.proxy.drop_replies();
        let waiting = tokio::spawn(ask(&locker, "a").ttl(TEST_LIMIT).into_future());
        while bench.keys().is_empty() {
            sleep(ms(5)).await;
        }
        let fence = bench.command("GET {distlock}:f").int();
        bench.proxy.pass();
        let guard = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
        assert_eq!(guard.fencing_token().get().to_string(), fence.to_string(), "another grant than the first");
        assert_eq!(bench.command("ZCARD {a}:e").int(), 1, "counted twice");
        assert!(guard.slot().is_none_or(|slot| slot == 0));
        guard.unlock().await.expect("released");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f04_a_group_release_with_a_lost_reply_removes_no_other_holder() {
    let bench = Bench::start();
    let (locker, other) = (bench.behind_proxy().await, bench.direct().await);
    for ask in MODES {
        let stays = ask(&other, "a").ttl(TEST_LIMIT).await.expect("granted");
        let guard = ask(&locker, "a").ttl(TEST_LIMIT).await.expect("granted");
        bench.proxy.drop_replies();
        let error = guard.unlock().await.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        assert_eq!(bench.command("ZCARD {a}:e").int(), 1, "it left");
        bench.proxy.pass();
        // The release is retried in the background: after a moment for it, the other holder must still be inside.
        ask(&locker, "b").wait(TEST_LIMIT).await.expect("connected again").unlock().await.expect("released");
        sleep(ms(300)).await;
        stays.extend(TEST_LIMIT).await.expect("still inside");
        stays.unlock().await.expect("released");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f07_a_reader_cancelled_at_any_poll_leaves_nothing() {
    let bench = Bench::start();
    let (locker, writer) = (bench.behind_proxy().await, bench.direct().await);
    bench.proxy.delay(ms(3));
    for (polls, pause) in (0..5).flat_map(|polls| [0, 5, 20].map(|pause| (polls, ms(pause)))) {
        let writing = writer.lock("a").ttl(TEST_LIMIT).await.expect("granted");
        let mut reading = Box::pin(locker.read("a").ttl(TEST_LIMIT * 2).into_future());
        let granted = poll_times(polls, &mut reading).await;
        sleep(pause).await;
        // The handoff may be in flight to the waiter that is about to leave.
        writing.unlock().await.expect("released");
        drop((granted, reading));
        let asked = now();
        let guard = writer.lock("a").wait(TEST_LIMIT).await.expect("the cancelled reader is out");
        assert!(now().since(asked) < TEST_LIMIT / 4);
        guard.unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f09_a_cancelled_writer_lets_the_readers_behind_it_in() {
    let bench = Bench::start();
    let (one, two, writer) = (bench.direct().await, bench.direct().await, bench.direct().await);
    let inside = one.read("a").ttl(TEST_LIMIT).await.expect("granted");
    let writing = tokio::spawn(writer.lock("a").ttl(TEST_LIMIT).into_future());
    expect_waiters(&bench, 1).await;
    let reading = tokio::spawn(two.read("a").ttl(TEST_LIMIT).into_future());
    expect_waiters(&bench, 2).await;
    let gave_up = now();
    writing.abort();
    let second = timeout(TEST_LIMIT, reading).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(gave_up) < TEST_LIMIT / 4, "by a message, not by a poll");
    second.unlock().await.expect("released");
    inside.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f15_a_frozen_reader_process_delays_the_writer_by_one_first_lease() {
    let bench = Bench::start();
    let (holder, writer) = (bench.direct().await, bench.direct().await);
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut child = Child::start();
    child.connect(&bench.server.url());
    child.send("read a 20000");
    expect_waiters(&bench, 1).await;
    let writing = tokio::spawn(writer.lock("a").ttl(TEST_LIMIT).into_future());
    expect_waiters(&bench, 2).await;
    child.stop();
    let released = now();
    guard.unlock().await.expect("released");
    let guard = timeout(TEST_LIMIT, writing).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(released) < ms(10_000), "as long as a whole lease: {:?}", now().since(released));
    child.cont();
    // It wakes up with a message that it was let in: its lease has already ended.
    assert!(writer.clone().try_read("a").await.expect("no failure").is_none(), "a writer is inside");
    guard.unlock().await.expect("released");
    child.receive().token();
    child.unlock("a");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn a_waiter_that_queues_after_its_lease_expired_is_not_silent() {
    let bench = Bench::start();
    // Without a keeper, so nothing is renewed or released.
    let [alive, silent, other] =
        [(); 3].map(|()| Redis::tcp("127.0.0.1", bench.server.port()).build().expect("an engine"));
    let lease = ms(3000);
    for engine in [&alive, &silent] {
        assert!(matches!(engine.claim(&claim_for(Mode::Shared, lease)).await, Ok(Claimed::Granted(_))));
    }
    assert!(matches!(other.claim(&claim_for(Mode::Shared, TEST_LIMIT)).await, Ok(Claimed::Granted(_))));

    let [early, gone, late] = [(); 3].map(|()| claim_for(Mode::Exclusive, TEST_LIMIT));
    assert!(matches!(alive.claim(&early).await, Ok(Claimed::Busy(_))));
    assert!(matches!(silent.claim(&gone).await, Ok(Claimed::Busy(_))));
    sleep(lease + ms(100)).await;
    assert!(matches!(alive.claim(&late).await, Ok(Claimed::Busy(_))));
    // A reader is the first client to notice that the leases have ended.
    let behind = claim_for(Mode::Shared, TEST_LIMIT);
    assert!(matches!(other.claim(&behind).await, Ok(Claimed::Busy(_))));
    let queued: Vec<_> = bench.command("ZRANGE {a}:q 0 -1").array().iter().map(ToString::to_string).collect();
    assert_eq!(queued, [early, late, behind].map(|claim| claim.attempt.to_string()));
}

#[tokio::test]
async fn a_queue_place_from_before_a_clock_jump_is_no_sign_of_life() {
    let bench = Bench::start();
    let [silent, other] = [(); 2].map(|()| Redis::tcp("127.0.0.1", bench.server.port()).build().expect("an engine"));
    let lease = ms(2000);
    assert!(matches!(other.claim(&claim_for(Mode::Shared, TEST_LIMIT)).await, Ok(Claimed::Granted(_))));
    assert!(matches!(silent.claim(&claim_for(Mode::Shared, lease)).await, Ok(Claimed::Granted(_))));
    let gone = claim_for(Mode::Exclusive, TEST_LIMIT);
    assert!(matches!(silent.claim(&gone).await, Ok(Claimed::Busy(_))));
    bench.command(&format!("ZADD {{a}}:q XX 9000000000000000 {}", gone.attempt));
    sleep(lease + ms(100)).await;
    let behind = claim_for(Mode::Exclusive, TEST_LIMIT);
    assert!(
        matches!(other.claim(&claim_for(Mode::Shared, TEST_LIMIT)).await, Ok(Claimed::Granted(_))),
        "it is at the head of the queue"
    );
    assert!(matches!(other.claim(&behind).await, Ok(Claimed::Busy(_))));
    assert_eq!(bench.command("ZCARD {a}:q").int(), 1);
}

#[tokio::test]
async fn f23_a_group_survives_a_restart_only_with_its_data() {
    let mut bench = Bench::with(RedisServer::options().persistent());
    let locker = bench.direct().await;
    let mut guards = Vec::new();
    for (ask, key) in MODES.into_iter().zip(["r", "p", "e"]) {
        guards.push(ask(&locker, key).ttl(TEST_LIMIT).await.expect("granted"));
    }
    bench.server.restart(Data::Kept);
    for guard in &guards {
        guard.extend(TEST_LIMIT).await.or(guard.extend(TEST_LIMIT).await).expect("renewed on a new connection");
    }
    bench.server.restart(Data::Lost);
    for guard in guards {
        // A renewal reports it, the next one in time or this one.
        while guard.extend(TEST_LIMIT).await.is_err_and(|error| error.kind() != ErrorKind::Lost) {
            sleep(ms(20)).await;
        }
        assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Revoked);
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f31_without_memory_groups_are_renewed_and_released() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let mut guards = Vec::new();
    for (ask, key) in MODES.into_iter().zip(["r", "p", "e"]) {
        guards.push(ask(&locker, key).await.expect("granted"));
    }
    bench.command("CONFIG SET maxmemory 1");
    for key in ["another", "r"] {
        let error = locker.clone().try_read(key).await.expect_err("no memory");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{key}: {error}");
    }
    for guard in guards {
        guard.extend(TTL).await.expect("renewed");
        guard.unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f34_a_wrong_type_at_the_holders_key_is_found_before_any_write() {
    let bench = Bench::start();
    let (locker, other) = (bench.direct().await, bench.direct().await);
    for (companion, ask) in ["{a}:h", "{a}:e"].into_iter().flat_map(|companion| MODES.map(|ask| (companion, ask))) {
        bench.command(&format!("LPUSH {companion} x"));
        let fence = || bench.command("GET {distlock}:f").to_string();
        let before = fence();
        let error = ask(&locker, "a").wait(TEST_LIMIT).await.expect_err("no holder can be stored there");
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert_eq!((bench.keys(), fence()), (vec![companion.to_owned()], before), "nothing was written");
        // An exclusive lock does not need these keys, and cannot be handed to clients that do.
        let guard = locker.lock("a").ttl(TTL).await.expect("granted");
        let waiting = tokio::spawn(ask(&other, "a").wait(TEST_LIMIT).into_future());
        let outcome = timeout(TEST_LIMIT, async {
            sleep(ms(50)).await;
            guard.unlock().await.expect("released all the same");
            waiting.await.expect("no panic")
        });
        assert!(outcome.await.expect("in time").is_err());
        assert_eq!(bench.command(&format!("LRANGE {companion} 0 -1")).array().len(), 1, "left alone");
        bench.command(&format!("DEL {companion}"));
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f35_groups_and_foreign_clients_exclude_each_other() {
    let bench = Bench::start();
    let (one, two) = (bench.direct().await, bench.direct().await);
    for ask in MODES {
        let (first, second) = (ask(&one, "a").await.expect("granted"), ask(&two, "a").await.expect("granted"));
        let foreign = || bench.command("SET a mine NX PX 60000").to_string();
        assert_ne!(foreign(), "OK", "two are inside");
        first.unlock().await.expect("released");
        assert_ne!(foreign(), "OK", "one is inside");
        // As long as the longest lease: a renewal must not let the key expire before it.
        sleep(TTL * 2).await;
        assert_ne!(foreign(), "OK", "one is inside, and was renewed");
        second.unlock().await.expect("released");
        assert_eq!(foreign(), "OK", "the lock is free");
        let error = ask(&one, "a").wait(ms(200)).await.expect_err("the foreign client has it");
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(bench.command("GET a").text(), "mine");
        bench.command("DEL a");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f24_a_group_with_a_deleted_lock_is_lost_and_starts_again() {
    let bench = Bench::start();
    let (one, two) = (bench.direct().await, bench.direct().await);
    for ask in MODES {
        let old = ask(&one, "a").ttl(TEST_LIMIT).await.expect("granted");
        bench.command("DEL a");
        let new = ask(&two, "a").ttl(TEST_LIMIT).await.expect("it is free");
        assert_eq!(bench.command("ZCARD {a}:e").int(), 1, "the old one is not counted");
        assert_eq!(old.extend(TEST_LIMIT).await.expect_err("gone").kind(), ErrorKind::Lost);
        new.extend(TEST_LIMIT).await.expect("untouched");
        new.unlock().await.expect("released");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn one_of_several_holders_is_broken_by_its_token() {
    let bench = Bench::start();
    let (one, two) = (bench.direct().await, bench.direct().await);
    let (first, second) = (one.read("a").await.expect("granted"), two.read("a").await.expect("granted"));
    let waiting = tokio::spawn(two.clone().lock("a").wait(TEST_LIMIT).into_future());
    expect_waiters(&bench, 1).await;
    let shown = one.inspect().get("a").await.expect("shown").expect("held");
    let tokens: Vec<_> = shown.holders.iter().filter_map(|holder| holder.token).collect();
    assert_eq!(tokens, [first.fencing_token(), second.fencing_token()]);
    two.inspect().force_release("a", first.fencing_token(), "stuck").await.expect("broken");
    assert_eq!(timeout(TEST_LIMIT, first.lost()).await.expect("notified"), LossReason::Broken);
    second.check().expect("only the other one");
    assert!(!waiting.is_finished(), "one is inside");
    one.inspect().force_release("a", second.fencing_token(), "stuck").await.expect("broken");
    let guard = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn one_of_several_holders_is_adopted_with_its_slot() {
    let bench = Bench::start();
    let (one, two, third) = (bench.direct().await, bench.direct().await, bench.direct().await);
    for ask in MODES {
        let (stays, old) = (ask(&two, "a").await.expect("granted"), ask(&one, "a").await.expect("granted"));
        let new = third.clone().adopt(&old.export()).await.expect("taken over");
        assert_eq!((new.fencing_token(), new.slot(), new.mode()), (old.fencing_token(), old.slot(), old.mode()));
        assert_eq!(timeout(TEST_LIMIT, old.lost()).await.expect("notified"), LossReason::Adopted);
        assert_eq!(bench.command("ZCARD {a}:e").int(), 2);
        sleep(TTL * 2).await;
        new.check().expect("it is renewed in its new place");
        stays.check().expect("untouched");
        new.relabel("half way").await.expect("changed");
        let shown = one.inspect().get("a").await.expect("shown").expect("held");
        let labels = shown.holders.iter().filter_map(|holder| holder.record.as_ref()?.label.as_deref());
        assert_eq!(labels.collect::<Vec<_>>(), ["half way"]);
        new.unlock().await.expect("released");
        stays.unlock().await.expect("released");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn readers_beyond_the_limit_of_one_call_all_enter() {
    let bench = Bench::start();
    let (holder, readers) = (bench.direct().await, bench.direct().await);
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut waiting = JoinSet::new();
    for _ in 0..100 {
        waiting.spawn(readers.clone().read("a").ttl(TEST_LIMIT * 3).wait(TEST_LIMIT).into_future());
    }
    expect_waiters(&bench, 100).await;
    let released = now();
    guard.unlock().await.expect("released");
    let inside = timeout(TEST_LIMIT, waiting.join_all()).await.expect("in time");
    // Their heartbeat is 30 s, so by polling it would take a third of that.
    assert!(now().since(released) < ms(8_000), "{:?}", now().since(released));
    let inside: Vec<_> = inside.into_iter().map(|granted| granted.expect("granted")).collect();
    assert_eq!(bench.command("ZCARD {a}:e").int(), 100, "all at once");
    for guard in inside {
        guard.unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn a_handed_over_lock_keeps_its_delay() {
    let bench = Bench::start();
    // Without a keeper, so nothing is renewed.
    let engine = Redis::tcp("127.0.0.1", bench.server.port()).build().expect("an engine");
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (first, mut second) = (claim_for(Mode::Exclusive, TEST_LIMIT), claim_for(mode, TEST_LIMIT));
        second.delay = TEST_LIMIT * 30;
        assert!(matches!(engine.claim(&first).await, Ok(Claimed::Granted(_))));
        assert!(matches!(engine.claim(&second).await, Ok(Claimed::Busy(_))));
        engine.release(&first).await.expect("released");
        let Wake::Granted(grant) = timeout(TEST_LIMIT, engine.wait(&second)).await.expect("notified") else {
            panic!("a grant, not a hint");
        };
        assert_eq!(grant.term.expect("a lease").ttl, ms(1000), "the first lease, without the delay");
        let left = u64::try_from(bench.command("PTTL a").int()).expect("it expires");
        assert!(ms(left) > TEST_LIMIT * 29 && ms(left) <= TEST_LIMIT * 30 + ms(1000), "{left} ms");
        let again = engine.claim(&second).await.expect("no error");
        assert!(matches!(again, Claimed::Granted(grant) if grant.term.is_some_and(|term| term.ttl == TEST_LIMIT)));
        let left = u64::try_from(bench.command("PTTL a").int()).expect("it expires");
        assert!(ms(left) > TEST_LIMIT * 30, "{left} ms");
        engine.release(&second).await.expect("released");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn an_exclusive_lock_makes_no_group_calls() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    bench.command("CONFIG RESETSTAT");
    for _ in 0..10 {
        locker.lock("a").ttl(TEST_LIMIT).await.expect("granted").unlock().await.expect("released");
    }
    let calls = |name: &str| bench.server.calls(name);
    let pairs = ["evalsha", "exists", "set", "getrange", "del"].map(calls);
    match listed(&bench.server) {
        None => assert_eq!(pairs, [20, 10, 20, 10, 10]),
        Some(native) => assert_eq!((pairs, calls(&native.to_lowercase())), ([10, 10, 20, 0, 0], 10)),
    }
    assert_eq!(["get", "zcard", "zrange", "hget", "hset", "zadd"].map(calls), [0; 6]);
    assert!(calls("pexpire") <= 2, "for a fence that is new, and when an hour begins");
}

#[tokio::test]
async fn f09_a_thousand_operations_under_kills_and_cancels_keep_a_clean_history() {
    let bench = Bench::start();
    let mut lockers = Vec::new();
    for _ in 0..12 {
        lockers.push(bench.behind_proxy().await);
    }
    let turns = Turns { lockers, rounds: 84, hurry: ms(3) };
    turns.expect_clean_history(&bench.server.url(), || bench.proxy.cut()).await;
    bench.expect_nothing_left().await;
}

/// Scripts of older clients compare this text with their own mode, and count by it. So it is theirs as long as all permits
/// are of one size, and agrees with none of theirs while sizes differ.
#[tokio::test]
async fn older_scripts_agree_with_no_semaphore_of_several_sizes() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let permit = async |slots| {
        let permit = locker.semaphore("a", slots).or_resize().acquire().ttl(TEST_LIMIT).await.expect("granted");
        (permit, bench.command("GET a").text())
    };
    let (first, text) = permit(3).await;
    assert_eq!(text, "distlock group p3");
    let (second, text) = permit(4).await;
    assert_eq!(text, "distlock group p04");
    let (third, text) = permit(3).await;
    assert_eq!(text, "distlock group p04");
    for old in [first, third] {
        old.unlock().await.expect("released");
    }
    let (fourth, text) = permit(4).await;
    assert_eq!(text, "distlock group p4", "the others have left");
    for permit in [second, fourth] {
        permit.unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}
