//! Lists the engine for all browsers: at most once a second, and not at all while no browser is connected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use distlock::backend::LockInfo;
use distlock::{Error, ErrorKind, HistoryEntry, Key, Locker, Result, TickNote};
use serde::Serialize;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep_until, timeout};

use crate::audit::{Audit, Row};
use crate::failure::Failure;
use crate::frame::{self, ListingInfo};
use crate::heat::{Heat, Strips};
use crate::history::{self, HistoryEvent};
use crate::lock::{Hold, Lock, Who, now_ms};
use crate::locks::{List, Locks};
use crate::losses::{HistoryQueue, Loss, Losses, Lost};
use crate::ticks::{self, ShownTick};
use crate::timeline::{End, PastHold, Timeline};
use crate::viewers::{Frames, Viewers};
use crate::waits::Waits;

/// The least time from the start of one listing to the start of the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// The engine spends at most one part in this many of the time on listings, unless a listing takes longer than
/// [`ENGINE_TIMEOUT`].
const LOAD_DIVISOR: u32 = 10;
/// The longest pause after a failed listing: browsers should soon see that the engine is back.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How often browsers get an event when nothing changes: they treat a longer silence as a lost connection.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long to wait for an engine's answer.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many past holds of one lock are shown.
const MAX_PAST_HOLDS: usize = 60;
/// How many history entries are read for those holds: two for each hold, three if it was broken.
const MAX_ENTRIES: u32 = 180;
/// How many entries of each lock's history are searched for losses; below, the least time between two histories.
const RECENT_ENTRIES: u32 = 50;
const HISTORY_PACE: Duration = Duration::from_millis(50);

/// Lists the engine, and sends the changes to all connected browsers.
pub(crate) struct Watcher {
    locker: Locker,
    audit: Arc<Audit>,
    seen: Mutex<EngineState>,
    losses: std::sync::Mutex<Losses>,
    unread: HistoryQueue,
    viewers: Viewers,
    arrived: Notify,
    pub(crate) counts: Counts,
}

/// Counters for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) listings: AtomicU64,
    pub(crate) listing_us: AtomicU64,
    pub(crate) errors: AtomicU64,
}

/// The state after the last listing.
#[derive(Default)]
struct EngineState {
    locks: Locks,
    timeline: Timeline,
    heat: Heat,
    /// The last listing that succeeded.
    look: Option<ListingInfo>,
    /// Why the last listing failed, if it did.
    trouble: Option<Failure>,
    next: Option<Instant>,
    /// The losses counted by then.
    lost: Lost,
    /// The first event for a new browser, until something changes.
    snapshot: Option<Bytes>,
}

/// Totals over all locks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) is_up: bool,
    pub(crate) locks: usize,
    pub(crate) holds: usize,
    pub(crate) waiters: usize,
}

impl Watcher {
    pub(crate) fn new(locker: Locker, audit: Arc<Audit>) -> Watcher {
        let (seen, viewers) = (Mutex::default(), Viewers::default());
        let (losses, unread) = (std::sync::Mutex::default(), HistoryQueue::default());
        Watcher { locker, audit, seen, losses, unread, viewers, arrived: Notify::new(), counts: Counts::default() }
    }

    /// Lists the engine while a browser is connected. Never returns.
    pub(crate) async fn run(self: &Arc<Self>) {
        loop {
            while self.viewers.count() > 0 {
                let next = { self.current().await.next };
                self.wait_until(next.unwrap_or_else(Instant::now)).await;
            }
            self.arrived.notified().await;
        }
    }

    /// Waits until `until`, and sends the time to browsers meanwhile.
    async fn wait_until(&self, until: Instant) {
        while timeout(HEARTBEAT, sleep_until(until)).await.is_err() {
            self.viewers.send(&frame::time(now_ms()));
        }
    }

