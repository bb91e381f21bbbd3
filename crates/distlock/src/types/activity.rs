//! Which futures of the library have work to do. It tells a test that moves a [`ManualClock`](crate::ManualClock) when
//! everything that is due is done.
//!
//! A tracked future has work to do from the moment at which its waker is called until its next poll has ended. Everything
//! that the library does by itself is done in a tracked future, and begins with a waker that another tracked future or the
//! clock calls. So when none has work to do, none will have any until the clock moves or a caller acts.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::types::sync::Mutex;

thread_local! {
    /// Whether a tracked future is being polled on this thread: what it polls is part of it.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The tracked futures of one manual clock.
#[derive(Debug, Default)]
pub(crate) struct Activity(Mutex<TrackedFutures>);

#[derive(Debug, Default)]
struct TrackedFutures {
    last: u64,
    /// How often any of them was polled.
    polls: u64,
    all: HashMap<u64, TrackedFuture>,
    /// Those that have work to do.
    busy: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct TrackedFuture {
    /// The waker of the task that polled it last.
    task: Option<Waker>,
    /// Whether its waker was called since its last poll began.
    is_woken: bool,
    /// Whether its task had work to do and did not poll it.
    is_aside: bool,
}

/// What the tracked futures have to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkLeft {
    /// None of them has work to do.
    Done,
    /// Only futures of the task that asks.
    InThisTask,
    /// At least one future of another task.
    Elsewhere,
}

impl Activity {
    /// Returns what there is to do, from the point of view of the task with this waker.
    pub(crate) fn work(&self, this_task: &Waker) -> WorkLeft {
        // A clone, like the wakers it is compared with: the first one of a task may differ from its clones.
        let this_task = this_task.clone();
        let futures = self.0.lock();
        let mut tasks = futures.busy.iter().map(|id| futures.all.get(id).and_then(|future| future.task.as_ref()));
        match tasks.all(|task| task.is_some_and(|task| task.will_wake(&this_task))) {
            _ if futures.busy.is_empty() => WorkLeft::Done,
            true => WorkLeft::InThisTask,
            false => WorkLeft::Elsewhere,
        }
    }

    /// Returns a number that grows with every poll of a tracked future.
    pub(crate) fn polls(&self) -> u64 {
        self.0.lock().polls
    }

    /// Disregards the futures that have work to do, each until it is polled again. Returns how many there are.
    pub(crate) fn set_aside(&self) -> usize {
        let mut futures = self.0.lock();
        let aside = std::mem::take(&mut futures.busy);
        for id in &aside {
            futures.all.entry(*id).or_default().is_aside = true;
        }
        aside.len()
    }

    fn begin_poll(&self, id: u64, task: &Waker) {
        let mut futures = self.0.lock();
        futures.busy.insert(id);
        futures.polls += 1;
        let future = futures.all.entry(id).or_default();
        (future.is_woken, future.is_aside) = (false, false);
        let before = if future.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            None
        } else {
            future.task.replace(task.clone())
        };
        drop(futures);
        // Dropping a waker may drop a task, and with it tracked futures.
        drop(before);
    }

    /// Ends a poll after which the future is pending.
    fn rest(&self, id: u64) {
        let mut futures = self.0.lock();
        if futures.all.get(&id).is_some_and(|future| !future.is_woken) {
            futures.busy.remove(&id);
        }
    }
}

/// The track of one future. Until its first poll, and again from each wake-up until the next poll has ended, the future has
/// work to do. `None` on clocks that are not manual: nothing is tracked then.
#[derive(Debug)]
pub(crate) struct Tracker(Option<Arc<Track>>);

#[derive(Debug)]
struct Track {
    activity: Arc<Activity>,
    id: u64,
}

impl Tracker {
    /// Begins to track a future that will be polled soon.
    pub(crate) fn begin(activity: Option<&Arc<Activity>>) -> Tracker {
        Tracker(activity.map(|activity| {
            let mut futures = activity.0.lock();
            futures.last += 1;
            let id = futures.last;
            futures.all.insert(id, TrackedFuture::default());
            futures.busy.insert(id);
            Arc::new(Track { activity: activity.clone(), id })
        }))
    }

