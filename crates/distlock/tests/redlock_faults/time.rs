//! Clocks that jump, extensions that succeed only in part.

use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::backend::redlock::Redlock;
use distlock::backend::{Attachment, Backend, Claim, Claimed};
use distlock::{Clock, HoldState, Key, LockGuard, Locker, LossReason, OnceOutcome, OwnerId, Process, Record};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::proxy::{Door, Proxy};
use distlock_testkit::servers::RedisServer;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, check_on_3_and_5, eventually, locker_of, ms, now, sleep, unlock};

#[tokio::test]
async fn f47_acks_of_different_rounds_never_make_a_majority() {
    check_on_3_and_5(async |bench| {
        let (all, few) = (bench.all(), bench.minority());
        let locker = bench.behind(&all).await;
        let guard = locker.lock("a").ttl(TTL * 2).watchdog(false).await.expect("granted");
        let deadline = guard.deadline().expect("a lease");
        let (mut first, mut acked) = (0, 0);
        while !guard.is_lost() {
            // A minority replies each time, and each time a different one: over two rounds that would be a majority.
            bench.each(&all, Proxy::drop_replies);
            (0..few.len()).for_each(|next| bench.proxies[(first + next) % all.len()].pass());
            match timeout(ms(900), guard.extend(TTL * 2)).await {
                Ok(Ok(())) => panic!("extended by a minority a round"),
                Ok(Err(error)) => acked += usize::from(error.to_string().contains(": renewed")),
                Err(_) => {}
            }
            assert_eq!(guard.deadline(), Some(deadline), "only a majority of one round moves it");
            first += few.len();
        }
        assert!(acked > 0, "no node ever acknowledged: the test tests nothing");
        assert_eq!(guard.lost().await, LossReason::Expired);
    })
    .await;
}

/// Returns nodes, the last `moved` of which have clocks that can be shifted.
fn with_clocks(count: usize, moved: usize) -> (Bench, ClockShim) {
    let shim = ClockShim::new();
    let options = (0..count).map(|at| match at >= count - moved {
        true => RedisServer::options().clock(&shim),
        false => RedisServer::options(),
    });
    let bench = Bench::with(options.collect());
    bench.nodes.settle();
    (bench, shim)
}

#[tokio::test]
async fn f48_clock_jumps_on_a_minority_lose_votes_and_no_lock() {
    for (count, moved) in [(3, 1), (5, 2)] {
        let (bench, shim) = with_clocks(count, moved);
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = locker.lock("a").ttl(TTL * 3).await.expect("granted");
        shim.forward(ShiftedClock::Wall, TEST_LIMIT * 3);
        let until = now().after(TTL * 2);
        while now() < until {
            let second = other.try_lock("a").await.expect("no failure");
            assert!(second.is_none(), "two holders; the first is {:?}", guard.state());
            sleep(ms(20)).await;
        }
        assert_eq!(guard.state(), HoldState::Held, "the others renew it");
        unlock(guard).await;
        unlock(other.lock("a").wait(TEST_LIMIT).await.expect("granted")).await;
    }
}

#[tokio::test]
async fn f48_backward_clock_jumps_on_a_minority_do_not_matter() {
    for (count, moved) in [(3, 1), (5, 2)] {
        let (bench, shim) = with_clocks(count, moved);
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = locker.lock("a").await.expect("granted");
        let token = guard.fencing_token();
        shim.back(ShiftedClock::Wall, TEST_LIMIT * 3);
        sleep(TTL).await;
        assert_eq!(guard.state(), HoldState::Held);
        assert!(other.try_lock("a").await.expect("no failure").is_none());
        unlock(guard).await;
        let next = other.lock("a").wait(TEST_LIMIT).await.expect("granted");
        assert!(next.fencing_token() > token);
        unlock(next).await;
        // By those clocks no lease ends for a long time.
        bench.expect_nothing_left(&bench.all()).await;
    }
}

/// Requests a run of the tick "1", and marks it as done; returns whether that succeeded within `limit`.
async fn succeeds(locker: &Locker, limit: Duration) -> bool {
    let day = Duration::from_secs(24 * 60 * 60);
    let request = locker.once("job").tick("1").keep(day).ttl(TTL).wait(limit);
    let done = timeout(limit, async {
        match request.await {
            Ok(OnceOutcome::Run(run)) => run.done().await.is_ok(),
            _ => false,
        }
    });
    done.await.unwrap_or(false)
}

