//! Repeated elections in which leaders are cut off and crash: there are never two leaders that are valid by their
//! deadlines.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock::fencing::Fence;
use distlock::{Clock, Key, Leadership, Mode, Moment};
use distlock_testkit::conformance::{CaseFuture, Outcome, attempt};
use distlock_testkit::history::{History, Hold};
use distlock_testkit::{Client, MemorySetup, World};
use tokio::task::JoinSet;
use tokio::time::timeout;

#[path = "etcd_setups/mod.rs"]
#[cfg(feature = "etcd")]
#[allow(dead_code)]
mod etcd_setups;
#[path = "setups/redis.rs"]
#[cfg(feature = "redis")]
#[allow(dead_code)]
mod redis_setups;

const CANDIDATES: u32 = 5;

/// State shared by all candidates.
struct Contest {
    key: Key,
    clock: Clock,
    history: History,
    /// The resource that leaders write to.
    fence: Fence,
    /// The numbers of elections, of leaders that were cut off or crashed, and of such candidates.
    elections: AtomicU32,
    lost_leaders: AtomicU32,
    lost_candidates: AtomicU32,
}

/// The fate of a candidate: one in ten leaders and one in twenty candidates is lost.
enum Fate {
    Resigns,
    IsCutOff,
    Dies,
    IsCutOffWhileItWaits,
}

fn fate(number: u32) -> Fate {
    match number % 20 {
        3 => Fate::IsCutOff,
        11 => Fate::Dies,
        17 => Fate::IsCutOffWhileItWaits,
        _ => Fate::Resigns,
    }
}

impl Contest {
    /// Campaigns once. Returns false when the client can no longer be used.
    async fn stand(&self, client: &Client, candidate: u32, ttl: Duration, test_limit: Duration) -> bool {
        let fate = fate(self.elections.fetch_add(1, Ordering::SeqCst));
        let (election, asked) = (client.locker.election(&self.key), self.clock.now());
        let campaign = election.campaign(format!("candidate {candidate}")).ttl(ttl).wait(test_limit);
        if let Fate::IsCutOffWhileItWaits = fate {
            let waiting = timeout(Duration::from_millis(5), campaign.into_future()).await;
            let granted = self.clock.now();
            client.calls.cut();
            self.lost_candidates.fetch_add(1, Ordering::SeqCst);
            if let Ok(won) = waiting {
                self.record(&won.expect("elected"), candidate, (asked, granted));
            }
            return false;
        }
        let leadership = campaign.await.expect("elected");
        let times = (asked, self.clock.now());
        let token = leadership.guard().fencing_token();
        let key = self.key.as_str();
        if self.fence.pass(token, || self.history.write(key, token.get(), true)).is_err() {
            self.history.write(key, token.get(), false);
        }
        tokio::task::yield_now().await;
        match fate {
            Fate::Resigns => {
                self.record(&leadership, candidate, times);
                // On a machine that stood still the leadership may be lost by now.
                let _ = leadership.resign().await;
                return true;
            }
            Fate::IsCutOff => {
                client.calls.cut();
                timeout(test_limit, leadership.guard().lost()).await.expect("notified");
                self.record(&leadership, candidate, times);
            }
            _ => {
                client.calls.cut();
                self.record_until_the_deadline(&leadership, candidate, times);
                std::mem::forget(leadership);
            }
        }
        self.lost_leaders.fetch_add(1, Ordering::SeqCst);
        false
    }

    /// Records that the candidate led until now, or until its deadline if that was earlier.
    fn record(&self, leadership: &Leadership, candidate: u32, times: (Moment, Moment)) {
        self.record_until(self.clock.now(), leadership, candidate, times);
    }

    /// Records that the candidate believed in its leadership until its deadline.
    fn record_until_the_deadline(&self, leadership: &Leadership, candidate: u32, times: (Moment, Moment)) {
        self.record_until(Moment::NEVER, leadership, candidate, times);
    }

    fn record_until(&self, end: Moment, leadership: &Leadership, client: u32, (asked, granted): (Moment, Moment)) {
        let guard = leadership.guard();
        let end = guard.deadline().map_or(end, |deadline| deadline.min(end));
        let (key, token) = (self.key.to_string(), guard.fencing_token().get());
        let hold = Hold { key, client, mode: Mode::Exclusive, slot: None, asked, queued: None, granted, token, end };
        self.history.hold(hold);
    }
}

/// Runs candidates until there were `elections` elections.
async fn contest(world: &World, elections: u32, ttl: Duration) {
    let contest = Arc::new(Contest {
        key: world.key("contest"),
        clock: world.clock.clone(),
        history: History::default(),
        fence: Fence::new(),
        elections: AtomicU32::new(0),
        lost_leaders: AtomicU32::new(0),
        lost_candidates: AtomicU32::new(0),
    });
    let test_limit = world.test_limit() + ttl * 20;
    while contest.elections.load(Ordering::SeqCst) < elections {
        // Each candidate has its own client, until the client is lost.
        let mut candidates = JoinSet::new();
        for candidate in 0..CANDIDATES {
            let (contest, client) = (contest.clone(), world.client().await);
            candidates.spawn(async move {
                while contest.elections.load(Ordering::SeqCst) < elections
                    && contest.stand(&client, candidate, ttl, test_limit).await
                {}
            });
        }
        candidates.join_all().await;
    }
    let [leaders, candidates] = [&contest.lost_leaders, &contest.lost_candidates].map(|it| it.load(Ordering::SeqCst));
    let holds = contest.history.holds();
    println!("{holds} leaders, {leaders} of them lost, and {candidates} candidates");
    assert!(leaders >= elections / 12 && candidates >= elections / 25, "{leaders} and {candidates}");
    assert!(holds >= elections as usize * 9 / 10, "{holds} leaders");
    contest.history.check().expect("never two leaders");
}

fn a_thousand(world: &World) -> CaseFuture<'_> {
    Box::pin(contest(world, 1_070, Duration::from_millis(150)))
}

fn a_hundred(world: &World) -> CaseFuture<'_> {
    Box::pin(contest(world, 110, world.ttl()))
}

#[test]
fn a_thousand_elections_with_losses_never_have_two_leaders() {
    let outcome = attempt::<MemorySetup>(Duration::from_secs(160), a_thousand);
    assert!(matches!(outcome, Outcome::Passed), "{outcome:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_hundred_elections_on_redis_never_have_two_leaders() {
    let outcome = attempt::<redis_setups::Server<redis_setups::Plain>>(Duration::from_secs(160), a_hundred);
    assert!(matches!(outcome, Outcome::Passed), "{outcome:?}");
}

#[cfg(feature = "etcd")]
#[test]
fn a_hundred_elections_on_etcd_never_have_two_leaders() {
    let outcome = attempt::<etcd_setups::OneEtcd>(Duration::from_secs(160), a_hundred);
    assert!(matches!(outcome, Outcome::Passed), "{outcome:?}");
}
