//! The only one who lists the engine: at most once a second, and not at all when nobody looks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use distlock::backend::LockInfo;
use distlock::{Error, ErrorKind, HistoryEntry, Key, Locker, Result};
use serde::Serialize;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep_until, timeout};

use crate::audit::{Audit, Row};
use crate::chronicle::{self, Event};
use crate::failure::Failure;
use crate::frame::{self, Look};
use crate::heat::{Heat, Strips};
use crate::lock::{Hold, Lock, Who, now_ms};
use crate::locks::{List, Locks};
use crate::losses::{Loss, Losses, Lost, Unread};
use crate::timeline::{End, PastHold, Timeline};
use crate::viewers::{Frames, Viewers};
use crate::waits::Waits;

/// From the beginning of one listing to that of the next, at least.
const INTERVAL: Duration = Duration::from_secs(1);
/// An engine may be busy with us for one part in so many of the time, unless it takes longer than our patience.
const REST: u32 = 10;
/// The longest pause after a listing that failed: whoever looks then wants to see when the engine is back.
const AGAIN: Duration = Duration::from_secs(5);
/// How often browsers hear from us when there is nothing new: they take longer silence for the end.
const BEAT: Duration = Duration::from_secs(5);
/// An engine that takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many past holds of one lock are shown.
const MOST_PAST: usize = 60;
/// How many entries of a lock's history that takes: two for each hold, three if it was broken.
const MOST_ENTRIES: u32 = 180;
/// Of how many entries losses are looked for, in each lock's history; and from one history to the next, at least.
const RECENT_ENTRIES: u32 = 50;
const HISTORY_PACE: Duration = Duration::from_millis(50);

/// Looks at the engine, and tells everybody who looks at us.
pub(crate) struct Watcher {
    locker: Locker,
    audit: Arc<Audit>,
    seen: Mutex<Seen>,
    losses: std::sync::Mutex<Losses>,
    unread: Unread,
    viewers: Viewers,
    arrived: Notify,
    pub(crate) counts: Counts,
}

/// How often, how long, how badly.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) listings: AtomicU64,
    pub(crate) listing_us: AtomicU64,
    pub(crate) errors: AtomicU64,
}

/// What the looks have shown so far.
#[derive(Default)]
struct Seen {
    locks: Locks,
    timeline: Timeline,
    heat: Heat,
    /// The last look that worked.
    look: Option<Look>,
    /// Why the last one did not, if it did not.
    trouble: Option<Failure>,
    next: Option<Instant>,
    /// What was lost, by then.
    lost: Lost,
    /// What a newcomer is sent, until something changes.
    snapshot: Option<Bytes>,
}

