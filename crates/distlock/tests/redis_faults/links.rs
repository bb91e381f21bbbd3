//! The two connections of a locker, which break one by one.

use std::future::IntoFuture;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use distlock::Locker;
use distlock::backend::redis::Redis;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::bench::{Bench, PATIENCE, TTL, locker_of, ms, now, sleep};

/// Connections that can be broken on the client's side: what was written before is on its way then.
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

/// Sends a claim, gives it up, has it withdrawn over another connection, and only then lets it arrive. Whether it came
/// before its time was over.
async fn come_late(bench: &Bench) -> bool {
    let (relays, locker) = Relays::locker(bench.proxy.port()).await;
    let waits_there = || bench.proxy.counts().requests.held();
    bench.proxy.hold_requests();
    let claim = tokio::spawn(locker.lock("a").ttl(PATIENCE * 10).into_future());
    // More than those who only ask for the time.
    while waits_there() < 200 {
        sleep(ms(1)).await;
    }
    let (withdrawals, grants) = (bench.server.calls("evalsha"), bench.server.calls("set"));
    (0..2).for_each(|which| relays.break_one(which, bench.server.port()));
    claim.abort();
    let until = now().after(PATIENCE);
    while bench.server.calls("evalsha") == withdrawals {
        assert!(now() < until, "never withdrawn");
        sleep(ms(1)).await;
    }
    bench.proxy.pass();
    while waits_there() > 0 {
        sleep(ms(1)).await;
    }
    let other = bench.direct().await;
    let next = timeout(PATIENCE, other.lock("a")).await.expect("nobody has it for longer than a moment");
    next.expect("granted").unlock().await.expect("released");
    // The other one's own: when it was warmed, and now.
    bench.server.calls("set") > grants + 4
}

#[tokio::test]
async fn f14_a_claim_in_its_time_that_arrives_after_its_withdrawal_is_withdrawn_again() {
    let bench = Bench::start();
    for _ in 0..5 {
        if come_late(&bench).await {
            return bench.expect_nothing_left().await;
        }
    }
    panic!("no claim arrived between its withdrawal and the end of its time");
}
