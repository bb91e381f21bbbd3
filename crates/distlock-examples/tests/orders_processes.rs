//! The example `orders` as two processes, on Redis and on etcd, while they are killed, frozen and flushed.

mod orders_kit;

use std::collections::BTreeSet;

use distlock_testkit::servers::eventually;
use orders_kit::{Engine, FOREVER, Shop};
use rusqlite::Connection;

/// Makes a test of each function for each engine.
macro_rules! on_each_engine {
    ($($test:ident)*) => {
        mod redis {
            $(#[test] fn $test() { super::$test(&super::Engine::redis()); })*
        }
        mod etcd {
            $(#[test] fn $test() { super::$test(&super::Engine::etcd()); })*
        }
    };
}

on_each_engine! {
    the_order_and_the_leadership_of_a_killed_instance_go_to_the_other
    a_frozen_instance_does_not_write_over_the_next_holder
    a_flush_of_the_engine_cancels_the_work
    sigterm_releases_all_at_once
    requests_may_end_after_sigterm
    exports_are_limited_over_both_instances
}

fn the_order_and_the_leadership_of_a_killed_instance_go_to_the_other(engine: &Engine) {
    let shop = Shop::new(engine);
    let (mut a, b) = shop.start_two();
    let (_work, token) = a.begin_order(7, "by-a", &b);
    let refused = eventually("423", || {
        let reply = b.post("/orders/7?state=by-b");
        assert_ne!(reply.status, 200, "a holds it");
        Some(reply).filter(|reply| reply.status == 423)
    });
    assert_eq!(refused.body["holder"]["record"]["pid"], a.pid());
    let leader = b.get("/summary").body["token"].as_str().and_then(|token| token.parse::<u64>().ok());

    a.kill9();
    let next = b.expect_change(7, "by-b");
    assert!(next > token, "{next} after {token}");
    assert_eq!(b.order(7), Some(("by-b".to_owned(), next)));
    b.expect_leader("b");
    let next = b.get("/summary").body["token"].as_str().and_then(|token| token.parse::<u64>().ok());
    assert!(leader.is_some() && next > leader, "{next:?} after {leader:?}");
}

fn a_frozen_instance_does_not_write_over_the_next_holder(engine: &Engine) {
    let shop = Shop::new(engine);
    let (a, b) = shop.start_two();
    let (cancelled, first) = a.begin_order(1, "by-a", &b);
    // Order 2 is frozen in the middle of its write, which nothing but the fence can stop.
    let database = Connection::open(shop.database()).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let fenced = a.begin("/orders/2?state=by-a", || a.log().contains("writing order id=2"));
    a.stop();
    database.execute_batch("ROLLBACK").unwrap();

    let written = [1, 2].map(|order| b.expect_change(order, "by-b"));
    assert!(written[0] > first, "{written:?} after {first}");
    a.cont();
    let reply = cancelled.reply();
    assert_eq!((reply.status, &reply.body["error"]), (503, &"lost".into()));
    assert_eq!(fenced.reply().status, 503);
    let is_refused =
        || a.get("/metrics").body.as_str().is_some_and(|text| text.contains("orders_stale_writes_total 1"));
    eventually("the fence", || is_refused().then_some(()));
    for (order, token) in [1, 2].into_iter().zip(written) {
        assert_eq!(b.order(order), Some(("by-b".to_owned(), token)), "order {order}");
    }
}

fn a_flush_of_the_engine_cancels_the_work(engine: &Engine) {
    let shop = Shop::new(engine);
    let (a, b) = shop.start_two();
    let (work, token) = a.begin_order(7, "by-a", &b);
    engine.flush();
    let reply = work.reply();
    assert_eq!((reply.status, &reply.body["error"]), (503, &"lost".into()));
    assert_eq!(b.order(7), None);
    let next = b.expect_change(7, "by-b");
    assert!(next > token, "{next} after {token}");
}

fn sigterm_releases_all_at_once(engine: &Engine) {
    // A test that waits for the lease fails.
    let shop = Shop::new(engine).lease("10m");
    let (a, b) = shop.start_two();
    let (work, _) = a.begin_order(7, "by-a", &b);
    a.terminate();
    let reply = work.reply();
    assert_eq!((reply.status, &reply.body["error"]), (503, &"lost".into()));
    a.expect_end();
    assert_eq!(b.order(7), None);
    b.expect_change(7, "by-b");
    b.expect_leader("b");
}

fn requests_may_end_after_sigterm(engine: &Engine) {
    let shop = Shop::new(engine).lease("10m").grace_s(600);
    let (a, b) = shop.start_two();
    let (endless, _) = a.begin_order(8, "by-a", &b);
    let is_begun = || b.get("/orders/7").body["holder"]["record"]["pid"] == a.pid();
    let work = a.begin("/orders/7?state=by-a&takes_ms=4000", is_begun);
    a.terminate();
    eventually("no more connections", || (!a.accepts()).then_some(()));
    b.expect_leader("b");
    assert_eq!(work.reply().status, 200);
    assert_eq!(b.order(7).map(|(state, _)| state), Some("by-a".to_owned()));
    b.expect_change(7, "by-b");
    // It ends with its last request, whose client goes away.
    assert!(!endless.has_ended());
    drop(endless);
    a.expect_end();
    b.expect_change(8, "by-b");
}

fn exports_are_limited_over_both_instances(engine: &Engine) {
    let shop = Shop::new(engine).lease("10m");
    let (a, b) = shop.start_two();
    let running = || b.get("/exports").body.as_array().map_or(0, Vec::len);
    let path = format!("/exports?{FOREVER}");
    let mut exports = Vec::new();
    for (number, instance) in [(1, &a), (2, &b), (3, &a)] {
        exports.push(instance.begin(&path, || running() >= number));
    }
    let holders = eventually("all exports", || Some(b.get("/exports").body).filter(|holders| holders.is_array()));
    let owners: BTreeSet<_> = (0..3).map(|number| holders[number]["record"]["owner"].to_string()).collect();
    assert_eq!(owners.len(), 3, "each request is an owner: {holders}");
    for instance in [&a, &b] {
        eventually("423", || {
            let reply = instance.post("/exports");
            assert_ne!(reply.status, 200, "three exports run");
            (reply.status == 423).then_some(())
        });
    }
    let metric = format!("distlock_active{{group=\"exports\",backend=\"{}\"}} 2", engine.name());
    assert!(a.get("/metrics").body.as_str().is_some_and(|text| text.contains(&metric)), "{metric}");
    // A client that goes away gives its place to others.
    exports.pop();
    eventually("the fourth export", || (b.post("/exports").status == 200).then_some(()));
    eventually("its end", || (running() == 2).then_some(()));
}