    /// Begins to track a future that is being polled, unless it is part of a tracked one.
    pub(crate) fn begin_inside(activity: Option<&Arc<Activity>>) -> Tracker {
        Tracker::begin(activity.filter(|_| !IS_INSIDE.get()))
    }

    /// Runs `future`, tracked.
    pub(crate) async fn run<F: Future + ?Sized>(&self, mut future: Pin<&mut F>) -> F::Output {
        poll_fn(|context| match &self.0 {
            None => future.as_mut().poll(context),
            Some(track) => track.poll(future.as_mut(), context),
        })
        .await
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        if let Some(track) = &self.0 {
            let mut futures = track.activity.0.lock();
            futures.busy.remove(&track.id);
            let gone = futures.all.remove(&track.id);
            drop(futures);
            drop(gone);
        }
    }
}

impl Track {
    fn poll<F: Future + ?Sized>(self: &Arc<Self>, future: Pin<&mut F>, context: &Context<'_>) -> Poll<F::Output> {
        self.activity.begin_poll(self.id, context.waker());
        let waker = Waker::from(self.clone());
        let inside = Inside::enter();
        let polled = future.poll(&mut Context::from_waker(&waker));
        drop(inside);
        if polled.is_pending() {
            self.activity.rest(self.id);
        }
        polled
    }
}

/// The time in which a tracked future is polled, also if that panics.
struct Inside {
    before: bool,
}

impl Inside {
    fn enter() -> Inside {
        Inside { before: IS_INSIDE.replace(true) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(self.before);
    }
}

impl Wake for Track {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut futures = self.activity.0.lock();
        let Some(future) = futures.all.get_mut(&self.id) else { return };
        future.is_woken = true;
        let (task, is_aside) = (future.task.clone(), future.is_aside);
        if !is_aside {
            futures.busy.insert(self.id);
        }
        drop(futures);
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::sync::Notify;

    use super::*;

    /// A waker of no task.
    struct Nobody;

    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_future_has_work_to_do_until_its_first_poll_and_from_each_wake_up_to_the_next_poll() {
        let (activity, notify) = (Arc::new(Activity::default()), Notify::new());
        let (mine, other) = (Waker::noop(), Waker::from(Arc::new(Nobody)));
        let tracker = Tracker::begin(Some(&activity));
        assert_eq!(activity.work(mine), WorkLeft::Elsewhere, "its task is not known yet");
        let mut future = Box::pin(async {
            let twice = pin!(async {
                notify.notified().await;
                notify.notified().await;
            });
            tracker.run(twice).await;
            drop(tracker);
        });
        assert!(future.as_mut().poll(&mut Context::from_waker(mine)).is_pending());
        assert_eq!(activity.work(mine), WorkLeft::Done);

        notify.notify_one();
        assert_eq!((activity.work(mine), activity.work(&other)), (WorkLeft::InThisTask, WorkLeft::Elsewhere));
        assert!(future.as_mut().poll(&mut Context::from_waker(mine)).is_pending());
        assert_eq!(activity.work(&other), WorkLeft::Done);

        notify.notify_one();
        assert_eq!(activity.set_aside(), 1);
        assert_eq!(activity.work(&other), WorkLeft::Done, "disregarded");
        assert!(future.as_mut().poll(&mut Context::from_waker(mine)).is_ready());
        assert!(activity.0.lock().all.is_empty() && activity.0.lock().busy.is_empty(), "nothing of it is left");
    }

    #[test]
    fn a_future_that_wakes_itself_has_work_to_do() {
        let activity = Arc::new(Activity::default());
        let tracker = Tracker::begin(Some(&activity));
        let restless = pin!(poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        let future = pin!(tracker.run(restless));
        assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(activity.work(Waker::noop()), WorkLeft::InThisTask);
    }

    #[test]
    fn a_future_inside_of_a_tracked_one_is_part_of_it() {
        let activity = Arc::new(Activity::default());
        let tracker = Tracker::begin(Some(&activity));
        let outer = pin!(async { Tracker::begin_inside(Some(&activity)).0.is_some() });
        let future = pin!(tracker.run(outer));
        assert_eq!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(false));
        assert!(Tracker::begin_inside(Some(&activity)).0.is_some(), "outside, it is one of its own");
    }
}
