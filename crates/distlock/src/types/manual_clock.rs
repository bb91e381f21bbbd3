//! A clock that a test moves.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::types::activity::{Activity, WorkLeft};
use crate::types::clock::{Clock, Moment};
use crate::types::sync::{Mutex, thread};

/// How often in a row there must be nothing to do. Between two looks the runtime polls other tasks, so that a task that was
/// spawned just before has begun.
const QUIET_LOOKS: u32 = 2;
/// How often the task that settles is polled while only its own futures have work to do. A future that it does not poll by
/// then is one that it has set aside.
const OWN_LOOKS: u32 = 4;
/// How long, in real time and since the last poll of any of them, to wait for futures that are not polled.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time of a manual clock, and its sleepers.
#[derive(Debug)]
pub(crate) struct ManualTime {
    timeline: Mutex<Timeline>,
    pub(crate) activity: Arc<Activity>,
}

#[derive(Debug)]
struct Timeline {
    now: Moment,
    last_sleeper: u64,
    sleepers: BTreeMap<(Moment, u64), Waker>,
}

impl ManualTime {
    pub(crate) fn starting_at(now: Moment) -> ManualTime {
        let timeline = Timeline { now, last_sleeper: 0, sleepers: BTreeMap::new() };
        ManualTime { timeline: Mutex::new(timeline), activity: Arc::default() }
    }

    pub(crate) fn now(&self) -> Moment {
        self.timeline.lock().now
    }

    /// Returns a future that is ready when `moment` is reached.
    pub(crate) fn sleep_until(&self, moment: Moment) -> ManualSleep<'_> {
        ManualSleep { time: self, moment, number: None }
    }

    /// Moves to `moment`, unless it has passed, and wakes the sleepers that are due.
    fn move_to(&self, moment: Moment) {
        let mut timeline = self.timeline.lock();
        let now = timeline.now.max(moment);
        timeline.now = now;
        let later = timeline.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut timeline.sleepers, later);
        drop(timeline);
        due.into_values().for_each(Waker::wake);
    }

    /// Returns the first moment after now at which a sleeper is due.
    fn next_sleeper(&self) -> Option<Moment> {
        self.timeline.lock().sleepers.first_key_value().map(|((moment, _), _)| *moment)
    }
}

/// A sleep on a manual clock. Dropping it has no effect.
pub(crate) struct ManualSleep<'a> {
    time: &'a ManualTime,
    moment: Moment,
    /// Its number among the sleepers, once it was polled.
    number: Option<u64>,
}

impl Future for ManualSleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let time = self.time;
        let mut timeline = time.timeline.lock();
        if timeline.now >= self.moment {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            timeline.last_sleeper += 1;
            timeline.last_sleeper
        });
        let before = timeline.sleepers.insert((self.moment, number), context.waker().clone());
        drop(timeline);
        drop(before);
        Poll::Pending
    }
}

impl Drop for ManualSleep<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let gone = self.time.timeline.lock().sleepers.remove(&(self.moment, number));
            drop(gone);
        }
    }
}

/// The control of a manual [`Clock`].
///
/// ```
/// use std::time::Duration;
/// use distlock::{Locker, backend::memory::{Memory, Store}};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let (store, clock) = Store::manual();
/// let locker = Locker::new(Memory::on(&store))?;
/// let kept = locker.lock("kept").ttl(Duration::from_secs(10)).await?;
/// let left = locker.lock("left").ttl(Duration::from_secs(10)).watchdog(false).await?;
///
/// clock.advance(Duration::from_secs(3600)).await;
/// assert!(!kept.is_lost() && left.is_lost());
///
/// // The process is suspended for longer than a lease: no renewal is sent.
/// clock.jump(Duration::from_secs(20));
/// assert!(kept.is_lost());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<ManualTime>);

impl ManualClock {
    pub(crate) fn of(time: Arc<ManualTime>) -> ManualClock {
        ManualClock(time)
    }

    /// Lets time pass, and returns when everything that is due by then is done.
    ///
    /// The clock stops at each moment at which something is due and goes on when that is done: leases are renewed, losses
    /// are told, waiters are granted their locks or time out, observers have received their events. It is
    /// [settled](ManualClock::settle) before the first step and after each.
    ///
    /// # Cancel safety
    /// If the future is dropped, the clock stays where it is.
    pub async fn advance(&self, by: Duration) {
        let end = self.0.now().after(by);
        self.settle().await;
        while let Some(next) = self.0.next_sleeper().filter(|next| *next < end) {
            self.0.move_to(next);
            self.settle().await;
        }
        self.0.move_to(end);
        self.settle().await;
    }

    /// Sets the clock forward at once, as after a suspend of the machine: nothing happens between before and after.
    pub fn jump(&self, by: Duration) {
        self.0.move_to(self.0.now().after(by));
    }

    /// Returns when everything that is due at this moment is done: every future of the lockers with this clock waits for
    /// the clock, for a caller or for an engine that does not reply.
    ///
    /// The memory engine replies at once. A reply of another engine that is on its way is not waited for.
    ///
    /// Futures of callers count from their first poll. On tokio's `current_thread` runtime, which is that of
    /// `#[tokio::test]`, that includes those of tasks that were spawned before.
    ///
    /// A future that its task does not poll, for example because it was polled once and set aside, is not waited for: if
    /// its waker is that of the task that settles, not at all; otherwise for 5 s of real time, with a warning.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn settle(&self) {
        let activity = &self.0.activity;
        let real = Clock::system();
        let (mut polls, mut since) = (activity.polls(), real.now());
        let (mut quiet, mut own) = (0, 0);
        // Polled again and again instead of woken: it needs no timers, and the runtime, which is never idle meanwhile,
        // does not advance tokio's paused time.
        poll_fn(|context| {
            match activity.work(context.waker()) {
                WorkLeft::Done => quiet += 1,
                WorkLeft::InThisTask if own == OWN_LOOKS => drop(activity.set_aside()),
                WorkLeft::InThisTask => (quiet, own) = (0, own + 1),
                WorkLeft::Elsewhere if polls != activity.polls() => {
                    (quiet, own, polls, since) = (0, 0, activity.polls(), real.now());
                }
                WorkLeft::Elsewhere if real.now() >= since.after(PATIENCE) => {
                    let futures = activity.set_aside();
                    tracing::warn!(target: "distlock", { futures }, "futures with work to do are not polled");
                }
                WorkLeft::Elsewhere => {
                    (quiet, own) = (0, 0);
                    thread::yield_now();
                }
            }
            if quiet == QUIET_LOOKS {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.0.now()).finish()
    }
}
