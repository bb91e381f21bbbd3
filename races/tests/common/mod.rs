//! Shared by the races: schedules, a family of lockers on a manual clock, and a ward that checks mutual exclusion.

use std::collections::HashMap;
use std::time::Duration;

use distlock_races::backend::memory::{Memory, Store};
use distlock_races::{Clock, ErrorKind, Event, EventKind, FencingToken, LockGuard, Locker, ManualClock, OwnerId};
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config, MaxSteps, Runner};

pub(crate) const TTL: Duration = Duration::from_secs(8);
/// The number of schedules of each kind, unless `DISTLOCK_SCHEDULES` is set.
const SCHEDULES: usize = 300;
/// The number of preemptions in schedules that search for them.
const DEPTH: usize = 3;
/// A schedule with more steps than this is a livelock.
const MOST_STEPS: usize = 200_000;

/// Runs `race` under many schedules. A deadlock is a failure, as is a panic.
pub(crate) fn explore(race: fn()) {
    let schedules = std::env::var("DISTLOCK_SCHEDULES").map_or(SCHEDULES, |count| count.parse().unwrap());
    run(RandomScheduler::new(schedules), race);
    run(PctScheduler::new(DEPTH, schedules), race);
}

fn run(scheduler: impl Scheduler + 'static, race: fn()) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.stack_size = 0x4_0000;
    Runner::new(scheduler, config).run(race);
}

/// A store and a family of lockers on it.
pub(crate) struct Scene {
    pub(crate) store: Store,
    pub(crate) locker: Locker,
    pub(crate) clock: Clock,
    hand: ManualClock,
    ward: Arc<Ward>,
    ends: Arc<Ends>,
    actors: Vec<JoinHandle<()>>,
    /// Actors that have not finished.
    acting: Arc<AtomicUsize>,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let (clock, hand) = Clock::manual();
        let store = Store::with_clock(clock.clone());
        let ends = Arc::<Ends>::default();
        let builder = Locker::builder().clock(clock.clone()).default_ttl(TTL);
        let heard = ends.clone();
        let builder = builder.observer(move |event: &Event<'_>| heard.hear(event));
        let locker = builder.build(Memory::on(&store)).unwrap();
        let ward = Arc::default();
        Scene { store, locker, clock, hand, ward, ends, actors: Vec::new(), acting: Arc::default() }
    }

    /// Starts an actor with its own locker, beside the others.
    pub(crate) fn act(&mut self, action: impl FnOnce(Locker, Arc<Ward>) + Send + 'static) {
        let (locker, ward) = (self.locker.clone(), self.ward.clone());
        let acting = self.acting.clone();
        acting.fetch_add(1, Ordering::SeqCst);
        self.actors.push(thread::spawn(move || {
            action(locker, ward);
            acting.fetch_sub(1, Ordering::SeqCst);
        }));
    }

    /// Waits for all actors, while time advances.
    pub(crate) fn play_in_time(&mut self) {
        while self.acting.load(Ordering::SeqCst) > 0 {
            self.hand.jump(TTL / 8);
            thread::yield_now();
        }
        self.play();
    }

    /// Waits for all actors, while time stands still: no actor may depend on a timeout.
    pub(crate) fn play(&mut self) {
        std::mem::take(&mut self.actors).into_iter().for_each(|actor| actor.join().unwrap());
    }

    /// Closes the family and asserts that no state is left.
    pub(crate) fn assert_nothing_is_left(self) {
        block_on(self.locker.close()).unwrap();
        assert!(self.store.is_empty(), "left behind: {:?}", self.store);
        self.ends.check();
    }

    /// Like `assert_nothing_is_left`, where time may have advanced faster than the keeper: the keeper then leaves
    /// holds to their leases and reports it.
    pub(crate) fn assert_nothing_stays(self) {
        if let Err(error) = block_on(self.locker.close()) {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
            self.hand.jump(TTL);
        }
        assert!(self.store.is_empty(), "left behind: {:?}", self.store);
    }
}

/// A critical section: only one guard that believes to hold the lock may be inside.
#[derive(Default)]
pub(crate) struct Ward(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    guards: HashMap<FencingToken, LockGuard>,
    last: Option<FencingToken>,
}

impl Ward {
    /// Lets a guard in. All guards inside must know by now that they are lost.
    pub(crate) fn enter(&self, guard: LockGuard) -> FencingToken {
        let mut inside = self.0.lock().unwrap();
        let token = guard.fencing_token();
        // In this order: a newcomer that is not lost now was not lost when the others were checked.
        let others: Vec<_> = inside.guards.values().filter(|other| !other.is_lost()).collect();
        if !guard.is_lost() {
            assert!(others.is_empty(), "two holders: {guard:?} and {others:?}");
            assert!(inside.last < Some(token), "{token:?} after {:?}", inside.last);
            inside.last = Some(token);
        }
        inside.guards.insert(token, guard);
        token
    }

    pub(crate) fn is_lost(&self, token: FencingToken) -> bool {
        self.0.lock().unwrap().guards[&token].is_lost()
    }

    pub(crate) fn leave(&self, token: FencingToken) -> LockGuard {
        self.0.lock().unwrap().guards.remove(&token).unwrap()
    }
}

/// Counts the observed events: every hold begins once and ends once.
#[derive(Default)]
struct Ends(Mutex<HashMap<OwnerId, i32>>);

impl Ends {
    fn check(&self) {
        let open = self.0.lock().unwrap();
        assert!(open.values().all(|open| *open == 0), "holds that did not begin as often as they ended: {open:?}");
    }

    fn hear(&self, event: &Event<'_>) {
        let change = match event.kind {
            EventKind::Acquired { .. } => 1,
            EventKind::Released { .. } | EventKind::Lost { .. } => -1,
            _ => return,
        };
        *self.0.lock().unwrap().entry(event.owner.clone()).or_default() += change;
    }
}

/// Ends a hold in a random way.
pub(crate) fn end_somehow(guard: LockGuard) {
    if thread_rng().gen_bool(0.5) {
        return drop(guard);
    }
    if let Err(error) = block_on(guard.unlock()) {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}
