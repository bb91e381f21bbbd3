//! Hostile etcd servers, and hostile data on honest ones.

use distlock::Locker;
use distlock_testkit::servers::EtcdServer;

use crate::liar::{Lie, expect_errors};
use crate::{count_panics, in_time, use_all};

const MOST_MEMORY_MB: u64 = 700;

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_server_with_arbitrary_replies_causes_an_error_and_bounded_memory() {
    count_panics();
    let server = EtcdServer::start();
    let lies = vec![
        Lie { begins: b"\x00\xff\xfegarbage\r\n".to_vec(), goes_on: Vec::new() },
        Lie { begins: b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), goes_on: Vec::new() },
        // The largest frames, empty frames, and unsolicited settings.
        Lie { begins: b"\xff\xff\xff\x00\x00\x00\x00\x00\x01".to_vec(), goes_on: vec![b'a'; 4096] },
        Lie { begins: Vec::new(), goes_on: vec![0; 4096] },
        Lie { begins: Vec::new(), goes_on: b"\x00\x00\x00\x04\x00\x00\x00\x00\x00".repeat(100) },
    ];
    expect_errors("etcd", server.address(), lies, 300, MOST_MEMORY_MB).await;
}

/// Data that another client can write where locks are kept.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_data_in_etcd_are_an_error_or_a_foreign_lock() {
    count_panics();
    let server = EtcdServer::start();
    let locker = Locker::connect(&server.url()).await.expect("connected");
    let etcdctl = server.etcdctl();
    let (long, deep) = ("x".repeat(100_000), "[".repeat(100_000));
    let keys =
        ["a/", "a/x", "a/1-1", "a/ffffffffffffffffffffffff-1", "a/694d7a-1-slot99999999999", "a/694d7a-1-shared"];
    for key in keys {
        for value in ["", "null", &long, &deep, r#"{"owner":1}"#, r#"{"owner":"x","ttl_ms":-1,"slot":99999999999}"#] {
            etcdctl.run(&["put", "--", key, value]);
            let what = format!("{key} = {value:.40}");
            let inspect = locker.inspect();
            let _ = in_time(&what, locker.try_lock("a")).await;
            let _ = in_time(&what, inspect.get("a")).await;
        }
        use_all(&locker, "a", key).await;
        etcdctl.run(&["del", "--prefix", ""]);
    }
    let guard = in_time("afterwards", locker.lock("a")).await.expect("nothing stays broken");
    assert!(guard.unlock().await.is_ok());
}
