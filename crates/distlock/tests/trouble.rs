//! Engines that are slow, hang or report wrong times, and lockers that close during other operations.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::backend::{
    Attachment, Backend, Capabilities, Claim, Claimed, Lease, LockInfo, Release, Renewal, Scope, Term, Wake,
};
use distlock::{Clock, ErrorKind, Event, EventKind, HistoryKind, Key, Locker, LossReason, Result};
use distlock_testkit::Ticks;
use tokio::time::timeout;

/// A generous limit for what must happen on any machine.
const TEST_LIMIT: Duration = Duration::from_secs(20);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns a clock that advances while this process runs: no lease of these tests ends because the machine stopped
/// them.
fn ticking() -> (Clock, Ticks) {
    let (clock, hand) = Clock::manual();
    (clock, Ticks::of(hand))
}

async fn sleep(clock: &Clock, time: Duration) {
    clock.sleep_until(clock.now().after(time)).await;
}

fn locker(clock: &Clock, engine: impl Backend) -> Locker {
    Locker::builder().clock(clock.clone()).build(engine).unwrap()
}

/// The delay of a reply about a lock; `None` means for ever.
type Delay = fn(&Key) -> Option<Duration>;

fn at_once(_: &Key) -> Option<Duration> {
    Some(Duration::ZERO)
}

/// The memory engine with configurable faults.
struct Moody {
    memory: Memory,
    attachment: OnceLock<Attachment>,
    /// The clock of the delays.
    clock: Clock,
    renewal: Delay,
    release: Delay,
    /// Reports that each renewal began this much earlier, as an engine with a shared session does.
    dated_back: Duration,
    /// Reports a loss together with the grant.
    revokes: bool,
    renewals: Arc<AtomicU64>,
}

impl Moody {
    fn on(store: &Store) -> Moody {
        Moody {
            memory: Memory::on(store),
            attachment: OnceLock::new(),
            clock: Clock::system(),
            renewal: at_once,
            release: at_once,
            dated_back: Duration::ZERO,
            revokes: false,
            renewals: Arc::default(),
        }
    }

    /// Returns an engine with its own store, all on this clock.
    fn by(clock: &Clock) -> Moody {
        Moody { clock: clock.clone(), ..Moody::on(&Store::with_clock(clock.clone())) }
    }

    async fn pass(&self, delay: Option<Duration>) {
        match delay {
            Some(delay) => sleep(&self.clock, delay).await,
            None => std::future::pending().await,
        }
    }
}

impl Backend for Moody {
    fn name(&self) -> &'static str {
        "moody"
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn attach(&self, attachment: Attachment) {
        let _ = self.attachment.set(attachment.clone());
        self.memory.attach(attachment);
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let answer = self.memory.claim(claim).await;
        if self.revokes {
            let losses = &self.attachment.get().expect("attached").losses;
            losses.push(claim.attempt, LossReason::Revoked);
            // Time for the keeper to receive it before there is a hold.
            tokio::time::sleep(ms(50)).await;
        }
        answer
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        self.memory.wait(claim).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        let answers = self.memory.renew(leases).await;
        for lease in leases {
            self.pass((self.renewal)(&lease.claim.key)).await;
        }
        let back = |term: Term| Term { start: term.start.before(self.dated_back), ..term };
        let dated = |renewal| match renewal {
            Renewal::Renewed(term) => Renewal::Renewed(term.map(back)),
            lost => lost,
        };
        answers.into_iter().map(|answer| answer.map(dated)).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.pass((self.release)(&claim.key)).await;
        self.memory.release(claim).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.memory.get(key).await
    }
}

fn hangs_if_bad(key: &Key) -> Option<Duration> {
    if key.as_str().starts_with("bad") { None } else { Some(Duration::ZERO) }
}

#[tokio::test]
async fn a_late_renewal_reply_still_counts() {
    let (clock, _ticks) = ticking();
    let locker = locker(&clock, Moody { renewal: |_| Some(ms(250)), ..Moody::by(&clock) });
    let guard = locker.lock("k").ttl(ms(1000)).await.unwrap();
    sleep(&clock, ms(4000)).await;
    assert!(guard.unlock().await.is_ok(), "kept, although every answer came after a quarter of the lease");
}

