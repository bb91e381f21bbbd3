//! Lost replies, late requests, waits that are given up.

use std::future::IntoFuture;

use distlock::{ErrorKind, HoldState};
use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::proxy::{Direction, Flow, Proxy};
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, check_on_3_and_5, eventually, ms, now, sleep, unlock};

#[tokio::test]
async fn f01_a_claim_with_lost_replies_is_unknown_and_leaves_nothing() {
    check_on_3_and_5(async |bench| {
        let all = bench.all();
        let locker = bench.behind(&all).await;
        bench.each(&all, Proxy::drop_replies);
        let error = locker.try_lock("a").ttl(TEST_LIMIT * 2).await.expect_err("no answer");
        assert!(error.may_be_applied(), "{error}");
        bench.each(&all, Proxy::pass);
        bench.expect_nothing_left(&all).await;
        unlock(locker.lock("a").wait(TEST_LIMIT).await.expect("granted")).await;
    })
    .await;
}

#[tokio::test]
async fn f01_lost_replies_of_a_minority_do_not_matter() {
    check_on_3_and_5(async |bench| {
        let few = bench.minority();
        let locker = bench.behind(&few).await;
        bench.each(&few, Proxy::drop_replies);
        let asked = now();
        let guard = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted by the others");
        assert!(now().since(asked) < ms(500), "{:?}", now().since(asked));
        unlock(guard).await;
        bench.each(&few, Proxy::pass);
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

#[tokio::test]
async fn f02_votes_read_after_the_lease_are_not_believed_and_withdrawn() {
    check_on_3_and_5(async |bench| {
        let all = bench.all();
        let shim = ClockShim::new();
        let mut child = Child::start_with(|command| {
            command.envs(shim.environment());
        });
        child.connect(&bench.url_behind());
        // One full cycle, so that no node lacks a script.
        assert!(child.lock("warm", TTL).token() > 0);
        child.unlock("warm");
        bench.each(&all, |proxy| proxy.set(Direction::Replies, Flow::Delay(ms(200))));
        // A lease that outlasts the test: only a release ends it on the nodes.
        child.send("try a 60000");
        eventually("every node has voted", || all.iter().all(|at| bench.has(*at, "a"))).await;
        // The machine was suspended with the votes in flight.
        shim.forward(ShiftedClock::Boot, TEST_LIMIT * 6);
        let Outcome::Failed { kind, message } = child.receive().outcome else {
            panic!("a grant from before the sleep")
        };
        assert_eq!(kind, "Unavailable", "{message}");
        bench.expect_nothing_left(&all).await;
    })
    .await;
}

#[tokio::test]
async fn f03_a_renewal_lost_by_a_majority_keeps_the_old_deadline() {
    check_on_3_and_5(async |bench| {
        let most = bench.majority();
        let locker = bench.behind(&most).await;
        let guard = locker.lock("a").ttl(TTL * 6).await.expect("granted");
        let deadline = guard.deadline();
        bench.each(&most, Proxy::drop_replies);
        // While the connections still count as open.
        let extended = timeout(ms(700), guard.extend(TTL * 6)).await;
        assert!(!matches!(extended, Ok(Ok(()))), "a minority is no majority");
        eventually("the holder is at risk", || guard.state() != HoldState::Held).await;
        assert_eq!((guard.state(), guard.deadline()), (HoldState::AtRisk, deadline));
        bench.each(&most[..1], Proxy::pass);
        eventually("a majority renews it again", || guard.deadline() > deadline).await;
        assert_eq!(guard.state(), HoldState::Held);
        unlock(guard).await;
    })
    .await;
}

#[tokio::test]
async fn f04_a_release_with_lost_replies_is_unknown_and_executed() {
    check_on_3_and_5(async |bench| {
        let most = bench.majority();
        let (locker, other) = (bench.behind(&most).await, bench.direct().await);
        let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
        bench.each(&most, Proxy::drop_replies);
        let error = guard.unlock().await.expect_err("a minority is no majority");
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        let next = other.lock("a").wait(TEST_LIMIT / 2).await.expect("long before the lease ends");
        unlock(next).await;
        bench.each(&most, Proxy::pass);
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

#[tokio::test]
async fn f05_a_repeated_release_does_not_end_the_next_hold() {
    check_on_3_and_5(async |bench| {
        let all = bench.all();
        let (locker, other) = (bench.behind(&all).await, bench.direct().await);
        let guard = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
        bench.each(&all, Proxy::drop_replies);
        assert_eq!(guard.unlock().await.expect_err("no answer").kind(), ErrorKind::Unknown);
        let next = other.lock("a").ttl(TEST_LIMIT * 2).wait(TEST_LIMIT).await.expect("it was released");
        let (kept, calls) = (bench.values("a"), bench.calls());
        bench.each(&all, Proxy::pass);
        locker.close().await.expect("the release is repeated until it is confirmed");
        assert!(bench.calls() > calls, "nothing was repeated: the test tests nothing");
        assert_eq!(bench.values("a"), kept);
        next.check().expect("still the next holder's");
        unlock(next).await;
        bench.expect_nothing_left(&all).await;
    })
    .await;
}

#[tokio::test]
async fn f05_a_release_does_not_end_the_lock_of_a_foreign_client() {
    check_on_3_and_5(async |bench| {
        let all = bench.all();
        let locker = bench.direct().await;
        let guard = locker.lock("a").ttl(TEST_LIMIT).watchdog(false).await.expect("granted");
        eventually("every node has it", || all.iter().all(|at| bench.has(*at, "a"))).await;
        // As if the lease had ended and a client without ballots had taken the lock.
        all.iter().for_each(|at| drop(bench.nodes[*at].command(&["SET", "a", "theirs", "PX", "20000"])));
        assert_eq!(guard.unlock().await.expect_err("not ours").kind(), ErrorKind::Lost);
        assert_eq!(bench.values("a"), vec!["theirs"; all.len()]);
    })
    .await;
}

#[tokio::test]
async fn f06_connections_cut_at_any_byte_of_a_reply_grant_once() {
    check_on_3_and_5(async |bench| {
        let (all, most) = (bench.all(), bench.majority());
        let mut last = 0;
        for bytes in [0, 1, 20] {
            let locker = bench.behind(&most).await;
            bench.each(&most, |proxy| proxy.cut_after(Direction::Replies, bytes));
            // A lease that outlasts the wait: a claim retried with another id would wait for itself in vain.
            let guard = locker.lock("a").ttl(TEST_LIMIT * 2).wait(TEST_LIMIT).await.expect("granted after a repeat");
            let token = guard.fencing_token().get();
            assert!(token > last);
            last = token;
            let has_it = |value: &String| value.split(' ').nth(1) == Some(&token.to_string());
            assert!(bench.values("a").iter().filter(|value| has_it(value)).count() >= most.len(), "no majority");
            bench.each(&most, Proxy::pass);
            unlock(guard).await;
        }
        bench.expect_nothing_left(&all).await;
    })
    .await;
}

#[tokio::test]
async fn f06_a_vote_on_a_broken_connection_is_withdrawn() {
    check_on_3_and_5(async |bench| {
        let (all, few) = (bench.all(), bench.minority());
        let (locker, other) = (bench.behind(&all).await, bench.direct().await);
        // Another client has the other nodes, so the claim is busy whatever the few nodes reply, whose replies are
        // cut.
        let held = other.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
        eventually("every node has it", || all.iter().all(|at| bench.has(*at, "a"))).await;
        few.iter().for_each(|at| drop(bench.nodes[*at].command(&["DEL", "a"])));
        bench.each(&all, |proxy| proxy.set(Direction::Replies, Flow::Delay(ms(50))));
        bench.each(&few, Proxy::pass);
        bench.each(&few, |proxy| proxy.cut_after(Direction::Replies, 1));
        assert!(locker.try_lock("a").ttl(TEST_LIMIT * 2).await.expect("no failure").is_none());
        bench.each(&all, Proxy::pass);
        eventually("the votes are taken back", || few.iter().all(|at| !bench.has(*at, "a"))).await;
        unlock(held).await;
        bench.expect_nothing_left(&all).await;
    })
    .await;
}

#[tokio::test]
async fn f09_a_waiter_cancelled_at_its_wake_up_stalls_no_other_waiter() {
    check_on_3_and_5(async |bench| {
        let (holder, quitter, other) = (bench.direct().await, bench.direct().await, bench.direct().await);
        // A lease so long that no waiter polls in the meantime.
        let long = TEST_LIMIT * 3;
        for round in 0..6 {
            let guard = holder.lock("a").ttl(long).wait(TEST_LIMIT).await.expect("granted");
            let waits = |count: i64| bench.nodes[0].command(&["ZCARD", "{a}:q"]).int() >= count;
            let first = tokio::spawn(quitter.lock("a").ttl(long).into_future());
            eventually("the first waits", || waits(1)).await;
            let second = tokio::spawn(other.lock("a").ttl(long).into_future());
            eventually("the second waits", || waits(2)).await;
            let releasing = tokio::spawn(guard.unlock());
            sleep(ms(round)).await;
            first.abort();
            drop(first.await);
            releasing.await.expect("no panic").expect("released");
            let released = now();
            let next = timeout(TEST_LIMIT, second).await.expect("in time").expect("no panic").expect("granted");
            assert!(now().since(released) < ms(3000), "round {round}: stalled for {:?}", now().since(released));
            unlock(next).await;
        }
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

#[tokio::test]
async fn f14_a_claim_that_arrives_after_its_time_limit_is_refused() {
    check_on_3_and_5(async |bench| {
        let few = bench.minority();
        let locker = bench.behind(&few).await;
        let writes = || -> Vec<u64> { few.iter().map(|at| bench.nodes[*at].calls("set")).collect() };
        let before = writes();
        bench.each(&few, Proxy::hold_requests);
        unlock(locker.lock("a").ttl(TEST_LIMIT).await.expect("granted by the others")).await;
        sleep(ms(1200)).await;
        let calls = bench.calls();
        bench.each(&few, Proxy::pass);
        eventually("the claims arrive", || bench.calls() >= calls + few.len() as u64).await;
        bench.expect_nothing_left(&bench.all()).await;
        // Not by the keys: the release behind it removes them again. It writes only a tombstone.
        assert!(writes().iter().zip(before).all(|(now, before)| *now <= before + 1), "a late claim was carried out");
    })
    .await;
}

#[tokio::test]
async fn f14_a_timely_claim_that_arrives_after_its_release_finds_a_tombstone() {
    check_on_3_and_5(async |bench| {
        let few = bench.minority();
        let (locker, operator) = (bench.behind(&few).await, bench.direct().await);
        bench.each(&few, Proxy::hold_requests);
        let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted by the others");
        // Past the proxies, so that it arrives before the claims that are held in them and would otherwise still be
        // accepted.
        operator.inspect().force_release("a", guard.fencing_token(), "test").await.expect("ended everywhere");
        bench.each(&few, Proxy::pass);
        expect_never(&bench, ms(700), "a claim was granted after its release").await;
        assert!(guard.is_lost());
    })
    .await;
}

#[tokio::test]
async fn f14_a_renewal_after_the_release_never_restores_the_lock() {
    check_on_3_and_5(async |bench| {
        let few = bench.minority();
        let (locker, operator) = (bench.behind(&few).await, bench.direct().await);
        let guard = locker.lock("a").ttl(TTL).await.expect("granted");
        bench.each(&few, Proxy::hold_requests);
        // Renewals succeed on the other nodes, and are held in the proxies of these.
        sleep(TTL).await;
        assert_eq!(guard.state(), HoldState::Held);
        let token = guard.fencing_token();
        operator.inspect().force_release("a", token, "test").await.expect("ended everywhere, past the proxies");
        bench.each(&few, Proxy::pass);
        expect_never(&bench, ms(1500), "a late renewal set it again").await;
        assert!(guard.is_lost());
    })
    .await;
}

/// Asserts that no node keeps any state for `time`.
async fn expect_never(bench: &Bench, time: std::time::Duration, what: &str) {
    let until = now().after(time);
    while now() < until {
        assert_eq!(bench.keys(&bench.all()), [""; 0], "{what}");
        sleep(ms(10)).await;
    }
}
