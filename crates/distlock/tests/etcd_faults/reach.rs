//! The server is unreachable while a caller waits.

use distlock_testkit::servers::EtcdServer;

use crate::etcd_faults_kit::{eventually, keys, locker_at, secs};
use crate::reach_kit::expect_away;
use crate::reach_queue_kit::{expect_busy_again, expect_waiter_finds_out};

#[tokio::test(flavor = "multi_thread")]
async fn f79_a_killed_server_is_not_a_busy_lock() {
    let mut server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(10));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    server.kill9();
    expect_away(&locker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f79_a_frozen_server_is_not_a_busy_lock() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(10));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    server.stop();
    expect_away(&locker).await;
    server.cont();
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f79_a_queued_waiter_learns_that_the_server_froze() {
    let server = EtcdServer::start();
    let (holder, other) = (locker_at(&[server.address()], secs(10)), locker_at(&[server.address()], secs(10)));
    let guard = expect_waiter_finds_out(&holder, &other, || server.stop()).await;
    server.cont();
    expect_busy_again(&holder, &other, guard).await;
    eventually("nothing is left", || keys(&server).is_empty()).await;
}
