//! The wire between a locker and its engine: it counts calls and can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use distlock::backend::{
    Attachment, Backend, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, LockTicks, Release, Renewal,
    TickNotes, Wake,
};
use distlock::{AttemptId, Error, FencingToken, HistoryEntry, Key, Moment, Result, Tick, TickNote};
use tokio::sync::watch;

/// The number of calls to an engine.
#[derive(Debug, Default)]
pub struct Calls {
    /// Claims.
    pub claims: AtomicU64,
    /// Waits that ended with a wake-up.
    pub wakes: AtomicU64,
    /// Renewal calls, regardless of how many leases each carried.
    pub renewals: AtomicU64,
    /// Releases and withdrawals.
    pub releases: AtomicU64,
    /// Reads and writes of notes of ticks.
    pub notes: AtomicU64,
    /// Claims with the result busy.
    busy: watch::Sender<u64>,
    cut: AtomicBool,
    late: AtomicBool,
}

impl Calls {
    /// From now on the engine is unreachable for this client, as after a crash or a network cut.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// From now on requests are sent one poll late, and replies arrive one poll late. So a future dropped in between
    /// has either not sent its request yet, or has succeeded without the caller knowing.
    pub fn delay(&self) {
        self.late.store(true, Ordering::SeqCst);
    }

    /// Returns the number of claims with the result busy.
    #[must_use]
    pub fn busy_so_far(&self) -> u64 {
        *self.busy.borrow()
    }

    /// Returns when `claims` claims were busy: those that queue have their place then.
    pub async fn queued(&self, claims: u64) {
        self.busy.subscribe().wait_for(|busy| *busy >= claims).await.expect("the meter is alive");
    }

    /// Returns the number of all calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        [&self.claims, &self.renewals, &self.releases, &self.notes]
            .iter()
            .map(|calls| calls.load(Ordering::SeqCst))
            .sum()
    }

    async fn arrive<T>(&self, answer: impl Future<Output = T>) -> T {
        if !self.late.load(Ordering::SeqCst) {
            return answer.await;
        }
        tokio::task::yield_now().await;
        let answer = answer.await;
        tokio::task::yield_now().await;
        answer
    }

    fn pass(&self, counter: &AtomicU64) -> Result<()> {
        counter.fetch_add(1, Ordering::SeqCst);
        if self.cut.load(Ordering::SeqCst) { Err(Error::unavailable("the wire was cut by the test")) } else { Ok(()) }
    }
}

/// An engine behind the counters.
pub struct Wire<B> {
    engine: B,
    calls: Arc<Calls>,
}

impl<B> Wire<B> {
    /// Puts `calls` between a locker and `engine`.
    pub fn new(engine: B, calls: Arc<Calls>) -> Self {
        Wire { engine, calls }
    }
}

impl<B: Backend> Backend for Wire<B> {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn needs_runtime(&self) -> bool {
        self.engine.needs_runtime()
    }

    fn shard(&self, key: &Key) -> u64 {
        self.engine.shard(key)
    }

    fn attach(&self, attachment: Attachment) {
        self.engine.attach(attachment);
    }

    async fn ready(&self) -> Result<()> {
        self.engine.ready().await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.calls.pass(&self.calls.claims)?;
        let answer = self.calls.arrive(self.engine.claim(claim)).await;
        if matches!(answer, Ok(Claimed::Busy(_))) {
            self.calls.busy.send_modify(|busy| *busy += 1);
        }
        answer
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.calls.pass(&self.calls.claims)?;
        self.calls.arrive(self.engine.claim_all(claims)).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        let wake = self.calls.arrive(self.engine.wait(claim)).await;
        match self.calls.pass(&self.calls.wakes) {
            Ok(()) => wake,
            Err(_) => std::future::pending().await,
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        match self.calls.pass(&self.calls.renewals) {
            Ok(()) => self.engine.renew(leases).await,
            Err(_) => leases.iter().map(|_| Err(Error::unavailable("the wire was cut by the test"))).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.calls.pass(&self.calls.releases)?;
        self.calls.arrive(self.engine.release(claim)).await
    }

    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        self.engine.late_until(claim)
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        self.calls.pass(&self.calls.renewals)?;
        self.calls.arrive(self.engine.amend(lease)).await
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        self.calls.pass(&self.calls.claims)?;
        self.calls.arrive(self.engine.adopt(from, token, claim)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.engine.list(prefix).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.engine.get(key).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, reason: &str) -> Result<()> {
        self.calls.arrive(self.engine.force_release(key, token, reason)).await
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        self.engine.write_history(entries, most).await
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        self.engine.history(key, most).await
    }

    async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        self.calls.pass(&self.calls.notes)?;
        self.calls.arrive(self.engine.ticks(key, tick)).await
    }

    async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        self.calls.pass(&self.calls.notes)?;
        self.calls.arrive(self.engine.note_tick(claim, note)).await
    }

    async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        self.engine.list_ticks(prefix).await
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}
