//! The nodes are unreachable while a caller waits.

use crate::bench::Bench;
use crate::reach_kit::expect_away;

#[tokio::test]
async fn f79_a_killed_majority_is_not_a_busy_lock() {
    let mut bench = Bench::start(3);
    let locker = bench.direct().await;
    for at in bench.majority() {
        bench.nodes[at].kill9();
    }
    expect_away(&locker).await;
}

#[tokio::test]
async fn f79_a_frozen_majority_is_not_a_busy_lock() {
    let bench = Bench::start(3);
    let locker = bench.direct().await;
    bench.majority().into_iter().for_each(|at| bench.nodes[at].stop());
    expect_away(&locker).await;
    bench.majority().into_iter().for_each(|at| bench.nodes[at].cont());
    bench.expect_nothing_left(&bench.all()).await;
}
