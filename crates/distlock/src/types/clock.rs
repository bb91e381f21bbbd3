//! The clock of leases, which continues while the machine is suspended: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC_RAW on
//! Apple's systems.
//!
//! This is the only file that reads clocks; `cargo xtask tidy` checks that.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use crate::types::activity::{Activity, Tracker};
use crate::types::manual_clock::{ManualClock, ManualTime};

/// The default drift between the rates of two clocks that deadlines allow for: one part in a thousand.
pub const DEFAULT_DRIFT: f64 = 0.001;

/// The reserve of a deadline for the granularity of the server's expiry.
const MARGIN: Duration = Duration::from_millis(2);

/// The longest sleep before the clock is read again: tokio's timers stop during a suspend, the clock does not.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// A point on a [`Clock`]'s time line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than any moment a clock will show.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// Returns the moment this many nanoseconds after the clock's zero; for [`Clock::system`] that is when the machine
    /// started.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Returns the nanoseconds since the clock's zero, to pass the moment to another process of this machine.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the moment `by` later; [`Moment::NEVER`] when that cannot be represented.
    #[must_use]
    pub fn after(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns a moment about `by` later, by up to a sixteenth of it earlier. Moments that are nearly the same become the same,
    /// so that what is due at them is done together.
    pub(crate) fn after_about(self, by: Duration) -> Moment {
        let step =
            u64::try_from(by.as_nanos()).map_or(0, |nanos| nanos.checked_ilog2().map_or(0, |bits| (1 << bits) / 16));
        self.after(by).down_to(Duration::from_nanos(step))
    }

    /// Returns the moment `by` earlier, at the earliest the clock's zero.
    #[must_use]
    pub fn before(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the last moment up to this one that is a whole number of `step`s after the clock's zero.
    pub(crate) fn down_to(self, step: Duration) -> Moment {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0 - self.0.checked_rem(step).unwrap_or(0))
    }

    /// Returns how long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Moment::NEVER { f.write_str("never") } else { write!(f, "boot+{:?}", Duration::from_nanos(self.0)) }
    }
}

/// Returns the local deadline of a lease of `ttl` whose request was written at `start` (rule 1): `start + ttl(1 −
/// drift) − 2 ms`.
pub(crate) fn deadline(start: Moment, ttl: Duration, drift: f64) -> Moment {
    start.after(part_of(ttl, 1.0 - drift)).before(MARGIN)
}

/// Returns `part` of `whole`, to the nearest nanosecond; at most about 584 years.
pub(crate) fn part_of(whole: Duration, part: f64) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    // A conversion of f64 to u64 saturates.
    Duration::from_nanos((nanos as f64 * part + 0.5) as u64)
}

/// A source of time.
///
/// # Default
/// [`Clock::system`]. [`Clock::manual`] is for tests that move time by hand.
#[derive(Clone)]
pub struct Clock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    System,
    Manual(Arc<ManualTime>),
    #[cfg(feature = "simulation")]
    Runtime(RuntimeTime),
}

/// The clock of a simulated machine.
#[cfg(feature = "simulation")]
#[derive(Clone, Copy)]
struct RuntimeTime {
    began: tokio::time::Instant,
    first: Moment,
    /// The rate of this clock against the runtime's.
    rate: f64,
}

impl Clock {
    /// Returns the machine's clock, which continues while the machine is suspended: CLOCK_BOOTTIME on Linux, and
    /// CLOCK_MONOTONIC_RAW on Apple's systems.
    #[must_use]
    pub fn system() -> Clock {
        Clock(ClockSource::System)
    }

    /// Returns a clock that stops until its [`ManualClock`] moves it.
    #[must_use]
    pub fn manual() -> (Clock, ManualClock) {
        // Not zero: arithmetic before the first advance would saturate and hide mistakes.
        let time = Arc::new(ManualTime::starting_at(Moment::from_nanos(1_000_000_000_000)));
        (Clock(ClockSource::Manual(time.clone())), ManualClock::of(time))
    }

