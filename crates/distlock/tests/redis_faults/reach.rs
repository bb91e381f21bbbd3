//! The server is unreachable while a caller waits.

use crate::bench::Bench;
use crate::reach_kit::expect_away;
use crate::reach_queue_kit::{expect_busy_again, expect_waiter_finds_out};

#[tokio::test]
async fn f79_a_killed_server_is_not_a_busy_lock() {
    let mut bench = Bench::start();
    let locker = bench.direct().await;
    bench.server.kill9();
    expect_away(&locker).await;
}

#[tokio::test]
async fn f79_a_frozen_server_is_not_a_busy_lock() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    bench.server.stop();
    expect_away(&locker).await;
    bench.server.cont();
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f79_a_queued_waiter_learns_that_the_server_froze() {
    let bench = Bench::start();
    let (holder, other) = (bench.direct().await, bench.direct().await);
    let guard = expect_waiter_finds_out(&holder, &other, || bench.server.stop()).await;
    bench.server.cont();
    expect_busy_again(&holder, &other, guard).await;
    bench.expect_nothing_left().await;
}
