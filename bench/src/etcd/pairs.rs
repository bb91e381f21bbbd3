//! One kind of work on a server that runs already, as often or as long as is asked for: for callgrind and strace, which
//! compare two runs of different length.

use std::time::Duration;

use distlock::LockGuard;
use tokio::runtime::{Builder, Runtime};

use super::engine;
use super::raw::Raw;

const USAGE: &str = "distlock-bench etcd-pairs HOST:PORT alone|workers raw|ours PAIRS, or etcd-pairs HOST:PORT alone|workers \
                     held LOCKS SECONDS";
/// The connection of the callers' runtime is opened after a few requests, in the background.
const WARM_UP: usize = 20;
const OPENING: Duration = Duration::from_millis(100);

/// Runs what `args` say.
pub(crate) fn pairs(args: &[String]) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().expect(USAGE);
    match args.as_slice() {
        [address, runtime, "raw", pairs] => on(runtime, raw((*address).to_owned(), number(pairs))),
        [address, runtime, "ours", pairs] => on(runtime, ours((*address).to_owned(), number(pairs))),
        [address, runtime, "held", locks, seconds] => {
            on(runtime, held((*address).to_owned(), number(locks), number(seconds)));
        }
        _ => panic!("{USAGE}"),
    }
}

/// Runs `work` as a task, as applications lock: the thread that blocks on a runtime of several threads is none of them.
fn on(runtime: &str, work: impl Future<Output = ()> + Send + 'static) {
    let mut builder = if runtime == "alone" { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let runtime: Runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::spawn(work).await.expect("done") });
}

async fn raw(address: String, pairs: usize) {
    let raw = Raw::connect(&format!("http://{address}")).await;
    let lease = raw.grant(600).await;
    for _ in 0..WARM_UP + pairs {
        raw.pair("raw/pairs/1", lease).await;
    }
}

async fn ours(address: String, pairs: usize) {
    let (locker, _) = engine(&address);
    for number in 0..WARM_UP + pairs {
        locker.lock("pairs").await.expect("granted").unlock().await.expect("released");
        if number == WARM_UP / 2 {
            tokio::time::sleep(OPENING).await;
        }
    }
}

async fn held(address: String, locks: usize, seconds: usize) {
    let (locker, _) = engine(&address);
    let mut guards: Vec<LockGuard> = Vec::new();
    for number in 0..locks {
        guards.push(locker.lock(format!("held:{number}")).await.expect("granted"));
    }
    tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()), "a lock was lost");
}