    /// For simulations: returns a clock that shows `first` now and advances with the paused or advanced time of the
    /// tokio runtime it is made in, faster by `drift` (slower, if negative). Its wall shows the same, as a time since
    /// the Unix epoch. The keeper of a locker with such a clock is a task of the runtime in which the locker is made,
    /// where that time passes, and not a thread of its own.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn of_runtime(first: Moment, drift: f64) -> Clock {
        Clock(ClockSource::Runtime(RuntimeTime { began: tokio::time::Instant::now(), first, rate: 1.0 + drift }))
    }

    /// Returns whether time advances only inside the runtime that this clock was made in.
    #[cfg(feature = "simulation")]
    pub(crate) fn is_of_runtime(&self) -> bool {
        matches!(self.0, ClockSource::Runtime(_))
    }

    /// Returns whether a simulation or a race checker decides the order of tasks.
    pub(crate) fn is_in_order(&self) -> bool {
        #[cfg(feature = "simulation")]
        if self.is_of_runtime() {
            return true;
        }
        cfg!(shuttle)
    }

    /// Returns whether sleeping by this clock needs the timers of a tokio runtime.
    pub(crate) fn needs_runtime(&self) -> bool {
        !matches!(self.0, ClockSource::Manual(_))
    }

    /// Returns the current moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        match &self.0 {
            ClockSource::System => {
                let (seconds, nanos) = system_time();
                Moment(u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::try_from(nanos).unwrap_or(0))
            }
            ClockSource::Manual(time) => time.now(),
            #[cfg(feature = "simulation")]
            ClockSource::Runtime(time) => time.first.after(time.began.elapsed().mul_f64(time.rate)),
        }
    }

    /// Returns once `moment` has been reached.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn sleep_until(&self, moment: Moment) {
        match &self.0 {
            _ if moment == Moment::NEVER => std::future::pending().await,
            ClockSource::System => loop {
                let left = moment.since(self.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(LONGEST_NAP)).await;
            },
            ClockSource::Manual(time) => self.tracked(pin!(time.sleep_until(moment))).await,
            #[cfg(feature = "simulation")]
            ClockSource::Runtime(time) => {
                while self.now() < moment {
                    // Never zero, however short the rest is: a sleep of zero would not advance time.
                    let left = moment.since(self.now()).div_f64(time.rate).max(Duration::from_nanos(1));
                    tokio::time::sleep(left).await;
                }
            }
        }
    }

    /// Runs `future` for at most `limit`; `None` when it takes longer. The limit is real time, on a manual clock that
    /// clock's.
    pub(crate) async fn timeout<F: Future>(&self, limit: Duration, mut future: Pin<&mut F>) -> Option<F::Output> {
        if self.activity().is_none() {
            return tokio::time::timeout(limit, future).await.ok();
        }
        let mut over = pin!(self.sleep_until(self.now().after(limit)));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => over.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Runs a part of a caller's future, tracked if the clock is manual.
    pub(crate) async fn tracked<F: Future + ?Sized>(&self, future: Pin<&mut F>) -> F::Output {
        Tracker::begin_inside(self.activity()).run(future).await
    }

    /// Returns the tracker of a task that begins soon.
    pub(crate) fn tracker(&self) -> Tracker {
        Tracker::begin(self.activity())
    }

    /// Returns the activity that a manual clock tracks. A race checker needs none: it polls what it will, when it will.
    fn activity(&self) -> Option<&Arc<Activity>> {
        match &self.0 {
            ClockSource::Manual(time) if !cfg!(shuttle) => Some(&time.activity),
            _ => None,
        }
    }

    /// Returns the wall clock time, for records that people read; never for a decision.
    #[must_use]
    pub fn wall(&self) -> SystemTime {
        #[cfg(feature = "simulation")]
        if self.is_of_runtime() {
            return SystemTime::UNIX_EPOCH + Duration::from_nanos(self.now().as_nanos());
        }
        SystemTime::now()
    }
}