    /// Reads the histories of locks that may have been lost, one at a time with pauses. Never returns.
    pub(crate) async fn read_histories(&self) {
        loop {
            let key = self.unread.next().await;
            let began = Instant::now();
            let history = self.history(&key, RECENT_ENTRIES).await;
            let took = began.elapsed();
            let mut least = HISTORY_PACE;
            match history {
                Ok(history) => {
                    // Holds without an end do not count here.
                    let past = history::past_holds(&history, now_ms(), |_| true);
                    let mut losses = self.losses();
                    losses.missed.remove(&key);
                    past.iter().for_each(|past| losses.record(&key, past));
                }
                // Retries later and more slowly, to spare an engine in trouble.
                Err(error) if error.is_retryable() && self.unread.add([&key].into_iter()) == 0 => least = INTERVAL,
                Err(_) => self.losses().record_unread(key, now_ms()),
            }
            sleep_until(began + interval(least, took)).await;
        }
    }

    /// Adds a browser, which receives a snapshot and then every change; `None` when there are too many.
    pub(crate) async fn join(self: &Arc<Self>) -> Option<Frames> {
        let mut seen = self.current().await;
        let EngineState { look, trouble, locks, lost, snapshot, .. } = &mut *seen;
        let first = snapshot.get_or_insert_with(|| frame::snapshot(*look, trouble.as_ref(), locks, lost));
        // Still under the lock: no change can fall between the snapshot and the next event.
        let frames = self.viewers.join([first.clone(), frame::time(now_ms())])?;
        self.arrived.notify_one();
        Some(frames)
    }