#[tokio::test]
async fn a_hanging_renewal_loses_no_other_lock() {
    let (clock, _ticks) = ticking();
    let locker = locker(&clock, Moody { renewal: hangs_if_bad, ..Moody::by(&clock) });
    let ttl = ms(3000);
    let bad = locker.lock("bad").ttl(ttl).await.unwrap();
    let mut good = Vec::new();
    for number in 0..40 {
        good.push(locker.lock(format!("good{number}")).ttl(ttl).await.unwrap());
    }
    assert_eq!(timeout(TEST_LIMIT, bad.lost()).await.expect("notified"), LossReason::Expired);
    sleep(&clock, ttl).await;
    let lost = good.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "of {}", good.len());
}

#[tokio::test]
async fn hanging_renewals_leave_room_for_short_leases() {
    let (clock, _ticks) = ticking();
    let locker = locker(&clock, Moody { renewal: hangs_if_bad, ..Moody::by(&clock) });
    let mut bad = Vec::new();
    for number in 0..12 {
        bad.push(locker.lock(format!("bad{number}")).ttl(ms(4000 + number * 60)).await.unwrap());
    }
    let good = locker.lock("good").ttl(ms(1200)).await.unwrap();
    sleep(&clock, ms(4000)).await;
    assert!(!good.is_lost(), "renewed beside those that hang");
}

#[tokio::test]
async fn back_dated_renewals_do_not_cause_constant_renewing() {
    let (clock, _ticks) = ticking();
    let engine = Moody { dated_back: ms(800), ..Moody::by(&clock) };
    let renewals = engine.renewals.clone();
    let locker = locker(&clock, engine);
    let guard = locker.lock("k").ttl(ms(2000)).await.unwrap();
    sleep(&clock, ms(3000)).await;
    guard.check().expect("held");
    let asked = renewals.load(Ordering::SeqCst);
    assert!(asked < 60, "{asked} renewals in 3 s");
}

#[tokio::test]
async fn hanging_releases_delay_no_other_release() {
    let store = Store::new();
    let locker = Locker::new(Moody { release: hangs_if_bad, ..Moody::on(&store) }).unwrap();
    let mut bad = Vec::new();
    for number in 0..100 {
        bad.push(locker.lock(format!("bad{number}")).ttl(Duration::from_secs(600)).await.unwrap());
    }
    drop(bad);
    drop(locker.lock("good").ttl(Duration::from_secs(600)).await.unwrap());
    let other = Locker::new(Memory::on(&store)).unwrap();
    let next = other.lock("good").wait(TEST_LIMIT).await.expect("released while a hundred others hang");
    assert!(!next.is_lost());
}

#[tokio::test]
async fn a_loss_pushed_before_the_guard_exists_is_reported() {
    let locker = Locker::new(Moody { revokes: true, ..Moody::on(&Store::new()) }).unwrap();
    let guard = locker.lock("k").ttl(Duration::from_secs(600)).await.unwrap();
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified at once"), LossReason::Revoked);
}

#[tokio::test]
async fn a_release_with_a_lost_reply_is_reported_as_released() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = log.clone();
    let store = Store::new();
    let observer = move |event: &Event<'_>| seen.lock().unwrap().push(format!("{:?}", event.kind));
    let locker = Locker::builder().observer(observer).build(Memory::on(&store)).unwrap();
    store.script(Operation::Release, Fault::LoseReply);
    let outcome = locker.lock("k").await.unwrap().unlock().await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unknown);
    locker.close().await.unwrap();
    let log = log.lock().unwrap();
    assert!(log.iter().any(|event| event.starts_with("Released")), "{log:?}");
    assert!(!log.iter().any(|event| event.starts_with("Lost")), "{log:?}");
}

#[tokio::test]
async fn the_release_of_an_extended_hold_is_retried_until_its_lease_ends() {
    let (clock, hand) = Clock::manual();
    let store = Store::with_clock(clock.clone());
    let [locker, other] = [(); 2].map(|()| locker(&clock, Memory::on(&store)));
    let guard = locker.lock("k").ttl(ms(100)).await.unwrap();
    guard.extend(Duration::from_secs(600)).await.unwrap();
    for _ in 0..4 {
        store.script(Operation::Release, Fault::Refuse);
    }
    assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let _ticks = Ticks::of(hand);
    let next = timeout(TEST_LIMIT, other.lock("k").into_future()).await.expect("released after all").unwrap();
    assert!(!next.is_lost());
}