/// Returns the seconds and nanoseconds of the machine's clock.
#[cfg(target_os = "linux")]
fn system_time() -> (i64, i64) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (time.tv_sec, time.tv_nsec)
}

/// Returns the seconds and nanoseconds of the machine's clock: `mach_continuous_time`, which every version of these
/// systems has.
#[cfg(target_vendor = "apple")]
fn system_time() -> (i64, i64) {
    let clock = nix::time::ClockId::from_raw(nix::libc::CLOCK_MONOTONIC_RAW);
    clock.now().map_or((0, 0), |time| (time.tv_sec(), time.tv_nsec()))
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ClockSource::System => f.write_str("Clock::system"),
            ClockSource::Manual(_) => write!(f, "Clock::manual({:?})", self.now()),
            #[cfg(feature = "simulation")]
            ClockSource::Runtime(_) => write!(f, "Clock::of_runtime({:?})", self.now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_keeps_the_drift_and_two_milliseconds_in_reserve() {
        let start = Moment::from_nanos(5_000_000_000);
        let end = deadline(start, Duration::from_secs(10), DEFAULT_DRIFT);
        assert_eq!(end.since(start), Duration::from_millis(9_988));
    }

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        assert_eq!(Moment::from_nanos(7).after(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::from_nanos(7).before(Duration::MAX), Moment::from_nanos(0));
        assert_eq!(Moment::from_nanos(7).since(Moment::NEVER), Duration::ZERO);
        assert_eq!(Moment(1_007).down_to(Duration::from_nanos(10)), Moment(1_000));
        assert_eq!(Moment(7).down_to(Duration::ZERO), Moment(7));
    }

    #[test]
    fn moments_that_are_nearly_the_same_become_one() {
        let (now, second) = (Moment::from_nanos(1_000_000_000_007), Duration::from_secs(1));
        let looks: std::collections::BTreeSet<_> =
            (0..100).map(|ms| now.after_about(second + Duration::from_millis(ms))).collect();
        assert!(looks.len() <= 4, "{looks:?}");
        for by in [0, 1, 15, 16, 1_000, 1 << 30, u64::MAX].map(Duration::from_nanos) {
            let (about, exact) = (now.after_about(by), now.after(by));
            assert!(about <= exact && exact.since(about) <= by / 16, "{by:?}: {about:?}");
        }
        assert!(now.after_about(Duration::MAX) > now.after(second));
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_its_sleepers_only_when_the_moment_is_reached() {
        let (clock, hand) = Clock::manual();
        let start = clock.now();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move {
                clock.sleep_until(start.after(Duration::from_secs(2))).await;
                clock.now()
            }
        });
        hand.jump(Duration::from_secs(1));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        hand.jump(Duration::from_secs(1));
        assert_eq!(sleeper.await.unwrap().since(start), Duration::from_secs(2));
    }

    #[cfg(feature = "simulation")]
    #[tokio::test(start_paused = true)]
    async fn a_clock_of_the_runtime_goes_with_its_time_at_its_own_rate() {
        let first = Moment::from_nanos(7);
        let (exact, fast) = (Clock::of_runtime(first, 0.0), Clock::of_runtime(first, 0.25));
        fast.sleep_until(first.after(Duration::from_secs(10))).await;
        assert_eq!(exact.now().since(first), Duration::from_secs(8));
        assert_eq!(fast.now().since(first), Duration::from_secs(10));
        let wall = fast.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(wall, Duration::new(10, 7));
    }

    #[tokio::test]
    async fn the_system_clock_sleeps_at_least_as_long_as_asked() {
        let clock = Clock::system();
        let end = clock.now().after(Duration::from_millis(20));
        clock.sleep_until(end).await;
        assert!(clock.now() >= end);
    }
}
