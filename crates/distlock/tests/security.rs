//! The promises of SECURITY.md: hostile servers and hostile data cause an error and no more, and secrets are not
//! leaked.

#[cfg(feature = "etcd")]
#[path = "security/etcd.rs"]
mod etcd;
#[path = "security/files.rs"]
mod files;
#[cfg(all(feature = "redis", feature = "etcd"))]
#[path = "security/liar.rs"]
mod liar;
#[cfg(all(feature = "redis", feature = "etcd"))]
mod log_kit;
#[cfg(feature = "redis")]
#[path = "security/redis.rs"]
mod redis;
#[cfg(all(feature = "redis", feature = "etcd", feature = "postgres"))]
#[path = "security/secrets.rs"]
mod secrets;
#[cfg(all(feature = "redis", feature = "etcd"))]
#[path = "security/twister.rs"]
mod twister;

use std::future::IntoFuture;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use distlock::{Config, FencingToken, Locker};

/// A generous limit for anything, on a busy machine.
const TEST_LIMIT: Duration = Duration::from_secs(40);

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics on any thread: most of the work is on the keeper's thread, where no test would notice.
fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(info);
        }));
    });
}

/// Runs work that may fail, but must neither panic nor hang.
async fn in_time<T>(what: &str, work: impl IntoFuture<Output = T>) -> T {
    let _end = end_if_blocked(what.to_owned());
    let done = tokio::time::timeout(TEST_LIMIT, work.into_future()).await;
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{what}");
    done.unwrap_or_else(|_| panic!("not done within {TEST_LIMIT:?}: {what}"))
}

/// Ends the process unless the returned sender is dropped in time: a call that blocks its thread blocks the timer,
/// too.
fn end_if_blocked(what: String) -> mpsc::Sender<()> {
    let (alive, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(TEST_LIMIT * 2) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not by a macro, whose output is kept until the test ends.
            let _ = writeln!(std::io::stderr(), "a thread is blocked: {what}");
            std::process::exit(101);
        }
    });
    alive
}

/// Takes and releases a lock once, with a short wait for a hostile server.
async fn lock_once(url: String) -> distlock::Result<()> {
    let mut config = Config::default();
    (config.url, config.dial_timeout) = (Some(url), Some(Duration::from_secs(1)));
    let locker = Locker::from_config(&config).await?;
    locker.lock("a").wait(Duration::from_secs(1)).await.map(drop)
}

/// Calls everything that reads a lock, with any data there. Returns how often the lock was granted.
async fn use_all(locker: &Locker, key: &str, what: &str) -> usize {
    let inspect = locker.inspect();
    let waiting = locker.lock(key).wait(Duration::from_millis(50)).into_future();
    let mut granted = 0;
    for asked in [
        locker.try_lock(key).into_future(),
        Box::pin(async { waiting.await.map(Some) }),
        locker.try_read(key).into_future(),
        locker.semaphore(key, 3).try_acquire().into_future(),
    ] {
        if let Ok(Some(guard)) = in_time(what, asked).await {
            granted += 1;
            let _ = in_time(what, guard.unlock()).await;
        }
    }
    let _ = in_time(what, inspect.get(key)).await;
    let _ = in_time(what, inspect.list("")).await;
    let _ = in_time(what, inspect.history(key, 10)).await;
    let _ = in_time(what, inspect.force_release(key, FencingToken::new(1), "hostile")).await;
    granted
}

/// Returns the peak memory of this process, in megabytes.
fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}
