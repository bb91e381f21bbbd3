//! A crowd: a process with many waiters for one lock, which dies while they wait.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::{Clock, Locker, Moment};
use distlock_testkit::Dice;

use crate::client::{LOCKS, PERMITS};
use crate::engine::Engine;
use crate::plan::{Fault, Kind, Step};
use crate::timeline::{name, true_time};

/// The machine of the crowd.
pub(crate) const HOST: &str = "crowd";
/// The number of connections of the waiters.
const LOCKERS: usize = 4;

/// The parameters of a crowd.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    engine: Engine,
    has_guard: bool,
    lock: usize,
    count: usize,
    ttl: Duration,
    from: Duration,
    dies: Duration,
    with_its_machine: bool,
}

impl Crowd {
    /// Uses its own random numbers, so that the rest of the world is the same with and without a crowd. There are more
    /// waiters than one call of a script was once able to skip.
    pub(crate) fn draw(engine: Engine, has_guard: bool, seed: u64, time: Duration) -> Option<Crowd> {
        let mut dice = Dice::new(seed ^ 0x00c0_ffee);
        if !engine.is_fair() || time.is_zero() || dice.percent(75) {
            return None;
        }
        let (lock, count) = (dice.below(LOCKS), 40 + dice.below(80));
        let ttl = if dice.percent(50) { dice.millis(3000..20_000) } else { dice.millis(600..3000) };
        let from = dice.millis(500..5000);
        let (dies, with_its_machine) = (from + dice.millis(300..2000), dice.percent(20));
        Some(Crowd { engine, has_guard, lock, count, ttl, from, dies, with_its_machine })
    }

    /// Returns the fault that ends it.
    pub(crate) fn step(&self) -> Step {
        let kind = if self.with_its_machine { Kind::CrowdVanishes } else { Kind::CrowdDies };
        Step { fault: Fault { kind, client: None, server: None }, from: self.dies, to: self.dies }
    }

    /// Waits until it is crashed.
    pub(crate) async fn wait(self) -> turmoil::Result {
        let clock = Clock::of_runtime(Moment::from_nanos(u64::try_from(true_time().as_nanos())? + 1), 0.0);
        tokio::time::sleep(self.from.saturating_sub(true_time())).await;
        let mut lockers = Vec::new();
        for _ in 0..LOCKERS {
            lockers.push(self.engine.locker(Locker::builder().clock(clock.clone()), self.has_guard)?);
        }
        for number in 0..self.count {
            let (locker, name) = (&lockers[number % LOCKERS], name(self.lock));
            let request = match self.lock {
                1 if number % 2 == 0 => locker.read(name.as_str()),
                2 => locker.semaphore(name.as_str(), PERMITS).or_resize().acquire(),
                _ => locker.lock(name.as_str()),
            };
            tokio::task::spawn_local(async move {
                // A task that is granted the lock keeps it until the end.
                let granted = request.ttl(self.ttl).into_future().await;
                std::future::pending::<()>().await;
                drop(granted);
            });
        }
        std::future::pending().await
    }
}
