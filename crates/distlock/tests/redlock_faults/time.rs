//! Clocks that leap, extensions that fall apart.

use distlock::backend::redis::Redis;
use distlock::backend::redlock::Redlock;
use distlock::{HoldState, LockGuard, Locker, LossReason};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::proxy::{Door, Proxy};
use distlock_testkit::servers::RedisServer;
use tokio::time::timeout;

use crate::bench::{Bench, PATIENCE, TTL, check_on_3_and_5, locker_of, ms, now, sleep, unlock};

#[tokio::test]
async fn f47_acks_of_different_rounds_never_make_a_majority() {
    check_on_3_and_5(async |bench| {
        let (all, few) = (bench.all(), bench.minority());
        let locker = bench.behind(&all).await;
        let guard = locker.lock("a").ttl(TTL * 2).watchdog(false).await.expect("granted");
        let deadline = guard.deadline().expect("a lease");
        let (mut first, mut acked) = (0, 0);
        while !guard.is_lost() {
            // A minority at a time answers, each time another: over two rounds that would be a majority.
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

/// Nodes, the last of which have a clock that can be moved: as many as may fail, or one more.
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
async fn f48_clocks_that_leap_on_a_minority_cost_votes_and_no_lock() {
    for (count, moved) in [(3, 1), (5, 2)] {
        let (bench, shim) = with_clocks(count, moved);
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = locker.lock("a").ttl(TTL * 3).await.expect("granted");
        shim.forward(ShiftedClock::Wall, PATIENCE * 3);
        let until = now().after(TTL * 2);
        while now() < until {
            let second = other.try_lock("a").await.expect("no failure");
            assert!(second.is_none(), "two holders; the first is {:?}", guard.state());
            sleep(ms(20)).await;
        }
        assert_eq!(guard.state(), HoldState::Held, "the others renew it");
        unlock(guard).await;
        unlock(other.lock("a").wait(PATIENCE).await.expect("granted")).await;
    }
}

#[tokio::test]
async fn f48_clocks_that_go_back_on_a_minority_cost_nothing() {
    for (count, moved) in [(3, 1), (5, 2)] {
        let (bench, shim) = with_clocks(count, moved);
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = locker.lock("a").await.expect("granted");
        let token = guard.fencing_token();
        shim.back(ShiftedClock::Wall, PATIENCE * 3);
        sleep(TTL).await;
        assert_eq!(guard.state(), HoldState::Held);
        assert!(other.try_lock("a").await.expect("no failure").is_none());
        unlock(guard).await;
        let next = other.lock("a").wait(PATIENCE).await.expect("granted");
        assert!(next.fencing_token() > token);
        unlock(next).await;
        // By those clocks no lease ends for a long time.
        bench.expect_nothing_left(&bench.all()).await;
    }
}

/// Nodes, the last of which have clocks that can be moved, and a holder of `a` for which a bare majority has voted: the last ones.
async fn on_a_bare_majority(count: usize, moved: usize) -> (Bench, ClockShim, LockGuard) {
    let (bench, shim) = with_clocks(count, moved);
    let locker = bench.behind(&bench.all()).await;
    let others = &bench.all()[..count / 2];
    bench.each(others, |proxy| proxy.door(Door::Refuse));
    bench.each(others, Proxy::cut);
    let guard = locker.lock("a").ttl(PATIENCE * 9).await.expect("granted by the others");
    assert!(others.iter().all(|at| !bench.has(*at, "a")), "all have it: the test tests nothing");
    (bench, shim, guard)
}

/// Whether `rival` is granted the lock `a` within a time in which a node becomes known.
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

/// A rival that knows the nodes sees by itself that clocks leapt: the holder cannot.
async fn check_rival(count: usize, moved: usize, before: impl Fn(&[Proxy]), after: impl Fn(&[Proxy])) {
    let (bench, shim, guard) = on_a_bare_majority(count, moved).await;
    let way: Vec<_> = bench.nodes.ports().map(|port| Proxy::start(([127, 0, 0, 1], port).into())).collect();
    let rival = locker_of(Redlock::of(way.iter().map(|proxy| Redis::tcp("127.0.0.1", proxy.port())))).await;
    // Until it knows them.
    sleep(ms(2500)).await;
    bench.each(&bench.all(), Proxy::freeze);
    before(&way);
    shim.forward(ShiftedClock::Wall, PATIENCE * 20);
    after(&way);
    assert!(!is_granted(&rival).await, "two holders of {count} nodes");
    guard.check().expect("held");
}

#[tokio::test]
async fn f48_clocks_that_leap_under_a_bare_majority_are_seen_by_whoever_is_connected() {
    check_rival(3, 1, |_| {}, |_| {}).await;
    check_rival(5, 2, |_| {}, |_| {}).await;
}

#[tokio::test]
async fn f48_clocks_that_leap_on_a_majority_cost_no_lock_when_they_are_seen() {
    check_rival(3, 2, |_| {}, |_| {}).await;
}

#[tokio::test]
async fn f48_clocks_that_leap_under_a_bare_majority_are_seen_by_whoever_connects_again() {
    let cut_off = |way: &[Proxy]| {
        way.iter().for_each(|proxy| proxy.door(Door::Refuse));
        way.iter().for_each(Proxy::cut);
    };
    check_rival(3, 1, cut_off, |way| way.iter().for_each(|proxy| proxy.door(Door::Open))).await;
}

#[tokio::test]
async fn f48_clocks_that_leap_under_a_bare_majority_are_seen_by_the_holder_and_newcomers_wait_for_that() {
    for count in [3, 5] {
        let (bench, shim, guard) = on_a_bare_majority(count, count / 2).await;
        shim.forward(ShiftedClock::Wall, PATIENCE * 20);
        let newcomer = bench.direct().await;
        assert!(!is_granted(&newcomer).await, "two holders of {count} nodes");
        guard.check().expect("held");
    }
}

#[tokio::test]
async fn f48_clocks_that_leap_on_a_majority_unseen_break_exclusion_and_the_token_still_rises() {
    for (count, moved) in [(3, 2), (5, 3)] {
        let (bench, shim) = with_clocks(count, moved);
        let locker = bench.behind(&bench.all()).await;
        let guard = locker.lock("a").ttl(PATIENCE).watchdog(false).await.expect("granted");
        bench.each(&bench.all(), Proxy::freeze);
        shim.forward(ShiftedClock::Wall, PATIENCE * 3);
        // Nobody was there to see it.
        let other = bench.direct().await;
        let next = other.lock("a").wait(PATIENCE).await.expect("a majority has let it expire");
        assert!(!guard.is_lost(), "the documented limit: two believe that they have it");
        assert!(next.fencing_token() > guard.fencing_token(), "and the resource knows better");
        bench.each(&bench.all(), Proxy::pass);
        while !guard.is_lost() {
            guard.extend(PATIENCE).await.expect_err("not ours any more");
            sleep(ms(20)).await;
        }
        assert_eq!(guard.lost().await, LossReason::Revoked, "told by the next renewal");
        next.check().expect("the newer one is not disturbed");
        unlock(next).await;
    }
}
