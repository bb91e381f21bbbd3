//! Connecting and examining, dropped after any number of polls: no thread and no descriptor is left of it.

use std::fs::read_dir;
use std::future::Future;
use std::time::{Duration, Instant};

use distlock::{Config, Locker, examine};
use distlock_testkit::poll_times;
use tokio::time::{sleep, timeout};

/// More than any of these futures needs before it waits for a server.
const MOST_POLLS: usize = 12;
/// After that it is dropped where it stands.
const A_MOMENT: Duration = Duration::from_millis(50);
/// For what must happen on any machine.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn connecting_and_examining_dropped_at_every_poll_leave_nothing() {
    let directory = std::env::temp_dir().join(format!("distlock-connecting-{}", std::process::id()));
    let mut urls = vec!["mem://".to_owned(), format!("file://{}", directory.display())];
    #[cfg(feature = "redis")]
    let redis = distlock_testkit::servers::RedisServer::start();
    #[cfg(feature = "redis")]
    urls.extend([redis.url(), format!("redlock://{},127.0.0.1:1,127.0.0.1:2", redis.address())]);
    #[cfg(feature = "etcd")]
    let etcd = distlock_testkit::servers::EtcdServer::start();
    #[cfg(feature = "etcd")]
    urls.push(etcd.url());
    for url in urls {
        let config = Config::from_url(&url).unwrap();
        let before = left();
        for polls in 0..MOST_POLLS {
            drop(drop_after(polls, Locker::connect(&url)).await);
            drop(drop_after(polls, Locker::from_config(&config)).await);
            drop(drop_after(polls, examine(&config)).await);
        }
        let until = Instant::now() + SOON;
        while left() != before {
            assert!(Instant::now() < until, "{url}: {:?} keepers and descriptors, {before:?} before", left());
            sleep(Duration::from_millis(10)).await;
        }
    }
    let _ = std::fs::remove_dir_all(directory);
}

async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    timeout(A_MOMENT, poll_times(polls, future)).await.ok().flatten()
}

/// How many keepers this process has, and how many open descriptors.
fn left() -> (usize, usize) {
    let is_keeper = |name: std::io::Result<String>| name.is_ok_and(|name| name.trim_end() == "distlock-keeper");
    let threads = read_dir("/proc/self/task").unwrap().flatten();
    let keepers = threads.filter(|thread| is_keeper(std::fs::read_to_string(thread.path().join("comm")))).count();
    (keepers, read_dir("/proc/self/fd").unwrap().count())
}
