//! URLs and their engines. Connecting and examining, dropped after any number of polls, leave no thread and no
//! descriptor behind.

use std::fs::read_dir;
use std::future::Future;
use std::time::{Duration, Instant};

use distlock::backend::memory::Memory;
use distlock::{Config, ErrorKind, Locker, examine};
use distlock_testkit::poll_times;
use tokio::time::{sleep, timeout};

/// More polls than any of these futures needs before it waits for a server.
const MOST_POLLS: usize = 12;
/// A future that is still pending after this time is dropped while it waits.
const A_MOMENT: Duration = Duration::from_millis(50);
/// A generous limit for what must happen on any machine.
const TEST_LIMIT: Duration = Duration::from_secs(30);

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
        let until = Instant::now() + TEST_LIMIT;
        while left() != before {
            assert!(Instant::now() < until, "{url}: {:?} keepers and descriptors, {before:?} before", left());
            sleep(Duration::from_millis(10)).await;
        }
    }
    let _ = std::fs::remove_dir_all(directory);
}

/// Every spelling of the URL leads to the store of this name in this process.
#[tokio::test]
async fn mem_is_one_store_per_process_and_name() {
    let mut listed = Config::default();
    listed.url = Some("mem://".into());
    let by_variable = Config::from_vars(|name| (name == "DISTLOCK_URL").then(|| "mem://".into())).unwrap();
    let mut plain = vec![Locker::connect("mem://").await.unwrap(), Locker::connect("mem:///").await.unwrap()];
    let mut configs = vec![listed, by_variable];
    #[cfg(feature = "config")]
    configs.push(Config::from_toml("url = 'mem://'").unwrap());
    for config in &configs {
        plain.push(Locker::from_config(config).await.unwrap());
    }
    let guard = plain[0].lock("connecting").await.unwrap();
    for other in &plain[1..] {
        assert!(other.try_lock("connecting").await.unwrap().is_none(), "one holder in the process");
    }
    let [one, two] = ["mem://connecting-1", "mem://connecting-1"].map(Locker::connect);
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    let named = one.lock("connecting").await.unwrap();
    assert!(two.try_lock("connecting").await.unwrap().is_none());
    let other = Locker::connect("mem://connecting-2").await.unwrap();
    assert!(other.try_lock("connecting").await.unwrap().is_some(), "another name is another store");
    named.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(plain[1].try_lock("connecting").await.unwrap().is_some(), "free for all again");
}

/// The store is dropped with its last client, but its tokens continue to rise.
#[tokio::test]
async fn tokens_of_mem_rise_across_clients() {
    for url in ["mem://connecting-3", "mem://connecting-4"] {
        let mut last = None;
        for _ in 0..5 {
            let locker = Locker::connect(url).await.unwrap();
            let guard = locker.lock("connecting").await.unwrap();
            let token = guard.fencing_token();
            assert!(last < Some(token), "{url}: {token} after {last:?}");
            last = Some(token);
            guard.unlock().await.unwrap();
            locker.close().await.unwrap();
        }
    }
}

async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    timeout(A_MOMENT, poll_times(polls, future)).await.ok().flatten()
}

/// Returns the numbers of keepers and of open descriptors of this process.
fn left() -> (usize, usize) {
    let is_keeper = |name: std::io::Result<String>| name.is_ok_and(|name| name.trim_end() == "distlock-keeper");
    let threads = read_dir("/proc/self/task").unwrap().flatten();
    let keepers = threads.filter(|thread| is_keeper(std::fs::read_to_string(thread.path().join("comm")))).count();
    (keepers, read_dir("/proc/self/fd").unwrap().count())
}

/// Polls on this thread, outside of any runtime, as a plain executor does.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
        std::thread::park();
    }
}

fn expect_no_runtime<T>(what: &str, outcome: distlock::Result<T>) {
    let Err(error) = outcome else { panic!("{what} went well outside of a runtime") };
    assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
    assert!(error.to_string().contains("needs a tokio runtime"), "{what}: {error}");
}

