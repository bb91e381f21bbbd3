//! Claims that reach a node, and replies that come from it, after the outcome is decided.

use std::future::IntoFuture;

use distlock::Locker;
use distlock_testkit::proxy::{Direction, Flow, Proxy};

use crate::bench::{Bench, NODE_TIMEOUT, TEST_LIMIT, check_on_3_and_5, eventually, ms, now, sleep, unlock};

/// Another client holds the lock on all nodes except a minority, which grants a second claim and replies `late`. That
/// claim is refused by then; its vote must be withdrawn, long before its lease ends.
async fn check_late_votes(late: Flow, closes: bool) {
    check_on_3_and_5(async |bench| {
        let few = bench.minority();
        let (holder, locker) = (bench.direct().await, bench.behind(&few).await);
        let held = holder.lock("a").ttl(TEST_LIMIT * 2).watchdog(false).await.expect("granted");
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        few.iter().for_each(|at| drop(bench.nodes[*at].command(&["DEL", "a"])));
        let writes = || -> Vec<u64> { few.iter().map(|at| bench.nodes[*at].calls("set")).collect() };
        let before = writes();
        bench.each(&few, |proxy| proxy.set(Direction::Replies, late));
        assert!(locker.try_lock("a").ttl(TEST_LIMIT * 2).await.expect("no failure").is_none(), "the others refuse it");
        if closes {
            locker.close().await.expect("closed");
        }
        // A vote writes the lock and its ballot.
        eventually("they vote", || writes().iter().zip(&before).all(|(now, before)| *now >= before + 2)).await;
        // No reply is awaited for longer than that.
        sleep(NODE_TIMEOUT).await;
        bench.each(&few, Proxy::pass);
        eventually("the votes are taken back", || few.iter().all(|at| !bench.has(*at, "a"))).await;
        unlock(held).await;
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

#[tokio::test]
async fn f44_a_vote_received_after_the_claim_was_refused_is_withdrawn() {
    check_late_votes(Flow::Delay(ms(150)), false).await;
}

#[tokio::test]
async fn f44_a_vote_with_a_lost_reply_is_withdrawn() {
    check_late_votes(Flow::Drop, false).await;
}

#[tokio::test]
async fn f44_a_vote_received_while_the_locker_closes_is_withdrawn() {
    check_late_votes(Flow::Delay(ms(150)), true).await;
}

/// Tries once to make a claim reach the node `at` after its own release. Returns whether it did.
async fn overtake(bench: &Bench, locker: &Locker, other: &Locker, at: usize) -> bool {
    let (node, proxy) = (&bench.nodes[at], &bench.proxies[at]);
    let queued = node.calls("zadd");
    // The claim must be sent again, as text, when its sender learns that the node does not know the script.
    node.command(&["SCRIPT", "FLUSH"]);
    node.command(&["DEL", "{a}:f"]);
    proxy.set(Direction::Replies, Flow::Hold);
    let guard = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted by the others");
    // In the meantime the node learns the full script from a client that is refused, so that the release is sent once.
    let teacher = other.lock("b").await.expect("granted");
    eventually("it has b", || bench.has(at, "b")).await;
    assert!(bench.direct().await.try_lock("b").await.expect("no failure").is_none(), "it is held");
    unlock(guard).await;
    eventually("the release has come", || node.command(&["EXISTS", "{a}:f"]).int() == 1).await;
    proxy.pass();
    unlock(teacher).await;
    let until = now().after(NODE_TIMEOUT);
    while node.calls("zadd") == queued && now() < until {
        sleep(ms(5)).await;
    }
    node.calls("zadd") > queued
}

#[tokio::test]
async fn f14_a_claim_that_arrives_after_its_release_keeps_no_queue_place() {
    let bench = Bench::start(3);
    let at = 2;
    let (locker, other) = (bench.behind(&[at]).await, bench.direct().await);
    // So that a client that comes there must wait.
    bench.nodes[at].command(&["SET", "a", "theirs", "PX", "600000"]);
    let until = now().after(TEST_LIMIT);
    // A slow machine sends it too late: try again.
    while !overtake(&bench, &locker, &other, at).await {
        assert!(now() < until, "no claim ever came after its release");
    }
    // Otherwise it would stay until it was silent for as long as its lease.
    eventually("its place is given up", || bench.keys(&[at]) == ["a"]).await;
}

/// A claim waits, also on a few nodes that reply late, and ends. Its release does not reach those nodes.
#[tokio::test]
async fn f44_a_queue_place_told_of_after_the_claim_ended_is_given_up() {
    check_on_3_and_5(async |bench| {
        let few = bench.minority();
        let (holder, locker) = (bench.direct().await, bench.behind(&few).await);
        let held = holder.lock("a").ttl(TEST_LIMIT * 3).watchdog(false).await.expect("granted");
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        bench.each(&few, |proxy| proxy.set(Direction::Replies, Flow::Delay(NODE_TIMEOUT / 2)));
        let waiting = tokio::spawn(locker.lock("a").ttl(TEST_LIMIT * 3).into_future());
        let places = |at: usize| bench.nodes[at].command(&["ZCARD", "{a}:q"]).int();
        eventually("it waits", || bench.all().into_iter().all(|at| places(at) == 1)).await;
        bench.each(&few, |proxy| proxy.set(Direction::Requests, Flow::Drop));
        waiting.abort();
        drop(waiting.await);
        eventually("its release has come", || bench.all().into_iter().all(|at| few.contains(&at) || places(at) == 0))
            .await;
        // The late replies have come, too.
        sleep(NODE_TIMEOUT).await;
        bench.each(&few, Proxy::pass);
        eventually("its places are given up", || few.iter().all(|at| places(*at) == 0)).await;
        unlock(held).await;
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}
