//! Holds in every mode, while processes are killed and waits are given up: the history must be clean.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use distlock::{Clock, LockRequest, Locker, Mode};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::child::Child;
use crate::history::{History, Hold};

/// The limit for one turn, and for all of them.
const TEST_LIMIT: Duration = Duration::from_secs(30);

/// How long a process holds its lock before it is killed.
const LIFE: Duration = Duration::from_millis(150);

/// Holds that many tasks take by turns.
#[derive(Debug)]
pub struct Turns {
    /// One locker for each task.
    pub lockers: Vec<Locker>,
    /// The number of turns of each task.
    pub rounds: u32,
    /// How long a task waits if it means to give up.
    pub hurry: Duration,
}

impl Turns {
    /// Takes all turns, while processes on `url` are killed during their holds; `disturb` is called each time.
    ///
    /// # Panics
    /// When the history is not clean, or most turns fail.
    pub async fn expect_clean_history(self, url: &str, mut disturb: impl FnMut()) {
        let reenters = self.lockers[0].capabilities().reenters;
        let all = self.rounds * u32::try_from(self.lockers.len()).expect("a few");
        let history = Arc::new(History::default());
        let mut tasks = JoinSet::new();
        for (number, locker) in (0..).zip(self.lockers) {
            tasks.spawn(take_turns(locker, number, self.rounds, self.hurry, history.clone()));
        }
        let entry = if reenters { "enter c 1500 one" } else { "lock c 1500" };
        for order in ["read a 1500", "permit b 1500 2", entry, "lock a 1500"] {
            let mut child = Child::start();
            child.connect(url);
            child.send(order);
            tokio::time::sleep(LIFE).await;
            child.kill9();
            disturb();
        }
        let held = timeout(TEST_LIMIT * 2, tasks.join_all()).await.expect("every task finished its rounds");
        let held: u32 = held.into_iter().sum();
        assert!(held > all / 3, "only {held} of {all} were granted");
        history.check().expect("a clean history");
    }
}

/// Returns the request for this number, its owner and its lock: on each of four locks the modes that can meet there.
fn any_request(locker: &Locker, number: u32) -> (LockRequest, u32, &'static str) {
    let reenters = locker.capabilities().reenters;
    match number % 8 {
        0 => (locker.lock("a"), 100 + number, "a"),
        1 | 2 => (locker.read("a"), 200 + number, "a"),
        3 => (locker.semaphore("b", 2).acquire(), 300 + number, "b"),
        4 if reenters => (locker.lock("c").owner("one").reentrant(), 1, "c"),
        5 if reenters => (locker.lock("c").owner("two").reentrant(), 2, "c"),
        4 | 5 => (locker.lock("c"), 400 + number, "c"),
        _ => (locker.lock("d"), 500 + number, "d"),
    }
}

/// Takes `rounds` turns; returns how many succeeded.
async fn take_turns(locker: Locker, number: u32, rounds: u32, hurry: Duration, history: Arc<History>) -> u32 {
    let clock = Clock::system();
    let mut held = 0;
    for round in 0..rounds {
        let asked = clock.now();
        let (request, client, key) = any_request(&locker, number + round);
        let test_limit = if (number + round).is_multiple_of(3) { hurry } else { TEST_LIMIT };
        let Ok(granted) = timeout(test_limit, request.into_future()).await else { continue };
        // A cut connection may cause an error; it must never cause two holders.
        let Ok(guard) = granted else { continue };
        let (granted, token) = (clock.now(), guard.fencing_token().get());
        let (mode, slot) = (guard.mode(), guard.slot());
        if mode == Mode::Exclusive {
            history.write(key, token, true);
        }
        tokio::task::yield_now().await;
        // The time is read first, so that the hold was valid at that time if it is reported as held.
        let now = clock.now();
        let end = if guard.check().is_ok() { now } else { granted };
        if round % 2 == 0 {
            drop(guard);
        } else {
            drop(guard.unlock().await);
        }
        history.hold(Hold { key: key.into(), client, mode, slot, asked, queued: None, granted, token, end });
        held += 1;
    }
    held
}
