//! The two connections of a locker, which break one by one.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use distlock::Locker;
use distlock::backend::redis::Redis;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::bench::{Bench, TTL, locker_of, sleep};

/// Connections that can be broken on the client's side.
#[derive(Clone, Default)]
struct Relays {
    /// Where the next ones go.
    port: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Relays {
    /// A locker whose two connections go to `port`.
    async fn locker(port: u16) -> (Relays, Locker) {
        let relays = Relays::default();
        relays.port.store(port, Ordering::SeqCst);
        let dialer = relays.clone();
        let dial = move || dialer.clone().dial();
        (relays, locker_of(Redis::over("relayed", dial).build().expect("an engine")).await)
    }

    async fn dial(self) -> io::Result<DuplexStream> {
        let mut there = TcpStream::connect(("127.0.0.1", self.port.load(Ordering::SeqCst))).await?;
        let (ours, mut theirs) = duplex(1 << 16);
        let relay = tokio::spawn(async move { drop(copy_bidirectional(&mut theirs, &mut there).await) });
        self.open.lock().unwrap().push(relay.abort_handle());
        Ok(ours)
    }

    /// Breaks one of those that were dialled so far. New ones go to `port`.
    fn break_one(&self, which: usize, port: u16) {
        self.port.store(port, Ordering::SeqCst);
        self.open.lock().unwrap()[which].abort();
    }
}

#[tokio::test]
async fn a_lock_outlives_either_connection_while_it_cannot_be_opened_again() {
    for which in 0..2 {
        let bench = Bench::start();
        let (relays, locker) = Relays::locker(bench.server.port()).await;
        let guard = locker.lock("a").await.expect("granted");
        // Nobody listens there.
        relays.break_one(which, 1);
        sleep(TTL * 2).await;
        assert!(!guard.is_lost(), "not renewed by the other connection");
        guard.unlock().await.expect("released by the other connection");
    }
}
