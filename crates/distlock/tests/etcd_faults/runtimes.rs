//! Requests run on the runtime in which the locker was made. That one may end, or be unable to open a connection.

use distlock::Locker;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::EtcdServer;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::etcd_faults_kit::{eventually, keys, locker_at, secs};

const TTL: u64 = 60;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

async fn take_once(locker: &Locker, name: &str) {
    let guard = timeout(secs(30), locker.lock(name)).await.expect("in time").expect("granted");
    guard.unlock().await.expect("released");
}

/// A claim is on its way when its runtime ends, with the connection. It arrives after the keeper's release.
#[test]
fn a_claim_that_ends_with_its_runtime_leaves_nothing() {
    let (ends, stays) = (runtime(), runtime());
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = ends.block_on(async {
        let locker = locker_at(&[proxy.address(), server.address()], secs(TTL));
        for _ in 0..10 {
            take_once(&locker, "warm").await;
        }
        proxy.wait_for("the connection of this runtime", |counts| counts.accepted == 2);
        for _ in 0..10 {
            take_once(&locker, "warm").await;
        }
        locker
    });
    proxy.hold_requests();
    ends.spawn(locker.lock("a").into_future());
    proxy.wait_for("the claim", |counts| counts.requests.held() > 0);
    ends.shutdown_background();
    stays.block_on(async {
        // The keeper's release is held up too, and then goes another way.
        take_once(&locker, "b").await;
        proxy.pass();
        take_once(&locker, "a").await;
        eventually("nothing is left", || keys(&server).is_empty()).await;
    });
    let counts = proxy.counts();
    assert!(counts.accepted >= 2 && counts.requests.held() == 0, "the claim went over it and has arrived: {counts:?}");
}

#[test]
fn a_locker_outlives_the_runtime_that_it_was_made_in() {
    let server = EtcdServer::start();
    let ends = runtime();
    let (locker, guard) = ends.block_on(async {
        let locker = locker_at(&[server.address()], secs(TTL));
        for _ in 0..20 {
            take_once(&locker, "a").await;
        }
        let guard = locker.lock("b").await.expect("granted");
        (locker, guard)
    });
    drop(ends);
    runtime().block_on(async {
        take_once(&locker, "a").await;
        guard.unlock().await.expect("still held");
        take_once(&locker, "b").await;
    });
    assert!(keys(&server).is_empty());
}

#[test]
fn a_runtime_without_sockets_and_timers_leaves_connections_to_the_keeper() {
    let server = EtcdServer::start();
    let bare = Builder::new_current_thread().build().expect("a runtime");
    bare.block_on(async {
        let locker = locker_at(&[server.address()], secs(TTL));
        for _ in 0..10 {
            locker.lock("a").await.expect("granted").unlock().await.expect("released");
        }
    });
    assert!(keys(&server).is_empty());
}