#[tokio::test]
async fn the_release_of_a_possibly_extended_hold_is_retried_until_the_longer_lease_ends() {
    let (clock, hand) = Clock::manual();
    let store = Store::with_clock(clock.clone());
    let [locker, other] = [(); 2].map(|()| locker(&clock, Memory::on(&store)));
    let guard = locker.lock("k").ttl(ms(1000)).watchdog(false).await.unwrap();
    store.script(Operation::Renew, Fault::LoseReply);
    assert_eq!(guard.extend(Duration::from_secs(600)).await.unwrap_err().kind(), ErrorKind::Unknown);
    // Retried for longer than the original lease.
    for _ in 0..6 {
        store.script(Operation::Release, Fault::Refuse);
    }
    drop(guard);
    let _ticks = Ticks::of(hand);
    drop(timeout(TEST_LIMIT, other.lock("k").into_future()).await.expect("released after all").unwrap());
}

#[tokio::test]
async fn a_guard_is_notified_when_the_last_entry_is_unlocked_by_name() {
    let locker = Locker::new(Memory::new()).unwrap();
    let one = locker.lock("k").reentrant().await.unwrap();
    let other = locker.lock("k").reentrant().await.unwrap();
    locker.unlock("k").await.unwrap();
    other.check().expect("one of two has left");
    drop(one);
    assert_eq!(other.check().unwrap_err().loss_reason(), Some(&LossReason::Unlocked));
}

#[tokio::test]
async fn a_guard_is_notified_when_its_lock_is_unlocked_by_name() {
    let locker = Locker::new(Memory::new()).unwrap();
    let guard = locker.lock("k").await.unwrap();
    locker.unlock("k").await.unwrap();
    assert!(guard.is_lost());
    assert_eq!(guard.unlock().await.unwrap_err().loss_reason(), Some(&LossReason::Unlocked));
}

#[tokio::test]
async fn every_level_of_a_lost_reentrant_hold_reports_the_loss() {
    let (clock, hand) = Clock::manual();
    let locker = locker(&clock, Memory::on(&Store::with_clock(clock.clone())));
    let ttl = ms(200);
    let outer = locker.lock("k").ttl(ttl).reentrant().watchdog(false).await.unwrap();
    let inner = locker.lock("k").reentrant().await.unwrap();
    hand.jump(ttl);
    assert_eq!(timeout(TEST_LIMIT, inner.lost()).await.expect("notified"), LossReason::Expired);
    assert_eq!(inner.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(outer.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn closing_is_bounded_and_names_unconfirmed_releases() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let observer = move |event: &Event<'_>| {
        if let EventKind::Lost { reason, .. } = event.kind {
            told.lock().unwrap().push(reason.clone());
        }
    };
    let engine = Moody { release: |_| None, ..Moody::on(&Store::new()) };
    let locker = Locker::builder().observer(observer).build(engine).unwrap();
    let guard = locker.lock("invoice:42").ttl(Duration::from_secs(600)).await.unwrap();
    let error = timeout(TEST_LIMIT, locker.close()).await.expect("bounded").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.to_string().contains("invoice:42"), "{error}");
    assert_eq!(guard.lost().await, LossReason::Closed);
    assert_eq!(*seen.lock().unwrap(), [LossReason::Closed], "observers get the reason of the guard, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_leaves_no_waiter_in_the_queue() {
    for _ in 0..20 {
        let store = Store::new();
        let holder = Locker::new(Memory::on(&store)).unwrap();
        let closing = Locker::new(Memory::on(&store)).unwrap();
        let guard = holder.lock("k").await.unwrap();
        let waiters: Vec<_> = (0..5).map(|_| tokio::spawn(closing.clone().lock("k").into_future())).collect();
        let queued = async || holder.inspect().get("k").await.unwrap().map_or(0, |lock| lock.waiters.len());
        while queued().await < waiters.len() {
            tokio::task::yield_now().await;
        }
        closing.close().await.unwrap();
        assert_eq!(queued().await, 0);
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        }
        guard.unlock().await.unwrap();
        assert!(store.is_empty());
    }
}

#[tokio::test]
async fn closing_waits_for_an_unlock_in_flight() {
    let store = Store::new();
    let locker = Locker::new(Memory::on(&store)).unwrap();
    let guard = locker.lock("k").await.unwrap();
    store.script(Operation::Release, Fault::Delay(ms(500)));
    let unlock = tokio::spawn(guard.unlock());
    tokio::task::yield_now().await;
    locker.close().await.unwrap();
    assert!(store.is_empty(), "closed before the lock was free");
    unlock.await.unwrap().unwrap();
}

