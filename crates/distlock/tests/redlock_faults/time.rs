//! Clocks that leap, extensions that fall apart.

use distlock::{HoldState, LossReason};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::RedisServer;
use tokio::time::timeout;

use crate::bench::{Bench, PATIENCE, TTL, check_on_3_and_5, ms, now, sleep, unlock};

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

#[tokio::test]
async fn f48_clocks_that_leap_on_a_majority_break_exclusion_and_the_token_still_rises() {
    for (count, moved) in [(3, 2), (5, 3)] {
        let (bench, shim) = with_clocks(count, moved);
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = locker.lock("a").ttl(PATIENCE).watchdog(false).await.expect("granted");
        shim.forward(ShiftedClock::Wall, PATIENCE * 3);
        let next = other.lock("a").wait(PATIENCE).await.expect("a majority has let it expire");
        assert!(!guard.is_lost(), "the documented limit: two believe that they have it");
        assert!(next.fencing_token() > guard.fencing_token(), "and the resource knows better");
        guard.extend(PATIENCE).await.expect_err("not ours any more");
        assert_eq!(timeout(PATIENCE, guard.lost()).await.expect("told by the next renewal"), LossReason::Revoked);
        next.check().expect("the newer one is not disturbed");
        unlock(next).await;
    }
}