#[tokio::test]
async fn f48_a_note_of_a_tick_on_a_node_with_a_fast_clock_does_not_count() {
    let (bench, shim) = with_clocks(5, 1);
    // Before any client knows the node: by its clock, notes of today are to be forgotten.
    shim.forward(ShiftedClock::Wall, Duration::from_secs(7 * 24 * 60 * 60));
    let locker = bench.behind(&bench.all()).await;
    let mut successes = 0;
    // Three nodes each time, of which only the fast one is in both majorities.
    for (away, back) in [([0, 1], [2, 3]), ([2, 3], [0, 1])] {
        bench.each(&back, Proxy::pass);
        bench.each(&away, |proxy| proxy.door(Door::Refuse));
        bench.each(&away, Proxy::cut);
        successes += usize::from(succeeds(&locker, TTL * 2).await);
    }
    assert!(successes <= 1, "two runs of a tick succeeded");
    bench.each(&bench.all(), Proxy::pass);
    successes += usize::from(succeeds(&locker, TEST_LIMIT).await);
    assert_eq!(successes, 1, "the other nodes are enough");
}

/// Returns nodes, the last of which have clocks that can be shifted, and a holder of `a` with the votes of all nodes
/// except the `first` ones.
async fn with_holder(count: usize, moved: usize, first: usize) -> (Bench, ClockShim, LockGuard) {
    with_holder_for(TEST_LIMIT * 9, count, moved, first).await
}

async fn with_holder_for(ttl: Duration, count: usize, moved: usize, first: usize) -> (Bench, ClockShim, LockGuard) {
    let (bench, shim) = with_clocks(count, moved);
    let locker = bench.behind(&bench.all()).await;
    let others = &bench.all()[..first];
    bench.each(others, |proxy| proxy.door(Door::Refuse));
    bench.each(others, Proxy::cut);
    let guard = locker.lock("a").ttl(ttl).watchdog(false).await.expect("granted by the others");
    assert!(others.iter().all(|at| !bench.has(*at, "a")), "all have it: the test tests nothing");
    (bench, shim, guard)
}

/// Returns whether `rival` is granted the lock `a` within the time in which a client gets to know a node.
async fn is_granted(rival: &Locker) -> bool {
    let until = now().after(ms(3000));
    while now() < until {
        if let Ok(Some(_)) = rival.try_lock("a").await {
            return true;
        }
        sleep(ms(10)).await;
    }
    false
}

/// A rival that knows the nodes notices the jump by itself: the holder cannot.
async fn check_rival(held: (Bench, ClockShim, LockGuard), before: impl Fn(&[Proxy]), after: impl Fn(&[Proxy])) {
    let (bench, shim, guard) = held;
    let way: Vec<_> = bench.nodes.ports().map(|port| Proxy::start(([127, 0, 0, 1], port).into())).collect();
    let rival = locker_of(Redlock::of(way.iter().map(|proxy| Redis::tcp("127.0.0.1", proxy.port())))).await;
    // Until the rival knows the nodes.
    sleep(ms(2500)).await;
    bench.each(&bench.all(), Proxy::freeze);
    before(&way);
    shim.forward(ShiftedClock::Wall, TEST_LIMIT * 20);
    after(&way);
    assert!(!is_granted(&rival).await, "two holders of {} nodes", way.len());
    guard.check().expect("held");
}

#[tokio::test]
async fn f48_clock_jumps_under_a_bare_majority_are_seen_by_connected_clients() {
    check_rival(with_holder(3, 1, 1).await, |_| {}, |_| {}).await;
    check_rival(with_holder(5, 2, 2).await, |_| {}, |_| {}).await;
}

#[tokio::test]
async fn f48_seen_clock_jumps_on_a_majority_lose_no_lock_with_all_votes() {
    check_rival(with_holder(3, 2, 0).await, |_| {}, |_| {}).await;
}

#[tokio::test]
async fn f48_clock_jumps_under_a_bare_majority_are_seen_on_reconnecting() {
    let cut_off = |way: &[Proxy]| {
        way.iter().for_each(|proxy| proxy.door(Door::Refuse));
        way.iter().for_each(Proxy::cut);
    };
    check_rival(with_holder(3, 1, 1).await, cut_off, |way| way.iter().for_each(|proxy| proxy.door(Door::Open))).await;
}

#[tokio::test]
async fn f48_clock_jumps_under_a_bare_majority_are_seen_by_the_holder() {
    for count in [3, 5] {
        let (bench, shim, guard) = with_holder(count, count / 2, count / 2).await;
        shim.forward(ShiftedClock::Wall, TEST_LIMIT * 20);
        let newcomer = bench.direct().await;
        assert!(!is_granted(&newcomer).await, "two holders of {count} nodes");
        guard.check().expect("held");
    }
}

