//! A cluster whose hash slots move, or whose nodes die.

use std::future::IntoFuture;
use std::sync::Arc;

use distlock::{Config, ErrorKind, HoldState, Locker};
use distlock_testkit::conformance::record_skip;
use distlock_testkit::servers::{Data, RedisCluster};
use tokio::time::timeout;

use crate::bench::{TEST_LIMIT, TTL, ms, now, sleep};

async fn connected(cluster: &RedisCluster) -> Locker {
    let mut config = Config::from_url(&cluster.url()).expect("a good URL");
    (config.default_ttl, config.max_retries) = (Some(TTL), Some(100));
    let locker = Locker::from_config(&config).await.expect("connected");
    locker.lock("a").await.expect("granted").unlock().await.expect("released");
    locker
}

#[tokio::test(flavor = "multi_thread")]
async fn f28_a_down_cluster_refuses_definitely_and_serves_again() {
    let mut cluster = RedisCluster::start();
    let locker = connected(&cluster).await;
    let alive = cluster.owner(cluster.slot("a"));
    let dead = (0..3).filter(|at| *at != alive).collect::<Vec<_>>();
    dead.iter().for_each(|at| cluster.nodes_mut()[*at].kill9());
    let until = now().after(TEST_LIMIT);
    let error = loop {
        assert!(now() < until, "never down");
        match locker.try_lock("a").await {
            Ok(guard) => drop(guard),
            Err(error) if error.to_string().to_lowercase().contains("cluster is down") => break error,
            Err(_) => {}
        }
        sleep(ms(20)).await;
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    dead.iter().for_each(|at| cluster.nodes_mut()[*at].restart(Data::Kept));
    tokio::task::block_in_place(|| cluster.expect_whole());
    locker.lock("a").wait(TEST_LIMIT).await.expect("it serves again").unlock().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn f29_a_lock_is_renewed_while_its_hash_slot_moves_and_handed_over_there() {
    let cluster = RedisCluster::start();
    let (locker, other) = (connected(&cluster).await, connected(&cluster).await);
    let slot = cluster.slot("a");
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    let guard = locker.lock("a").await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").wait(TEST_LIMIT).into_future());
    let until = now().after(TEST_LIMIT);
    while cluster.nodes()[from].command(&["EXISTS", "{a}:q"]).int() == 0 {
        assert!(now() < until, "no waiter is queued");
        sleep(ms(5)).await;
    }
    cluster.begin_move(slot, to);
    cluster.move_keys(slot, from, to);
    // Only the new owner has the key, and only by ASK.
    sleep(TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held, "renewed in between");
    cluster.end_move(slot, from, to);
    guard.unlock().await.expect("released at the new owner");
    timeout(TEST_LIMIT, waiter)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("granted")
        .unlock()
        .await
        .expect("released");
}

/// Moves the hash slot of locks that are taken in turns, waited for and held, six times.
async fn locks_continue_while(cluster: &RedisCluster, move_slot: impl Fn(u16, usize)) {
    let lockers = [connected(cluster).await, connected(cluster).await];
    let held = lockers[0].lock("{a}held").await.expect("granted");
    let inside = Arc::new(tokio::sync::Mutex::new(0_u32));
    let workers = lockers.map(|locker| {
        let inside = inside.clone();
        tokio::spawn(async move {
            let mut done = 0;
            let until = now().after(ms(3000));
            while now() < until {
                let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
                *inside.try_lock().expect("alone") += 1;
                // A script that empties the queue of a moving hash slot is stopped there, so the release is retried.
                if let Err(error) = guard.unlock().await {
                    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
                }
                done += 1;
            }
            done
        })
    });
    let slot = cluster.slot("a");
    for _ in 0..6 {
        let to = (cluster.owner(slot) + 1) % 3;
        tokio::task::block_in_place(|| move_slot(slot, to));
        sleep(ms(200)).await;
    }
    for worker in workers {
        assert!(worker.await.expect("no panic") > 10);
    }
    sleep(TTL).await;
    assert_eq!(held.state(), HoldState::Held, "renewed wherever its key was");
    held.unlock().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn f29_locks_continue_while_hash_slots_move() {
    let cluster = RedisCluster::start();
    locks_continue_while(&cluster, |slot, to| cluster.move_slot(slot, to)).await;
    assert!(cluster.nodes().iter().all(|node| node.command(&["EXISTS", "a"]).to_string() != "1"), "all are released");
}

#[tokio::test(flavor = "multi_thread")]
async fn f29_locks_continue_while_hash_slots_move_in_one_step() {
    let cluster = RedisCluster::start();
    if !cluster.moves_atomically() {
        let test = "redis_faults/f29_locks_continue_while_hash_slots_move_in_one_step";
        return record_skip(&format!("{test}: a server with atomic slot migration"));
    }
    locks_continue_while(&cluster, |slot, to| cluster.move_slot_atomically(slot, to)).await;
    assert!(cluster.nodes().iter().all(|node| node.command(&["EXISTS", "a"]).to_string() != "1"), "all are released");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_all_masters_are_listed() {
    let cluster = RedisCluster::start();
    let locker = connected(&cluster).await;
    let mut held = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        held.push(locker.lock(name).await.expect("granted"));
    }
    assert!(cluster.nodes().iter().filter(|node| node.command(&["DBSIZE"]).int() > 0).count() > 1);
    let listed = locker.inspect().list("").await.expect("listed");
    assert_eq!(listed.iter().map(|lock| lock.key.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d", "e", "f"]);
}

#[tokio::test]
async fn options_that_a_cluster_lacks_are_refused() {
    let error = Locker::connect("redis+cluster://127.0.0.1:1?restart_guard=on").await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