#[test]
fn connecting_outside_of_a_runtime_is_an_error_that_names_the_runtime() {
    let mut urls: Vec<&str> = Vec::new();
    #[cfg(feature = "redis")]
    urls.extend(["redis://127.0.0.1:1", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"]);
    #[cfg(feature = "etcd")]
    urls.push("etcd://127.0.0.1:1");
    for url in urls {
        expect_no_runtime(url, block_on(Locker::connect(url)));
        expect_no_runtime(url, block_on(examine(&Config::from_url(url).unwrap())));
    }
    block_on(Locker::connect("mem://")).expect("nothing is missing for locks in memory");
}

/// Uses a locker that was created, and has holds, inside of a runtime.
#[cfg(any(feature = "etcd", feature = "redis"))]
fn check_outside_of_a_runtime(url: &str) {
    use std::future::IntoFuture;

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let locker = runtime.block_on(Locker::connect(url)).expect("connected");
    let guard = runtime.block_on(locker.lock("a").into_future()).expect("granted");
    let named = runtime.block_on(locker.lock("b").into_future()).expect("granted");
    named.detach();
    expect_no_runtime("lock", block_on(locker.lock("c").into_future()));
    expect_no_runtime("try_lock", block_on(locker.try_lock("c").into_future()));
    expect_no_runtime("lock_all", block_on(locker.lock_all(["c", "d"]).into_future()));
    expect_no_runtime("semaphore", block_on(locker.semaphore("s", 2).acquire().into_future()));
    expect_no_runtime("campaign", block_on(locker.election("e").campaign("me").into_future()));
    expect_no_runtime("leader", block_on(locker.election("e").leader()));
    expect_no_runtime("inspect", block_on(locker.inspect().list("")));
    expect_no_runtime("extend", block_on(guard.extend(TEST_LIMIT)));
    expect_no_runtime("asked", block_on(guard.asked()));
    expect_no_runtime("unlock by name", block_on(locker.unlock("b").into_future()));
    assert!(!guard.is_lost(), "nothing happened to it");
    expect_no_runtime("unlock", block_on(guard.unlock()));
    // Released in the background, although this thread could not call the engine.
    let other = locker.clone();
    runtime.block_on(other.lock("a").wait(TEST_LIMIT).into_future()).expect("released").detach();
    block_on(locker.close()).expect("the keeper closes it, on a runtime of its own");
}

#[cfg(feature = "redis")]
#[test]
fn outside_of_a_runtime_every_call_on_redis_is_an_error() {
    let server = distlock_testkit::servers::RedisServer::start();
    check_outside_of_a_runtime(&server.url());
}

#[cfg(feature = "etcd")]
#[test]
fn outside_of_a_runtime_every_call_on_etcd_is_an_error() {
    let server = distlock_testkit::servers::EtcdServer::start();
    check_outside_of_a_runtime(&server.url());
}

#[test]
fn locks_in_memory_work_outside_of_a_runtime_until_a_wait() {
    use std::future::IntoFuture;

    let locker = Locker::new(Memory::new()).expect("a locker");
    let guard = block_on(locker.lock("a").wait(TEST_LIMIT).into_future()).expect("granted");
    let other = locker.clone();
    expect_no_runtime("a wait", block_on(other.lock("a").wait(TEST_LIMIT).into_future()));
    block_on(guard.unlock()).expect("released");
    block_on(locker.close()).expect("closed");
}

/// What a URL says wins; the builder has the defaults and what a URL cannot say.
#[tokio::test]
async fn a_builder_and_a_url_meet() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let seen = Arc::new(AtomicUsize::new(0));
    let counts = seen.clone();
    let builder = move || {
        let counts = counts.clone();
        let observer = move |_: &distlock::Event<'_>| {
            counts.fetch_add(1, Ordering::SeqCst);
        };
        Locker::builder().default_ttl(Duration::from_secs(30)).observer(observer)
    };
    for (url, ttl) in [("mem://meets", 30), ("mem://meets?default_ttl=7s", 7), ("mem://meets?ttl=7s", 7)] {
        let locker = builder().connect(url).await.unwrap();
        let guard = locker.lock("a").await.unwrap();
        let left = guard.remaining().unwrap();
        assert!(left <= Duration::from_secs(ttl) && left > Duration::from_secs(ttl) / 2, "{url}: {left:?}");
        guard.unlock().await.unwrap();
    }
    assert!(seen.load(Ordering::SeqCst) > 0, "the observer was told");
    let error = Locker::builder().default_ttl(Duration::ZERO).connect("mem://").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().starts_with("ttl: "), "{error}");
}

/// A service starts although its engine is away, and locks when the engine is there.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_lazy_locker_waits_for_its_engine() {
    let mut redis = distlock_testkit::servers::RedisServer::start();
    redis.kill9();
    let locker = Locker::builder().connect_lazy(&redis.url()).unwrap();
    let error = locker.try_lock("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waiter = tokio::spawn(async move { locker.lock("a").wait(TEST_LIMIT).await.map(drop) });
    redis.restart(distlock_testkit::servers::Data::Kept);
    timeout(TEST_LIMIT, waiter).await.expect("it ends").unwrap().expect("granted");
}
