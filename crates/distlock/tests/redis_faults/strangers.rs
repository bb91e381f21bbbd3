//! Foreign data at the lock's keys, and foreign programs that change ours.

use std::future::IntoFuture;

use distlock::{ErrorKind, FencingToken, LossReason};
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, sleep};

#[tokio::test]
async fn f34_a_wrong_type_beside_the_lock_is_found_before_any_write() {
    let bench = Bench::start();
    let (locker, other) = (bench.direct().await, bench.direct().await);
    for companion in ["{a}:q", "{a}:w", "{distlock}:f"] {
        let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
        bench.command(&format!("DEL {companion}"));
        bench.command(&format!("LPUSH {companion} x"));
        let before = bench.command("GET a").text();
        if companion == "{distlock}:f" {
            guard.unlock().await.expect("released");
            let error = other.try_lock("a").await.expect_err("no token can be made");
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            assert_eq!(bench.command("EXISTS a").int(), 0);
        } else {
            let error = other.lock("a").wait(TEST_LIMIT).await.expect_err("no place in such a queue");
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            assert_eq!(bench.command("GET a").text(), before, "nothing was written");
            guard.unlock().await.expect("released all the same");
        }
        assert_eq!(bench.command(&format!("LRANGE {companion} 0 -1")).array().len(), 1, "left alone");
        bench.command(&format!("DEL {companion}"));
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f35_foreign_keys_are_respected_and_never_deleted() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let cases = ["LPUSH a x", "SET a anything", "HSET a field 1", "SET a 0123456789abcdef0123456789abcdef PX 60000"];
    for make in cases {
        bench.command(make);
        let dump = || bench.command("DUMP a");
        let before = dump();
        assert!(locker.try_lock("a").await.expect("no failure").is_none(), "{make}");
        let error = locker.lock("a").wait(ms(200)).await.expect_err("held");
        assert_eq!(error.kind(), ErrorKind::Timeout, "{make}");
        assert!(error.to_string().contains("not distlock"), "{error}");
        let shown = locker.inspect().get("a").await.expect("shown").expect("it is there");
        assert!(shown.holder().expect("a holder").record.is_none());
        let error = locker.inspect().force_release("a", FencingToken::new(1), "stuck").await.expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert_eq!(dump(), before, "{make}");
        bench.command("DEL a");
        locker.lock("a").wait(TEST_LIMIT).await.expect("free now").unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f35_a_lock_released_by_a_foreign_client_is_taken_within_two_retry_intervals() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    bench.command("SET a stranger PX 60000");
    let waiter = tokio::spawn(locker.lock("a").retry_interval(ms(100)).into_future());
    sleep(ms(350)).await;
    bench.command("DEL a");
    let freed = now();
    let guard = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(freed) < ms(400), "after {:?}", now().since(freed));
    assert!(bench.command("SET a stranger NX PX 60000").is_nil(), "a plain locker is excluded by us");
    guard.unlock().await.expect("released");
    assert_eq!(bench.command("SET a stranger NX PX 60000").text(), "OK");
}

#[tokio::test]
async fn f35_a_key_overwritten_by_a_foreign_client_is_not_released() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.command("SET a stranger PX 60000");
    let error = guard.unlock().await.expect_err("not ours any more");
    assert_eq!(error.loss_reason(), Some(&LossReason::Revoked));
    assert_eq!(bench.command("GET a").text(), "stranger");
}

#[tokio::test]
async fn f43_a_token_keeps_all_its_digits() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    for _ in 0..50 {
        let guard = locker.lock("a").await.expect("granted");
        let token = guard.fencing_token().to_string();
        assert_eq!(token.len(), 16);
        assert_eq!(bench.command("GET {distlock}:f").text(), token);
        assert!(bench.command("GET a").text().contains(&format!(" {token} ")));
        guard.unlock().await.expect("released");
    }
}

