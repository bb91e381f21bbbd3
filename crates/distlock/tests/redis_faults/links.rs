//! The two connections of a locker, broken one at a time.

use std::future::IntoFuture;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use distlock::backend::redis::{Redis, RedisBuilder};
use distlock::backend::{Backend, Claim};
use distlock::{Clock, ErrorKind, Key, Locker, LossReason, OwnerId, Process, Record};
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, locker_of, ms, now, sleep};

/// Connections that can be broken on the client's side: bytes written before that are still delivered.
#[derive(Clone, Default)]
pub(crate) struct Relays {
    /// The port of new connections.
    port: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Relays {
    /// Returns a locker whose two connections go to `port`.
    async fn locker(port: u16) -> (Relays, Locker) {
        let (relays, engine) = Relays::engine(port);
        (relays, locker_of(engine.build().expect("an engine")).await)
    }

    /// Returns an engine whose connections go to `port`.
    pub(crate) fn engine(port: u16) -> (Relays, RedisBuilder) {
        let relays = Relays::default();
        relays.port.store(port, Ordering::SeqCst);
        let dialer = relays.clone();
        (relays, Redis::over("relayed", move || dialer.clone().dial()))
    }

    async fn dial(self) -> io::Result<DuplexStream> {
        let mut there = TcpStream::connect(("127.0.0.1", self.port.load(Ordering::SeqCst))).await?;
        let (ours, mut theirs) = duplex(1 << 16);
        let relay = tokio::spawn(async move { drop(copy_bidirectional(&mut theirs, &mut there).await) });
        self.open.lock().unwrap().push(relay.abort_handle());
        Ok(ours)
    }

    /// Breaks all connections so far. New ones go to `port`.
    pub(crate) fn break_all(&self, port: u16) {
        self.port.store(port, Ordering::SeqCst);
        self.open.lock().unwrap().iter().for_each(AbortHandle::abort);
    }

    /// Breaks one of the connections so far. New ones go to `port`.
    fn break_one(&self, which: usize, port: u16) {
        self.port.store(port, Ordering::SeqCst);
        self.open.lock().unwrap()[which].abort();
    }
}

#[tokio::test]
async fn a_lock_survives_the_loss_of_either_connection() {
    for which in 0..2 {
        let bench = Bench::start();
        let (relays, locker) = Relays::locker(bench.server.port()).await;
        let guard = locker.lock("a").await.expect("granted");
        // No server listens there.
        relays.break_one(which, 1);
        sleep(TTL * 2).await;
        assert!(!guard.is_lost(), "not renewed by the other connection");
        guard.unlock().await.expect("released by the other connection");
    }
}

/// Sends a claim, cancels it, withdraws it over another connection, and only then lets it arrive. Returns whether it
/// arrived before its time limit.
async fn come_late(bench: &Bench) -> bool {
    let (relays, locker) = Relays::locker(bench.proxy.port()).await;
    let waits_there = || bench.proxy.counts().requests.held();
    bench.proxy.hold_requests();
    let claim = tokio::spawn(locker.lock("a").ttl(TEST_LIMIT * 10).into_future());
    // More bytes than clients that only query the time.
    while waits_there() < 200 {
        sleep(ms(1)).await;
    }
    let (withdrawals, grants) = (bench.server.calls("evalsha"), bench.server.calls("set"));
    (0..2).for_each(|which| relays.break_one(which, bench.server.port()));
    claim.abort();
    let until = now().after(TEST_LIMIT);
    while bench.server.calls("evalsha") == withdrawals {
        assert!(now() < until, "never withdrawn");
        sleep(ms(1)).await;
    }
    bench.proxy.pass();
    while waits_there() > 0 {
        sleep(ms(1)).await;
    }
    let other = bench.direct().await;
    let next = timeout(TEST_LIMIT, other.lock("a")).await.expect("no client holds it for longer than a moment");
    next.expect("granted").unlock().await.expect("released");
    // The other client's own grants: its warm-up, and now.
    bench.server.calls("set") > grants + 4
}

#[tokio::test]
async fn f14_a_timely_claim_that_arrives_after_its_withdrawal_is_withdrawn_again() {
    let bench = Bench::start();
    for _ in 0..5 {
        if come_late(&bench).await {
            return bench.expect_nothing_left().await;
        }
    }
    panic!("no claim arrived between its withdrawal and the end of its time");
}

/// Sends an adoption, cancels it, withdraws it over another connection, and only then lets it arrive. Returns whether
/// it arrived before its time limit.
async fn adopt_late(bench: &Bench) -> bool {
    let (relays, locker) = Relays::locker(bench.proxy.port()).await;
    let holder = bench.direct().await;
    let first = holder.lock("a").ttl(TEST_LIMIT * 10).wait(TEST_LIMIT).await.expect("granted");
    // Adopted by another client first, so that the server has the script.
    let guard = bench.direct().await.adopt(&first.export()).await.expect("adopted");
    let (ticket, adopter) = (guard.export(), locker.clone());
    let waits_there = || bench.proxy.counts().requests.held();
    bench.proxy.hold_requests();
    let adopting = tokio::spawn(async move { adopter.adopt(&ticket).await });
    // More bytes than clients that only query the time.
    while waits_there() < 200 {
        sleep(ms(1)).await;
    }
    let withdrawals = bench.server.calls("evalsha");
    relays.break_all(bench.server.port());
    adopting.abort();
    let until = now().after(TEST_LIMIT);
    while bench.server.calls("evalsha") == withdrawals {
        assert!(now() < until, "never withdrawn");
        sleep(ms(1)).await;
    }
    bench.proxy.pass();
    while waits_there() > 0 {
        sleep(ms(1)).await;
    }
    // An adoption refused as too late leaves the hold to its holder.
    let lost = timeout(ms(500), guard.lost()).await;
    if lost.is_err() {
        drop(guard.unlock().await);
        return false;
    }
    assert_eq!(lost.ok(), Some(LossReason::Adopted));
    let next = timeout(TEST_LIMIT, holder.lock("a")).await.expect("adopted for an attempt that is over");
    next.expect("granted").unlock().await.expect("released");
    true
}

#[tokio::test]
async fn f14_a_timely_adoption_that_arrives_after_its_withdrawal_is_withdrawn_again() {
    let bench = Bench::start();
    for _ in 0..5 {
        if adopt_late(&bench).await {
            return bench.expect_nothing_left().await;
        }
    }
    panic!("no adoption arrived between its withdrawal and the end of its time");
}

/// A locker is closed right after one of its claims was cancelled, and the claim arrives after that.
#[tokio::test]
async fn f14_a_claim_that_arrives_while_its_locker_closes_is_withdrawn_again() {
    let bench = Bench::start();
    let other = bench.direct().await;
    let waits_there = || bench.proxy.counts().requests.held();
    for _ in 0..5 {
        let (relays, locker) = Relays::locker(bench.proxy.port()).await;
        bench.proxy.hold_requests();
        let claim = tokio::spawn(locker.lock("a").ttl(TEST_LIMIT * 10).into_future());
        while waits_there() < 200 {
            sleep(ms(1)).await;
        }
        let (withdrawals, grants) = (bench.server.calls("evalsha"), bench.server.calls("set"));
        relays.break_all(bench.server.port());
        claim.abort();
        let closing = tokio::spawn(async move { locker.close().await });
        let until = now().after(TEST_LIMIT);
        while bench.server.calls("evalsha") == withdrawals {
            assert!(now() < until, "never withdrawn");
            sleep(ms(1)).await;
        }
        bench.proxy.pass();
        timeout(TEST_LIMIT, closing).await.expect("in time").expect("no panic").expect("closed");
        while waits_there() > 0 {
            sleep(ms(1)).await;
        }
        let came_in_time = bench.server.calls("set") > grants;
        let next = other.try_lock("a").await.expect("no failure");
        next.expect("it is free when the locker is closed").unlock().await.expect("released");
        if came_in_time {
            return;
        }
    }
    panic!("no claim arrived between its withdrawal and the end of its time");
}

#[tokio::test]
async fn an_error_of_a_connection_names_its_server_once() {
    let bench = Bench::start();
    let engine = Arc::new(Redis::tcp("127.0.0.1", bench.proxy.port()).build().expect("an engine"));
    engine.ready().await.expect("connected");
    let record = Record::new(OwnerId::random(), Process::current(), None, Clock::system().wall());
    let claim = Claim::new(Key::new("a").expect("a name"), TEST_LIMIT, false, record.into());
    bench.proxy.hold_requests();
    let asked = tokio::spawn({
        let (engine, claim) = (engine.clone(), claim.clone());
        async move { engine.claim(&claim).await }
    });
    let until = now().after(TEST_LIMIT);
    while bench.proxy.counts().requests.held() < 200 {
        assert!(now() < until, "never asked");
        sleep(ms(1)).await;
    }
    bench.proxy.cut();
    let unanswered = asked.await.expect("no panic").expect_err("cut");
    assert_eq!(unanswered.kind(), ErrorKind::Unknown, "{unanswered}");
    // The next connection gets no reply, either.
    let unsent = engine.claim(&claim).await.expect_err("no connection");
    assert_eq!(unsent.kind(), ErrorKind::Unavailable, "{unsent}");
    let place = bench.proxy.address().to_string();
    for error in [unanswered, unsent] {
        assert_eq!(format!("{error:?}").matches(&place).count(), 1, "{error:?}");
        let words = error.to_string();
        let mut parts: Vec<_> = words.split(": ").collect();
        parts.sort_unstable();
        assert!(parts.windows(2).all(|two| two[0] != two[1]), "said twice: {error:?}");
    }
}