    /// Returns the locks whose names start with `prefix`, as JSON.
    pub(crate) async fn list(self: &Arc<Self>, prefix: &str) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<L> {
            at_ms: u64,
            locks: L,
        }
        let seen = self.current().await;
        let at_ms = seen.at_ms()?;
        let locks = List(seen.locks.iter().filter(|lock| lock.key.as_str().starts_with(prefix)));
        Ok(encode(&Body { at_ms, locks }))
    }

    /// Returns one lock as JSON: its holders, its queue and its past holds.
    pub(crate) async fn detail(self: &Arc<Self>, key: &Key) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<'a> {
            at_ms: u64,
            name: &'a str,
            lock: Option<&'a Lock>,
            queue: Vec<Who<'a>>,
            past: Vec<PastHold>,
            /// Whether the lock has a history: then `past` is more than this console has seen.
            has_history: bool,
            /// The notes of its ticks, the newest first.
            ticks: Vec<ShownTick<'a>>,
            /// The history's entries, the newest first.
            events: Vec<HistoryEvent<'a>>,
        }
        let history = self.history(key, MAX_ENTRIES).await.unwrap_or_default();
        let notes = self.ticks(key).await.unwrap_or_default();
        let seen = self.current().await;
        let at_ms = seen.at_ms()?;
        let lock = seen.locks.get(key);
        let waiters = lock.map_or(&[][..], |lock| &lock.waiters);
        let queue = waiters.iter().map(|waiter| Who::from(&**waiter)).collect();
        let is_broken = |hold: &Hold| hold.token.is_some_and(|token| self.audit.has_broken(key, token));
        let mut past = seen.timeline.of(key, MAX_PAST_HOLDS, is_broken);
        let has_history = !history.is_empty();
        if has_history {
            let holds = lock.map_or(&[][..], |lock| &lock.holds);
            let is_held = |token| holds.iter().any(|hold| hold.token == Some(token));
            // By the clock, not by the listing's time: the history may be newer.
            past = history::merge(history::past_holds(&history, now_ms(), is_held), past);
            past.drain(..past.len().saturating_sub(MAX_PAST_HOLDS));
            past.iter_mut().filter(|past| is_broken(&past.hold)).for_each(|past| past.end = End::Broken);
        }
        let events = history.iter().rev().map(HistoryEvent::from).collect();
        Ok(encode(&Body {
            at_ms,
            name: key.as_str(),
            lock,
            queue,
            past,
            has_history,
            ticks: ticks::newest(&notes),
            events,
        }))
    }

    /// Returns the notes of a lock's ticks; empty where none are kept.
    async fn ticks(&self, key: &Key) -> Result<Vec<TickNote>> {
        if !self.locker.capabilities().ticks {
            return Ok(Vec::new());
        }
        with_timeout(self.locker.inspect().ticks(key)).await
    }

    /// Returns the history of a lock; empty where none is kept.
    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        if !self.locker.capabilities().history {
            return Ok(Vec::new());
        }
        with_timeout(self.locker.inspect().history(key, most)).await
    }

    /// Returns the recent wait times and the wait-for graph, as JSON.
    pub(crate) async fn waits(self: &Arc<Self>) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<'a> {
            at_ms: u64,
            heat: Strips<'a>,
            graph: Waits<'a>,
        }
        let seen = self.current().await;
        let at_ms = seen.at_ms()?;
        Ok(encode(&Body { at_ms, heat: seen.heat.worst(at_ms), graph: Waits::of(&seen.locks) }))
    }

    /// Returns the losses of the last 24 hours, as JSON.
    pub(crate) async fn lost(self: &Arc<Self>) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<'a> {
            at_ms: u64,
            #[serde(flatten)]
            lost: Lost,
            rows: Vec<Loss<'a>>,
        }
        let at_ms = { self.current().await.at_ms()? };
        let losses = self.losses();
        Ok(encode(&Body { at_ms, lost: losses.count(), rows: losses.rows() }))
    }

    pub(crate) async fn totals(self: &Arc<Self>) -> Totals {
        let seen = self.current().await;
        let mut totals = Totals { is_up: seen.trouble.is_none(), ..Totals::default() };
        for lock in seen.locks.iter() {
            totals.locks += 1;
            totals.holds += lock.holds.len();
            totals.waiters += lock.waiters.len();
        }
        totals
    }

    /// Records a break, and sends it to all browsers.
    pub(crate) fn broadcast(&self, row: &Row) {
        if let Some((key, past)) = row.broken_hold() {
            self.losses().record(key, &past);
        }
        self.viewers.send(&frame::audit(row));
    }

    pub(crate) fn viewers(&self) -> usize {
        self.viewers.count()
    }

    /// Ends all event streams, so that the server can stop.
    pub(crate) fn close_all(&self) {
        self.viewers.close_all();
    }

    /// Returns the state after a listing that is at most one interval old.
    async fn current(self: &Arc<Self>) -> tokio::sync::MutexGuard<'_, EngineState> {
        let seen = self.seen.lock().await;
        if seen.is_fresh() {
            return seen;
        }
        drop(seen);
        // In a task of its own: the listing runs to its end even when the request that started it is dropped.
        let watcher = self.clone();
        let _ = tokio::spawn(async move { watcher.refresh().await }).await;
        self.seen.lock().await
    }

    /// Lists the engine. The first caller does this for all callers that wait.
    async fn refresh(&self) {
        let mut seen = self.seen.lock().await;
        if seen.is_fresh() {
            return;
        }
        let began = Instant::now();
        // What remains if the listing panics: the next one is not at once, and old data is not shown as new.
        seen.next = Some(began + ENGINE_TIMEOUT + MAX_RETRY_PAUSE);
        seen.trouble = Some(Failure::from(&Error::new(ErrorKind::Backend, "the console failed to list it")));
        seen.snapshot = None;
        self.counts.listings.fetch_add(1, Ordering::Relaxed);
        let listing = with_timeout(self.locker.inspect().list("")).await;
        let took = began.elapsed();
        self.counts.listing_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let next = match &listing {
            Ok(_) => interval(INTERVAL, took),
            Err(_) => interval_after_failure(took),
        };
        let frame = match listing {
            Ok(listing) => {
                let look = ListingInfo {
                    look: seen.look.map_or(1, |look| look.look + 1),
                    at_ms: now_ms(),
                    took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                };
                self.apply(&mut seen, look, listing)
            }
            Err(error) => {
                self.counts.errors.fetch_add(1, Ordering::Relaxed);
                let failure = Failure::from(&error);
                let frame = frame::trouble(&failure, now_ms());
                seen.trouble = Some(failure);
                frame
            }
        };
        seen.next = Some(began + next);
        self.viewers.send(&frame);
    }

    /// Applies a successful listing. Returns the event with the changes.
    fn apply(&self, seen: &mut EngineState, look: ListingInfo, listing: Vec<LockInfo>) -> Bytes {
        let before_ms = seen.look.map(|earlier| earlier.at_ms);
        let mut losses = self.losses();
        let is_gap = losses.record_listing(before_ms, look.at_ms);
        let mut changes = seen.locks.replace(listing, look);
        if self.locker.capabilities().history {
            // After a gap, any lock may have been lost; otherwise only locks of which a hold has ended.
            let all = seen.locks.iter().filter(|_| is_gap).map(|lock| &lock.key);
            let unqueued = self.unread.add(changes.ended.iter().map(|(key, _)| key).chain(all));
            if unqueued > 0 {
                losses.record_unread_count(unqueued, look.at_ms);
            }
        }
        for (key, hold) in changes.ended.drain(..) {
            let past = seen.timeline.end(key.clone(), hold, before_ms.unwrap_or(look.at_ms), look.at_ms);
            losses.record(&key, &past);
        }
        seen.heat.record(&seen.locks, look.at_ms);
        (seen.look, seen.trouble, seen.lost) = (Some(look), None, losses.count());
        frame::changes(look, &changes, &seen.locks, &seen.lost)
    }

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for an answer of the engine, at most [`ENGINE_TIMEOUT`].
async fn with_timeout<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::unavailable(format!("no answer within {ENGINE_TIMEOUT:?}")));
    timeout(ENGINE_TIMEOUT, answer).await.unwrap_or_else(late)
}