#[tokio::test]
async fn f66_a_huge_value_at_the_locks_key_is_not_transferred() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    bench.command("SETRANGE a 50000000 x");
    let (asked, before) = (now(), bench.server.info("stats", "total_net_output_bytes").unwrap());
    assert!(locker.try_lock("a").await.expect("no failure").is_none());
    assert!(now().since(asked) < ms(1000));
    let after = bench.server.info("stats", "total_net_output_bytes").unwrap();
    let sent = after.parse::<u64>().unwrap() - before.parse::<u64>().unwrap();
    assert!(sent < 100_000, "{sent} bytes");
}

#[tokio::test]
async fn f66_huge_values_of_waiters_holders_and_history_are_not_transferred() {
    const FILMS: &str = "local film = string.rep('x', 2000000)
        redis.call('SET', 'a', 'distlock group s')
        redis.call('ZADD', '{a}:q', 1, 'x')
        redis.call('HSET', '{a}:w', 'x', '1 99999999999999 - 0 x {' .. film)
        redis.call('ZADD', '{a}:e', 99999999999999, 'x')
        redis.call('HSET', '{a}:h', 'x', '1 - 1 - {' .. film)
        redis.call('XADD', '{a}:j', '*', 'entry', film)";
    let bench = Bench::start();
    let locker = bench.direct().await;
    bench.server.command(&["EVAL", FILMS, "0"]);
    let before = bench.server.info("stats", "total_net_output_bytes").unwrap();
    let inspect = locker.inspect();
    let shown = inspect.get("a").await.expect("shown");
    assert!(shown.is_none_or(|shown| shown.holder().is_none() && shown.waiters.is_empty()), "nothing of it is ours");
    inspect.list("").await.expect("listed");
    assert!(inspect.history("a", 10).await.expect("read").is_empty());
    assert!(locker.try_lock("a").await.expect("no failure").is_none());
    let after = bench.server.info("stats", "total_net_output_bytes").unwrap();
    let sent = after.parse::<u64>().unwrap() - before.parse::<u64>().unwrap();
    assert!(sent < 100_000, "{sent} bytes");
}

#[tokio::test]
async fn f67_an_invalid_fence_is_an_error_and_kept() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let fences = ["9223372036854775807", "many", "18446744073709551616", "1e300", "nan", "many PX 600000"];
    for set in fences {
        bench.command(&format!("SET {{distlock}}:f {set}"));
        let (fence, ends) = (bench.command("GET {distlock}:f").text(), bench.command("PEXPIRETIME {distlock}:f").int());
        let error = locker.try_lock("a").await.expect_err("no token can be made");
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert_eq!(bench.command("GET {distlock}:f").text(), fence);
        assert_eq!(bench.command("PEXPIRETIME {distlock}:f").int(), ends, "it stays for as long as it would have");
        assert_eq!(bench.command("EXISTS a").int(), 0);
    }
    let week_ms = 7 * 24 * 60 * 60 * 1000;
    for before in ["DEL {distlock}:f", "SET {distlock}:f 41", "SET {distlock}:f 41 PX 60000"] {
        bench.command(before);
        let guard = locker.try_lock("a").await.expect("no failure").expect("free");
        assert!(guard.fencing_token().get() > 1_700_000_000_000_000, "no lower than the clock");
        assert!(bench.command("PTTL {distlock}:f").int() >= week_ms, "{before}");
        guard.unlock().await.expect("released");
    }
}

#[tokio::test]
async fn a_force_release_notifies_the_holder_at_once_and_serves_the_next_waiter() {
    let bench = Bench::start();
    let (holder, other, operator) = (bench.direct().await, bench.direct().await, bench.direct().await);
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    let forced = now();
    operator.inspect().force_release("a", guard.fencing_token(), "stuck").await.expect("forced");
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Broken);
    assert!(now().since(forced) < TTL, "notified by a message, long before the next renewal");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
}