#[tokio::test]
async fn f48_a_vote_with_the_first_sign_of_a_clock_jump_does_not_count() {
    // Less than the lateness for which a node refuses a claim.
    let leap = ms(900);
    let (bench, shim, guard) = with_holder_for(ms(5000), 3, 1, 1).await;
    let rival = bench.direct().await;
    let end = guard.deadline().expect("a lease");
    sleep(end.before(leap / 2).since(now())).await;
    shim.forward(ShiftedClock::Wall, leap);
    let outcome = rival.try_lock("a").await;
    // On a slow machine this shows nothing.
    assert!(guard.is_lost() || !outcome.is_ok_and(|second| second.is_some()), "two holders");
}

#[tokio::test]
async fn f48_a_node_in_quarantine_does_not_vote_for_a_repeated_attempt() {
    let bench = Bench::start(3);
    let engine = bench.engine(&[]).build().expect("an engine");
    engine.attach(Attachment::standalone(&Handle::current()));
    engine.ready().await.expect("connected");
    let record = Record::new(OwnerId::random(), Process::current(), None, Clock::system().wall());
    let claim = Claim::new(Key::new("a").expect("a name"), TEST_LIMIT * 3, false, record.into());
    let until = now().after(TEST_LIMIT);
    // A busy machine may not reply in time at first. The repetition shows that the nodes grant it again.
    for _ in 0..2 {
        while !matches!(engine.claim(&claim).await, Ok(Claimed::Granted(_))) {
            assert!(now() < until, "never granted");
        }
    }
    // What a jump would write: until when the node does not vote. The node caps it at its longest lease.
    for at in bench.majority() {
        let note = bench.nodes[at].command(&["GET", "{}:f"]).to_string();
        let mut fields: Vec<_> = note.split(' ').collect();
        fields[3] = "9000000000000000";
        bench.nodes[at].command(&["SET", "{}:f", &fields.join(" ")]);
    }
    loop {
        let outcome = engine.claim(&claim).await;
        assert!(!matches!(outcome, Ok(Claimed::Granted(_))), "granted by nodes that do not vote: {outcome:?}");
        if outcome.is_err_and(|error| error.to_string().contains("quarantine")) {
            break;
        }
        assert!(now() < until, "never refused for that reason");
    }
}

#[tokio::test]
async fn f48_nodes_with_corrected_clocks_vote_again() {
    let (mut bench, shim) = with_clocks(3, 1);
    let locker = bench.direct().await;
    unlock(locker.lock("a").await.expect("granted")).await;
    shim.forward(ShiftedClock::Wall, TEST_LIMIT * 99);
    let note = || bench.nodes[2].command(&["GET", "{}:f"]).to_string();
    eventually("a client notices it", || note().split(' ').nth(2) != Some("0")).await;
    shim.back(ShiftedClock::Wall, TEST_LIMIT * 99);
    bench.nodes[0].kill9();
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
    assert!(bench.has(2, "a"), "without the one that leapt there is no majority now");
    unlock(guard).await;
}

#[tokio::test]
async fn f48_clock_jumps_are_seen_by_inspecting_clients() {
    let (bench, shim, guard) = with_holder(3, 1, 1).await;
    let looker = bench.direct().await;
    // The holder cannot notice it.
    bench.each(&bench.all(), Proxy::freeze);
    shim.forward(ShiftedClock::Wall, TEST_LIMIT * 20);
    let newcomer = bench.direct().await;
    let until = now().after(ms(4000));
    while now() < until {
        looker.inspect().get("a").await.expect("an answer");
        assert!(!newcomer.try_lock("a").await.is_ok_and(|guard| guard.is_some()), "two holders");
    }
    guard.check().expect("held");
}

#[tokio::test]
async fn f48_unseen_clock_jumps_on_a_majority_break_exclusion_and_tokens_rise() {
    for (count, moved) in [(3, 2), (5, 3)] {
        let (bench, shim) = with_clocks(count, moved);
        let locker = bench.behind(&bench.all()).await;
        let guard = locker.lock("a").ttl(TEST_LIMIT).watchdog(false).await.expect("granted");
        bench.each(&bench.all(), Proxy::freeze);
        shim.forward(ShiftedClock::Wall, TEST_LIMIT * 3);
        // No client was connected to notice it.
        let other = bench.direct().await;
        let next = other.lock("a").wait(TEST_LIMIT).await.expect("a majority has let it expire");
        assert!(!guard.is_lost(), "the documented limit: two believe that they have it");
        assert!(next.fencing_token() > guard.fencing_token(), "and the resource knows better");
        bench.each(&bench.all(), Proxy::pass);
        while !guard.is_lost() {
            guard.extend(TEST_LIMIT).await.expect_err("not ours any more");
            sleep(ms(20)).await;
        }
        assert_eq!(guard.lost().await, LossReason::Revoked, "notified by the next renewal");
        next.check().expect("the newer one is not disturbed");
        unlock(next).await;
    }
}