/// Returns the least time from the start of a request that took `took` to the start of the next.
fn interval(least: Duration, took: Duration) -> Duration {
    // A longer time means that a disk or this process hung. It does not predict the next request.
    least.max(took + took.min(ENGINE_TIMEOUT) * (LOAD_DIVISOR - 1))
}

fn interval_after_failure(took: Duration) -> Duration {
    interval(INTERVAL, took).min(took + MAX_RETRY_PAUSE)
}

impl EngineState {
    fn is_fresh(&self) -> bool {
        self.next.is_some_and(|next| next > Instant::now())
    }

    /// Returns when the state was read, or the failure: old data is not returned as new.
    fn at_ms(&self) -> Result<u64, Failure> {
        match &self.trouble {
            Some(trouble) => Err(trouble.clone()),
            None => Ok(self.look.map_or(0, |look| look.at_ms)),
        }
    }
}

/// Serialization cannot fail: all keys are text.
fn encode(body: &impl Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::time::SystemTime;

    use distlock::backend::memory::Memory;
    use distlock::backend::{Backend, Capabilities, Claim, Claimed, Lease, Release, Renewal, Scope};
    use distlock::{FencingToken, HistoryKind, OwnerId, Process, Record};
    use futures_core::Stream;

    use super::*;

    /// Longer than reading a few histories takes, also when that fails.
    const LONG: Duration = Duration::from_secs(60);

    /// An engine that panics when it is listed. Reading a history fails with these errors in turn; after that it
    /// returns a loss.
    struct FailingEngine(std::sync::Mutex<VecDeque<ErrorKind>>);

    fn failing_engine(histories: impl IntoIterator<Item = ErrorKind>) -> FailingEngine {
        FailingEngine(std::sync::Mutex::new(histories.into_iter().collect()))
    }

    impl Backend for FailingEngine {
        fn name(&self) -> &'static str {
            "flawed"
        }

        fn capabilities(&self) -> Capabilities {
            let mut capabilities = Capabilities::new(Scope::Process);
            capabilities.history = true;
            capabilities
        }

        async fn claim(&self, _: &Claim) -> Result<Claimed> {
            Err(Error::unavailable("read-only"))
        }

        async fn renew(&self, _: &[Lease]) -> Vec<Result<Renewal>> {
            Vec::new()
        }

        async fn release(&self, _: &Claim) -> Result<Release> {
            Err(Error::unavailable("read-only"))
        }

        async fn list(&self, _: &str) -> Result<Vec<LockInfo>> {
            panic!("a panic of the engine");
        }

        async fn history(&self, _: &Key, _: u32) -> Result<Vec<HistoryEntry>> {
            if let Some(kind) = self.0.lock().unwrap().pop_front() {
                return Err(Error::new(kind, "not read"));
            }
            let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
            Ok(vec![HistoryEntry::new(now_ms(), HistoryKind::Lost, FencingToken::new(1), record)])
        }
    }

    fn watch(engine: impl Backend) -> Watcher {
        let locker = Locker::builder().build(engine).unwrap();
        Watcher::new(locker, Arc::new(Audit::open(None).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_panics_is_reported_and_followed_by_a_pause() {
        let watcher = Arc::new(watch(failing_engine([])));
        let listings = || watcher.counts.listings.load(Ordering::Relaxed);
        assert!(watcher.list("").await.is_err(), "nothing was seen");
        assert!(!watcher.totals().await.is_up);
        assert_eq!(listings(), 1, "not again at once");
        sleep_until(Instant::now() + ENGINE_TIMEOUT + MAX_RETRY_PAUSE).await;
        assert!(watcher.list("").await.is_err());
        assert_eq!(listings(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn reading_a_history_is_retried_after_a_failure() {
        let watcher = watch(failing_engine([ErrorKind::Unavailable; 3]));
        let keys = ["a", "b"].map(|name| Key::new(name).unwrap());
        watcher.unread.add(keys.iter());
        assert!(timeout(LONG, watcher.read_histories()).await.is_err(), "it never ends");
        let lost = watcher.losses().count();
        assert_eq!((lost.count, lost.unread), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn locks_with_unreadable_histories_are_counted() {
        let watcher = watch(failing_engine([ErrorKind::Auth; 3]));
        let read = async |name| {
            watcher.unread.add([&Key::new(name).unwrap()].into_iter());
            assert!(timeout(LONG, watcher.read_histories()).await.is_err(), "it never ends");
            let lost = watcher.losses().count();
            assert!(lost.since_ms > 0, "earlier losses are unknown");
            (lost.count, lost.unread)
        };
        assert_eq!((read("a").await, read("b").await, read("a").await), ((0, 1), (0, 2), (0, 2)), "each once");
        assert_eq!((read("c").await, read("a").await), ((1, 2), (2, 1)), "readable again");
    }

    #[tokio::test(start_paused = true)]
    async fn browsers_get_time_events_between_distant_listings() {
        let watcher = watch(Memory::new());
        let mut frames = watcher.viewers.join([]).unwrap();
        watcher.wait_until(Instant::now() + HEARTBEAT * 2 + HEARTBEAT / 2).await;
        watcher.viewers.close_all();
        let mut beats = 0;
        while let Some(Ok(frame)) = std::future::poll_fn(|context| Pin::new(&mut frames).poll_next(context)).await {
            assert!(frame.starts_with(b"event: time\n"));
            beats += 1;
        }
        assert_eq!(beats, 2);
    }

    #[test]
    fn listings_take_at_most_a_tenth_of_the_time_up_to_the_timeout() {
        for took_ms in [0, 1, 99, 100, 101, 400, 600, 2_000, 5_000, 10_000] {
            let took = Duration::from_millis(took_ms);
            let interval = interval(INTERVAL, took);
            assert!(interval >= INTERVAL && took * 10 <= interval, "{took:?} of {interval:?}");
        }
    }

    #[test]
    fn the_pause_after_a_hung_listing_is_bounded() {
        let pause = |took_s| interval(INTERVAL, Duration::from_secs(took_s)).as_secs().checked_sub(took_s);
        assert_eq!([9, 10, 11, 20 * 60].map(pause), [81, 90, 90, 90].map(Some));
    }

    #[test]
    fn a_failed_listing_is_retried_soon_but_not_at_once() {
        let after = |took_ms| interval_after_failure(Duration::from_millis(took_ms)).as_millis();
        assert_eq!([0, 300, 10_000].map(after), [1_000, 3_000, 15_000]);
    }
}