#[tokio::test]
async fn closing_ignores_failures_of_ended_leases() {
    let store = Store::new();
    let locker = Locker::new(Memory::on(&store)).unwrap();
    for _ in 0..3 {
        store.script(Operation::Release, Fault::LoseRequest);
    }
    drop(locker.lock("k").ttl(ms(100)).await.unwrap());
    timeout(TEST_LIMIT, async {
        while !store.is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
    .expect("the lease ended");
    tokio::time::sleep(ms(200)).await;
    assert!(locker.close().await.is_ok(), "nothing is left to confirm");
}

#[tokio::test]
async fn a_handover_allows_for_the_configured_drift() {
    let ((server, server_hand), (client, client_hand)) = (Clock::manual(), Clock::manual());
    let store = Store::with_clock(server.clone());
    let ttl = Duration::from_secs(3600);
    let holder = Locker::builder().clock(server).build(Memory::on(&store)).unwrap();
    let waiting = Locker::builder().clock(client.clone()).clock_drift(0.05).build(Memory::on(&store)).unwrap();
    let guard = holder.lock("k").ttl(ttl * 2).await.unwrap();
    let waiter = tokio::spawn(waiting.lock("k").ttl(ttl).into_future());
    while holder.inspect().get("k").await.unwrap().is_none_or(|lock| lock.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    // The client's clock runs 5 % slow.
    server_hand.jump(Duration::from_secs(1000));
    client_hand.jump(Duration::from_secs(950));
    guard.unlock().await.unwrap();
    let handed = timeout(TEST_LIMIT, waiter).await.unwrap().unwrap().unwrap();
    let believed = handed.remaining().expect("it has a lease");
    assert!(believed <= ttl.mul_f64(0.95), "{believed:?} of the server's {ttl:?} on a clock that is 5 % slow");
}

#[tokio::test]
async fn an_unwritable_history_affects_no_lock_and_is_written_later() {
    let store = Store::new();
    store.script(Operation::WriteHistory, Fault::Refuse);
    let locker = Locker::builder().history(10).build(Memory::on(&store)).unwrap();
    let reader = Locker::new(Memory::on(&store)).unwrap();
    let guard = locker.lock("a").await.unwrap();
    let token = guard.fencing_token();
    let began = Instant::now();
    // Locks continue whatever happens to the history.
    while reader.inspect().history("a", 10).await.unwrap().is_empty() {
        assert!(began.elapsed() < TEST_LIMIT, "it is tried again");
        timeout(TEST_LIMIT, async { locker.lock("b").await.unwrap().unlock().await.unwrap() })
            .await
            .expect("a lock as ever");
        tokio::time::sleep(ms(20)).await;
    }
    let entries = reader.inspect().history("a", 10).await.unwrap();
    assert_eq!((entries[0].token, entries[0].kind), (token, HistoryKind::Acquired));
    assert!(reader.inspect().history("b", 10).await.unwrap().len() <= 10);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_hanging_history_delays_no_lock_and_closing_only_briefly() {
    let store = Store::new();
    (0..8).for_each(|_| store.script(Operation::WriteHistory, Fault::Hang));
    let locker = Locker::builder().history(10).build(Memory::on(&store)).unwrap();
    for _ in 0..100 {
        timeout(TEST_LIMIT, async { locker.lock("a").await.unwrap().unlock().await.unwrap() })
            .await
            .expect("a lock as ever");
    }
    timeout(TEST_LIMIT, locker.close()).await.expect("it does not wait for ever").unwrap();
    assert!(store.is_empty());
}

#[tokio::test]
async fn events_just_before_closing_are_in_the_history() {
    let store = Store::new();
    let locker = Locker::builder().history(10).build(Memory::on(&store)).unwrap();
    locker.lock("a").await.unwrap().unlock().await.unwrap();
    let _held = locker.lock("a").label("still held").await.unwrap();
    locker.close().await.unwrap();
    let entries = Locker::new(Memory::on(&store)).unwrap().inspect().history("a", 10).await.unwrap();
    use HistoryKind::{Acquired, Released};
    assert_eq!(entries.iter().map(|entry| entry.kind).collect::<Vec<_>>(), [Acquired, Released, Acquired, Released]);
    assert_eq!(entries[3].record.label.as_deref(), Some("still held"));
}

#[tokio::test]
async fn a_history_is_refused_on_an_engine_without_one() {
    let too_many = Locker::builder().history(distlock::MAX_HISTORY + 1).build(Memory::new()).unwrap_err();
    assert!(too_many.kind() == ErrorKind::Config && too_many.to_string().contains("history"), "{too_many}");
    let error = Locker::builder().history(1).build(Deaf(Memory::new())).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("history"), "{error}");
}

/// The memory engine without its optional capabilities.
struct Deaf(Memory);

impl Backend for Deaf {
    fn name(&self) -> &'static str {
        "deaf"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(Scope::Process)
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.0.claim(claim).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.0.renew(leases).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.0.release(claim).await
    }
}