/// What is known of all locks together.
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
        let (losses, unread) = (std::sync::Mutex::default(), Unread::default());
        Watcher { locker, audit, seen, losses, unread, viewers, arrived: Notify::new(), counts: Counts::default() }
    }

    /// Looks for as long as somebody looks at us; forever.
    pub(crate) async fn run(self: &Arc<Self>) {
        loop {
            while self.viewers.count() > 0 {
                let next = { self.look().await.next };
                self.rest(next.unwrap_or_else(Instant::now)).await;
            }
            self.arrived.notified().await;
        }
    }

    /// Waits, and lets browsers know meanwhile that we are there.
    async fn rest(&self, until: Instant) {
        while timeout(BEAT, sleep_until(until)).await.is_err() {
            self.viewers.send(&frame::time(now_ms()));
        }
    }

    /// Reads the histories of locks that may have been lost, one after the other and slowly; forever.
    pub(crate) async fn read_histories(&self) {
        loop {
            let key = self.unread.next().await;
            let began = Instant::now();
            let history = self.history(&key, RECENT_ENTRIES).await;
            let took = began.elapsed();
            let mut least = HISTORY_PACE;
            match history {
                Ok(history) => {
                    // What has no end yet is of no interest here.
                    let past = chronicle::past_holds(&history, now_ms(), |_| true);
                    let mut losses = self.losses();
                    losses.missed.remove(&key);
                    past.iter().for_each(|past| losses.learn(&key, past));
                }
                // Later, and slowly: an engine in trouble needs no more of it.
                Err(error) if error.is_retryable() && self.unread.add([&key].into_iter()) == 0 => least = INTERVAL,
                Err(_) => self.losses().miss(key, now_ms()),
            }
            sleep_until(began + interval(least, took)).await;
        }
    }

    /// A newcomer, who is sent everything and then what changes.
    pub(crate) async fn join(self: &Arc<Self>) -> Option<Frames> {
        let mut seen = self.look().await;
        let Seen { look, trouble, locks, lost, snapshot, .. } = &mut *seen;
        let first = snapshot.get_or_insert_with(|| frame::snapshot(*look, trouble.as_ref(), locks, lost));
        // Still under the lock: nothing can change between what it is sent first and what it is sent next.
        let frames = self.viewers.join([first.clone(), frame::time(now_ms())])?;
        self.arrived.notify_one();
        Some(frames)
    }

    /// The locks whose names begin with `prefix`.
    pub(crate) async fn list(self: &Arc<Self>, prefix: &str) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<L> {
            at_ms: u64,
            locks: L,
        }
        let seen = self.look().await;
        let at_ms = seen.at_ms()?;
        let locks = List(seen.locks.iter().filter(|lock| lock.key.as_str().starts_with(prefix)));
        Ok(encode(&Body { at_ms, locks }))
    }

    /// One lock: its holders, its queue, and who held it before.
    pub(crate) async fn detail(self: &Arc<Self>, key: &Key) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<'a> {
            at_ms: u64,
            name: &'a str,
            lock: Option<&'a Lock>,
            queue: Vec<Who<'a>>,
            past: Vec<PastHold>,
            /// Whether the lock has a history: then `past` is not only what this console has seen.
            has_history: bool,
            /// What that says, the newest first.
            events: Vec<Event<'a>>,
        }
        let history = self.history(key, MOST_ENTRIES).await.unwrap_or_default();
        let seen = self.look().await;
        let at_ms = seen.at_ms()?;
        let lock = seen.locks.get(key);
        let waiters = lock.map_or(&[][..], |lock| &lock.waiters);
        let queue = waiters.iter().map(|waiter| Who::from(&**waiter)).collect();
        let is_broken = |hold: &Hold| hold.token.is_some_and(|token| self.audit.has_broken(key, token));
        let mut past = seen.timeline.of(key, MOST_PAST, is_broken);
        let has_history = !history.is_empty();
        if has_history {
            let holds = lock.map_or(&[][..], |lock| &lock.holds);
            let is_held = |token| holds.iter().any(|hold| hold.token == Some(token));
            // By the clock, and not by the look: the history may be younger.
            past = chronicle::merge(chronicle::past_holds(&history, now_ms(), is_held), past);
            past.drain(..past.len().saturating_sub(MOST_PAST));
            past.iter_mut().filter(|past| is_broken(&past.hold)).for_each(|past| past.end = End::Broken);
        }
        let events = history.iter().rev().map(Event::from).collect();
        Ok(encode(&Body { at_ms, name: key.as_str(), lock, queue, past, has_history, events }))
    }

    /// What is written down about a lock; nothing where nobody writes.
    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        if !self.locker.capabilities().history {
            return Ok(Vec::new());
        }
        in_time(self.locker.inspect().history(key, most)).await
    }

    /// How long locks were waited for, and who waits for whom.
    pub(crate) async fn waits(self: &Arc<Self>) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<'a> {
            at_ms: u64,
            heat: Strips<'a>,
            graph: Waits<'a>,
        }
        let seen = self.look().await;
        let at_ms = seen.at_ms()?;
        Ok(encode(&Body { at_ms, heat: seen.heat.worst(at_ms), graph: Waits::of(&seen.locks) }))
    }

    /// What was lost in the last 24 hours.
    pub(crate) async fn lost(self: &Arc<Self>) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Body<'a> {
            at_ms: u64,
            #[serde(flatten)]
            lost: Lost,
            rows: Vec<Loss<'a>>,
        }
        let at_ms = { self.look().await.at_ms()? };
        let losses = self.losses();
        Ok(encode(&Body { at_ms, lost: losses.count(), rows: losses.rows() }))
    }

    pub(crate) async fn totals(self: &Arc<Self>) -> Totals {
        let seen = self.look().await;
        let mut totals = Totals { is_up: seen.trouble.is_none(), ..Totals::default() };
        for lock in seen.locks.iter() {
            totals.locks += 1;
            totals.holds += lock.holds.len();
            totals.waiters += lock.waiters.len();
        }
        totals
    }

    /// Tells everybody what was done.
    pub(crate) fn tell(&self, row: &Row) {
        if let Some((key, past)) = row.broken_hold() {
            self.losses().learn(key, &past);
        }
        self.viewers.send(&frame::audit(row));
    }

    pub(crate) fn viewers(&self) -> usize {
        self.viewers.count()
    }

    /// Ends all streams, so that the server can end.
    pub(crate) fn dismiss(&self) {
        self.viewers.dismiss();
    }

    /// What is there, by a look that is at most as old as the interval.
    async fn look(self: &Arc<Self>) -> tokio::sync::MutexGuard<'_, Seen> {
        let seen = self.seen.lock().await;
        if seen.is_fresh() {
            return seen;
        }
        drop(seen);
        // On its own: the engine is busy with what was asked also when the one who wanted it has gone away.
        let watcher = self.clone();
        let _ = tokio::spawn(async move { watcher.look_anew().await }).await;
        self.seen.lock().await
    }

    /// Whoever comes first looks, for all who wait behind it.
    async fn look_anew(&self) {
        let mut seen = self.seen.lock().await;
        if seen.is_fresh() {
            return;
        }
        let began = Instant::now();
        // This is what remains of a look that panics: the next one is not at once, and nothing is shown as if it were new.
        seen.next = Some(began + PATIENCE + AGAIN);
        seen.trouble = Some(Failure::from(&Error::new(ErrorKind::Backend, "the console failed to look at it")));
        seen.snapshot = None;
        self.counts.listings.fetch_add(1, Ordering::Relaxed);
        let listing = in_time(self.locker.inspect().list("")).await;
        let took = began.elapsed();
        self.counts.listing_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let next = match &listing {
            Ok(_) => interval(INTERVAL, took),
            Err(_) => interval_after_failure(took),
        };
        let frame = match listing {
            Ok(listing) => {
                let look = Look {
                    look: seen.look.map_or(1, |look| look.look + 1),
                    at_ms: now_ms(),
                    took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                };
                self.take_in(&mut seen, look, listing)
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

    /// What browsers are sent of a look that worked.
    fn take_in(&self, seen: &mut Seen, look: Look, listing: Vec<LockInfo>) -> Bytes {
        let before_ms = seen.look.map(|earlier| earlier.at_ms);
        let mut losses = self.losses();
        let is_gap = losses.look(before_ms, look.at_ms);
        let mut changes = seen.locks.replace(listing, look);
        if self.locker.capabilities().history {
            // After a gap anything may have happened to any lock; otherwise only to those that somebody lost hold of.
            let all = seen.locks.iter().filter(|_| is_gap).map(|lock| &lock.key);
            let left_out = self.unread.add(changes.ended.iter().map(|(key, _)| key).chain(all));
            if left_out > 0 {
                losses.leave_out(left_out, look.at_ms);
            }
        }
        for (key, hold) in changes.ended.drain(..) {
            let past = seen.timeline.end(key.clone(), hold, before_ms.unwrap_or(look.at_ms), look.at_ms);
            losses.learn(&key, &past);
        }
        seen.heat.see(&seen.locks, look.at_ms);
        (seen.look, seen.trouble, seen.lost) = (Some(look), None, losses.count());
        frame::changes(look, &changes, &seen.locks, &seen.lost)
    }

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an engine answers for as long as our patience lasts.
async fn in_time<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::unavailable(format!("no answer within {PATIENCE:?}")));
    timeout(PATIENCE, answer).await.unwrap_or_else(late)
}

/// From the beginning of a question that took so long to that of the next one.
fn interval(least: Duration, took: Duration) -> Duration {
    // What took longer has hung: a disk, or we ourselves. That says nothing of how long the next one takes.
    least.max(took + took.min(PATIENCE) * (REST - 1))
}

fn interval_after_failure(took: Duration) -> Duration {
    interval(INTERVAL, took).min(took + AGAIN)
}

impl Seen {
    fn is_fresh(&self) -> bool {
        self.next.is_some_and(|next| next > Instant::now())
    }

    /// When it was seen; old news are not handed out as new.
    fn at_ms(&self) -> Result<u64, Failure> {
        match &self.trouble {
            Some(trouble) => Err(trouble.clone()),
            None => Ok(self.look.map_or(0, |look| look.at_ms)),
        }
    }
}

/// Here nothing can fail to be JSON: all keys are text.
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

    /// An engine that panics when it is listed. Reading a history fails in these ways, one after the other; after that it tells
    /// of a loss.
    struct Flawed(std::sync::Mutex<VecDeque<ErrorKind>>);

    fn flawed(histories: impl IntoIterator<Item = ErrorKind>) -> Flawed {
        Flawed(std::sync::Mutex::new(histories.into_iter().collect()))
    }

    impl Backend for Flawed {
        fn name(&self) -> &'static str {
            "flawed"
        }

        fn capabilities(&self) -> Capabilities {
            let mut capabilities = Capabilities::new(Scope::Process);
            capabilities.history = true;
            capabilities
        }

        async fn claim(&self, _: &Claim) -> Result<Claimed> {
            Err(Error::unavailable("it only shows"))
        }

        async fn renew(&self, _: &[Lease]) -> Vec<Result<Renewal>> {
            Vec::new()
        }

        async fn release(&self, _: &Claim) -> Result<Release> {
            Err(Error::unavailable("it only shows"))
        }

        async fn list(&self, _: &str) -> Result<Vec<LockInfo>> {
            panic!("nobody thought of this");
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
    async fn a_look_that_panics_is_told_and_followed_by_a_pause() {
        let watcher = Arc::new(watch(flawed([])));
        let listings = || watcher.counts.listings.load(Ordering::Relaxed);
        assert!(watcher.list("").await.is_err(), "nothing was seen");
        assert!(!watcher.totals().await.is_up);
        assert_eq!(listings(), 1, "not again at once");
        sleep_until(Instant::now() + PATIENCE + AGAIN).await;
        assert!(watcher.list("").await.is_err());
        assert_eq!(listings(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_history_that_could_not_be_read_is_read_later() {
        let watcher = watch(flawed([ErrorKind::Unavailable; 3]));
        let keys = ["a", "b"].map(|name| Key::new(name).unwrap());
        watcher.unread.add(keys.iter());
        assert!(timeout(LONG, watcher.read_histories()).await.is_err(), "it never ends");
        let lost = watcher.losses().count();
        assert_eq!((lost.count, lost.unread), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn of_how_many_locks_the_history_cannot_be_read_is_told() {
        let watcher = watch(flawed([ErrorKind::Auth; 3]));
        let read = async |name| {
            watcher.unread.add([&Key::new(name).unwrap()].into_iter());
            assert!(timeout(LONG, watcher.read_histories()).await.is_err(), "it never ends");
            let lost = watcher.losses().count();
            assert!(lost.since_ms > 0, "what was before is not known");
            (lost.count, lost.unread)
        };
        assert_eq!((read("a").await, read("b").await, read("a").await), ((0, 1), (0, 2), (0, 2)), "each once");
        assert_eq!((read("c").await, read("a").await), ((1, 2), (2, 1)), "it can be read by now");
    }

    #[tokio::test(start_paused = true)]
    async fn browsers_hear_from_us_also_between_looks_that_are_far_apart() {
        let watcher = watch(Memory::new());
        let mut frames = watcher.viewers.join([]).unwrap();
        watcher.rest(Instant::now() + BEAT * 2 + BEAT / 2).await;
        watcher.viewers.dismiss();
        let mut beats = 0;
        while let Some(Ok(frame)) = std::future::poll_fn(|context| Pin::new(&mut frames).poll_next(context)).await {
            assert!(frame.starts_with(b"event: time\n"));
            beats += 1;
        }
        assert_eq!(beats, 2);
    }

    #[test]
    fn an_engine_is_busy_with_us_for_a_tenth_of_the_time_for_as_long_as_our_patience_lasts() {
        for took_ms in [0, 1, 99, 100, 101, 400, 600, 2_000, 5_000, 10_000] {
            let took = Duration::from_millis(took_ms);
            let interval = interval(INTERVAL, took);
            assert!(interval >= INTERVAL && took * 10 <= interval, "{took:?} of {interval:?}");
        }
    }

    #[test]
    fn however_long_a_listing_hung_the_pause_after_it_is_that_of_the_slowest_engine() {
        let pause = |took_s| interval(INTERVAL, Duration::from_secs(took_s)).as_secs().checked_sub(took_s);
        assert_eq!([9, 10, 11, 20 * 60].map(pause), [81, 90, 90, 90].map(Some));
    }

    #[test]
    fn an_engine_that_fails_is_asked_again_soon_but_not_at_once() {
        let after = |took_ms| interval_after_failure(Duration::from_millis(took_ms)).as_millis();
        assert_eq!([0, 300, 10_000].map(after), [1_000, 3_000, 15_000]);
    }
}
