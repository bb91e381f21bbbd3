//! A claim that arrives after its attempt was released: the keeper repeats the release until none can arrive any more.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock::backend::memory::{Memory, Store};
use distlock::backend::{Attachment, Backend, Capabilities, Claim, Claimed, Lease, Release, Renewal};
use distlock::{Clock, Locker, Moment, Result};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long after it was sent a claim may arrive.
const LATEST: Duration = Duration::from_millis(600);
/// For what must happen in time on any machine.
const SOON: Duration = Duration::from_secs(20);
const LONG_TTL: Duration = Duration::from_secs(600);

/// The memory engine behind a connection on which the first claim is stuck.
struct Stuck {
    memory: Memory,
    clock: Clock,
    stuck: Arc<Mutex<Option<(Claim, Moment)>>>,
    releases: watch::Sender<u32>,
}

impl Backend for Stuck {
    fn name(&self) -> &'static str {
        "stuck"
    }

    fn capabilities(&self) -> Capabilities {
        Backend::capabilities(&self.memory)
    }

    fn attach(&self, attachment: Attachment) {
        self.memory.attach(attachment);
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        *self.stuck.lock().unwrap() = Some((claim.clone(), self.clock.now().after(LATEST)));
        std::future::pending().await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.memory.renew(leases).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        let outcome = self.memory.release(claim).await;
        self.releases.send_modify(|count| *count += 1);
        outcome
    }

    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        let stuck = self.stuck.lock().unwrap();
        stuck.as_ref().filter(|(late, _)| late.attempt == claim.attempt).map(|(_, until)| *until)
    }
}

/// Drops a claim that is stuck, and has it carried out behind its first release. Returns the locker that sent it.
async fn deliver_late(store: &Store) -> (Locker, watch::Receiver<u32>) {
    let (releases, mut released) = watch::channel(0);
    let stuck = Arc::<Mutex<Option<(Claim, Moment)>>>::default();
    let engine = Stuck { memory: Memory::on(store), clock: Clock::system(), stuck: stuck.clone(), releases };
    let locker = Locker::new(engine).unwrap();
    let request = locker.try_lock("k").ttl(LONG_TTL).into_future();
    assert!(timeout(Duration::from_millis(20), request).await.is_err(), "the claim is not answered");
    released.wait_for(|count| *count > 0).await.unwrap();
    let (claim, _) = stuck.lock().unwrap().clone().expect("sent");
    assert!(matches!(Memory::on(store).claim(&claim).await, Ok(Claimed::Granted(_))), "it takes the lock");
    (locker, released)
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_release_is_released_again() {
    let store = Store::new();
    let (_locker, mut released) = deliver_late(&store).await;
    timeout(SOON, released.wait_for(|count| *count > 1)).await.expect("in time").unwrap();
    let other = Locker::new(Memory::on(&store)).unwrap();
    let granted = timeout(SOON, other.lock("k").into_future()).await;
    assert!(matches!(granted, Ok(Ok(_))), "long before the lease of the late claim ends: {granted:?}");
}

#[tokio::test]
async fn closing_waits_until_no_claim_can_arrive() {
    let store = Store::new();
    let (locker, released) = deliver_late(&store).await;
    timeout(SOON, locker.close()).await.expect("in time").unwrap();
    assert!(*released.borrow() > 1);
    assert!(store.is_empty());
}

#[tokio::test]
async fn releases_are_repeated_only_until_no_claim_can_arrive() {
    let store = Store::new();
    let (locker, released) = deliver_late(&store).await;
    timeout(SOON, locker.close()).await.expect("in time").unwrap();
    // 50, 100, 200 and 250 ms after one another, and the first one; a slow machine has fewer.
    assert!((2..=6).contains(&*released.borrow()), "{}", *released.borrow());
}
