//! Nothing but pairs of lock and unlock, on a server that runs already: for counting instructions of either side.
//!
//! `valgrind --tool=callgrind distlock-bench redis pairs PORT raw|ours TASKS PAIRS`, with two numbers of pairs: what they
//! differ by is the cost of the pairs, without that of starting. `raw-2` and `ours-2` use a runtime of two threads.

use ::redis::aio::MultiplexedConnection;
use distlock::Locker;
use tokio::task::JoinSet;

use super::{RawRelease, locker, pair, raw_pair};

/// Makes `pairs` pairs by `tasks` tasks: by hand when `kind` is `raw`, otherwise by the library.
pub(super) fn run(port: u16, kind: &str, tasks: usize, pairs: usize) {
    let (kind, mut runtime) = match kind.strip_suffix("-2") {
        Some(kind) => (kind, tokio::runtime::Builder::new_multi_thread()),
        None => (kind, tokio::runtime::Builder::new_current_thread()),
    };
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp3")).expect("a client");
        let mut raw = client.get_multiplexed_async_connection().await.expect("connected");
        let release = RawRelease::find(&mut raw).await;
        let locker = locker(port);
        locker.lock("warm").await.expect("granted").unlock().await.expect("released");
        let mut all = JoinSet::new();
        for number in 0..tasks {
            match kind {
                "raw" => drop(all.spawn(by_hand(raw.clone(), release.clone(), number, pairs / tasks))),
                _ => drop(all.spawn(by_library(locker.clone(), number, pairs / tasks))),
            }
        }
        all.join_all().await;
    });
}

async fn by_hand(mut connection: MultiplexedConnection, release: RawRelease, number: usize, pairs: usize) {
    let key = format!("raw:{number}");
    for _ in 0..pairs {
        raw_pair(&mut connection, &release, &key, "0123456789abcdef0123456789abcdef").await;
    }
}

async fn by_library(locker: Locker, number: usize, pairs: usize) {
    let key = format!("ours:{number}");
    for _ in 0..pairs {
        pair(&locker, &key).await;
    }
}
