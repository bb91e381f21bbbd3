//! Primitives on top of the lock: `lock_all`, elections, `at_least`, delays, handover and adoption.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use distlock::backend::{ClaimedAll, Release};
use distlock::{Asked, ErrorKind, Key, LossReason, Watchdog};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{claim_of, expect_grant, expect_granted, expect_lock, spawn_waiter};
use crate::setup::World;

/// `lock_all` is deadlock-free: clients ask for the same locks in different orders.
pub async fn several_locks_are_taken_without_deadlock(world: &World) {
    let keys = [world.key("several"), world.key("several"), world.key("several")];
    let counters = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
    let mut tasks = JoinSet::new();
    for number in 0..4 {
        let (client, keys, counters) = (world.client().await, keys.clone(), counters.clone());
        tasks.spawn(async move {
            for round in 0..4 {
                // Two of the three, in either order.
                let [a, b] = [(number + round) % 3, (number + round + 1 + number % 2) % 3];
                let guard = client.locker.lock_all([&keys[a], &keys[b]]).await.expect("granted");
                for at in [a, b] {
                    let seen = counters[at].load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counters[at].store(seen + 1, Ordering::SeqCst);
                }
                guard.unlock().await.expect("released");
            }
        });
    }
    timeout(world.test_limit() * 2, tasks.join_all()).await.expect("no deadlock");
    let total: u64 = counters.iter().map(|counter| counter.load(Ordering::SeqCst)).sum();
    assert_eq!(total, 4 * 4 * 2);
    world.expect_nothing_left().await;
}

/// All or nothing: if one lock is held by another client, none is kept.
pub async fn several_locks_are_all_or_nothing(world: &World) {
    let (client, other) = (world.client().await, world.client().await);
    let keys = [world.key("all-1"), world.key("all-2"), world.key("all-3")];
    let taken = other.locker.lock(&keys[2]).await.expect("granted");
    let error = client.locker.lock_all(&keys).wait(Duration::ZERO).await.expect_err("one is taken");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains(keys[2].as_str()), "{error}");
    for key in &keys[..2] {
        let free = other.locker.try_lock(key).await.expect("no failure").expect("it was given back");
        free.unlock().await.expect("released");
    }
    taken.unlock().await.expect("released");
    let all = client.locker.lock_all(keys.iter().rev()).await.expect("granted");
    assert_eq!(all.guards().len(), 3);
    assert!(all.fencing_token(keys[1].as_str()).is_some() && all.fencing_token("another").is_none());
    assert_eq!(all.run(async { 7 }).await.expect("held"), 7);
    let error = client.locker.clone().lock_all([&keys[0], &keys[0]]).await.expect_err("the same twice");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    all.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// The loss of one lock of several is the loss of all.
pub async fn several_locks_are_lost_together(world: &World) {
    let (client, other) = (world.client().await, world.client().await);
    let keys = [world.key("together-1"), world.key("together-2")];
    let all = client.locker.lock_all(&keys).await.expect("granted");
    let token = all.fencing_token(keys[1].as_str()).expect("it is among them");
    other.locker.inspect().force_release(&keys[1], token, "to see it lost").await.expect("broken");
    let (key, _) = timeout(world.test_limit(), all.lost()).await.expect("notified");
    assert_eq!(*key, keys[1]);
    assert_eq!(all.check().expect_err("lost").kind(), ErrorKind::Lost);
    let error = all.run(std::future::pending::<()>()).await.expect_err("lost");
    assert_eq!(error.key(), Some(&keys[1]));
    assert_eq!(all.unlock().await.expect_err("lost").kind(), ErrorKind::Lost);
    let next = expect_lock(world, &other.locker, &keys[0]).await;
    next.unlock().await.expect("released");
}

/// Names that an engine with several servers keeps on one server.
fn neighbours(world: &World) -> [Key; 3] {
    let tag = world.key("near");
    [1, 2, 3].map(|number| Key::new(format!("{{{tag}}}:{number}")).expect("a good name"))
}

/// One request takes all locks. If one is held, that one request reports which and by whom, and no lock is taken.
pub async fn several_locks_are_taken_in_one_step(world: &World) {
    let (client, other) = (world.client().await, world.client().await);
    let keys = neighbours(world);
    let requests = || client.calls.claims.load(Ordering::SeqCst);
    let before = requests();
    let all = client.locker.lock_all(&keys).await.expect("granted");
    assert_eq!(requests() - before, 1, "one step");
    for guard in all.guards() {
        assert!(other.locker.try_lock(guard.key()).await.expect("no failure").is_none(), "{} is held", guard.key());
    }
    tokio::time::sleep(world.ttl() + Duration::from_millis(200)).await;
    all.check().expect("kept by renewal like any other");
    all.unlock().await.expect("released");

    let taken = other.locker.lock(&keys[1]).label("the conflicting holder").await.expect("granted");
    let before = requests();
    let error = client.locker.lock_all(&keys).wait(Duration::ZERO).await.expect_err("one is taken");
    assert_eq!((error.kind(), error.key(), requests() - before), (ErrorKind::Timeout, Some(&keys[1]), 1), "{error}");
    let holder = error.holder().and_then(|holder| holder.record.clone()).expect("it says by whom");
    assert_eq!(holder.label.as_deref(), Some("the conflicting holder"));
    for key in [&keys[0], &keys[2]] {
        let free = other.locker.try_lock(key).await.expect("no failure").expect("none was taken");
        free.unlock().await.expect("released");
    }
    // A waiter gets them one after the other.
    let waiter = tokio::spawn(client.locker.lock_all(&keys).into_future());
    while other.locker.try_lock(&keys[0]).await.expect("no failure").is_some() {
        tokio::task::yield_now().await;
    }
    taken.unlock().await.expect("released");
    let all =
        timeout(world.test_limit(), waiter).await.expect("in time").expect("the task did not panic").expect("granted");
    all.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A repeated `claim_all` returns the same tokens, and each grant needs one release.
pub async fn a_repeated_claim_all_returns_the_same_grants(world: &World) {
    let engine = world.engine().await;
    let claims = neighbours(world).map(|key| claim_of(world, &key, false));
    let expect_all = async || match engine.claim_all(&claims).await.expect("the engine replies") {
        ClaimedAll::Granted(grants) => grants.iter().map(|grant| grant.token).collect::<Vec<_>>(),
        busy => panic!("expected grants, not {busy:?}"),
    };
    let first = expect_all().await;
    assert_eq!(first, expect_all().await);
    let rest = claims.clone().map(|claim| claim_of(world, &claim.key, false));
    let busy = engine.claim_all(&rest).await.expect("the engine replies");
    assert!(matches!(&busy, ClaimedAll::Busy(key, Some(_)) if *key == claims[0].key), "{busy:?}");
    for claim in &claims {
        assert_eq!(engine.release(claim).await.expect("the engine replies"), Release::Released);
    }
    world.expect_nothing_left().await;
}

/// While one lock of several is held by another client, `claim_all` never holds another of them even for a moment.
pub async fn claim_all_never_holds_a_part(world: &World) {
    const LOOKS: usize = 100;
    let (client, other) = (world.client().await, world.client().await);
    let keys = neighbours(world);
    let taken = other.locker.lock(&keys[2]).await.expect("granted");
    let (asked, rounds) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
    let taker = tokio::spawn({
        let (keys, asked, rounds) = (keys.clone(), asked.clone(), rounds.clone());
        async move {
            while rounds.load(Ordering::SeqCst) {
                let refused = client.locker.lock_all(&keys).wait(Duration::ZERO).await.expect_err("one is taken");
                assert_eq!(refused.kind(), ErrorKind::Timeout);
                // If the claim met the observer's own short hold, it did not try to take any lock.
                if refused.key() == Some(&keys[2]) {
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    });
    let mut looks = 0;
    while looks < LOOKS || asked.load(Ordering::SeqCst) < LOOKS as u64 {
        let free = other.locker.try_lock(&keys[0]).await.expect("no failure").expect("the first is never held alone");
        free.unlock().await.expect("released");
        tokio::task::yield_now().await;
        looks += 1;
    }
    rounds.store(false, Ordering::SeqCst);
    taker.await.expect("the task did not panic");
    taken.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// `at_least` keeps a lock that is unlocked early, and only for that long.
pub async fn at_least_keeps_a_lock_unlocked_early(world: &World) {
    let (client, other) = (world.client().await, world.client().await);
    // Longer than a lease, so the keeper must renew it.
    let least = world.ttl() + Duration::from_millis(300);
    for dropped in [false, true] {
        let key = world.key("at-least");
        let guard = client.locker.lock(&key).at_least(least).await.expect("granted");
        let granted = world.now();
        if dropped {
            drop(guard);
        } else {
            guard.unlock().await.expect("left");
        }
        assert!(client.locker.try_lock(&key).await.expect("not already held").is_none(), "kept, from its owner too");
        let next = expect_lock(world, &other.locker, &key).await;
        // The hold began when it was granted, slightly before this test could observe the grant.
        let kept = world.now().since(granted) + Duration::from_millis(200);
        assert!(kept >= least, "kept for {kept:?} only");
        next.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// A lock kept by `at_least` stays held until its lease ends: closing the locker does not free it.
pub async fn closing_leaves_at_least_holds_to_their_lease(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("kept-by-none"));
    let guard = client.locker.lock(&key).ttl(world.ttl() * 2).at_least(world.test_limit()).await.expect("granted");
    guard.unlock().await.expect("left");
    client.locker.close().await.expect("closed");
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none(), "freed by closing");
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A hung process loses its lock although its keeper renews, because its watchdog is not fed.
pub async fn an_unfed_watchdog_releases(world: &World) {
    let (client, other) = (world.client().await, world.client().await);
    let (hung, busy) = (world.key("hung"), world.key("busy"));
    let silence = world.ttl() / 2;
    let (hangs, works) = (client.locker.lock(&hung), client.locker.lock(&busy));
    let hangs = hangs.watchdog(Watchdog::fed(silence)).await.expect("granted");
    let works = works.watchdog(Watchdog::fed(world.test_limit())).await.expect("granted");
    works.feed();
    assert_eq!(timeout(world.test_limit(), hangs.lost()).await.expect("notified"), LossReason::Silent);
    expect_lock(world, &other.locker, &hung).await.unlock().await.expect("released");
    works.check().expect("fed, so renewed for longer than a lease");
    works.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// After a loss the lock is granted only when the delay is over; after an unlock it is granted at once.
pub async fn a_lost_lock_is_not_granted_during_its_delay(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("delay"));
    let delay = world.ttl().max(Duration::from_millis(1_500));
    let guard = holder.locker.lock(&key).lock_delay(delay).await.expect("granted");
    guard.unlock().await.expect("released");
    let guard = other.locker.try_lock(&key).await.expect("no failure").expect("free at once");
    guard.unlock().await.expect("released");

    let guard = holder.locker.lock(&key).lock_delay(delay).await.expect("granted");
    holder.calls.cut();
    assert_eq!(timeout(world.test_limit(), guard.lost()).await.expect("notified"), LossReason::Expired);
    let deadline = guard.deadline().expect("it has a lease");
    drop(guard);
    let next = expect_lock(world, &other.locker, &key).await;
    let rested = world.now().since(deadline);
    assert!(rested >= delay, "granted {rested:?} after the loss");
    next.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A holder can change its label; a former holder cannot.
pub async fn a_label_can_be_changed(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("relabel"));
    let guard = client.locker.lock(&key).label("starting").await.expect("granted");
    let token = guard.fencing_token();
    guard.relabel("half way").await.expect("changed");
    let lock = other.locker.inspect().get(&key).await.expect("shown").expect("it is held");
    let holder = lock.holder().expect("it is held");
    assert_eq!(holder.record.as_ref().and_then(|record| record.label.as_deref()), Some("half way"));
    assert_eq!(holder.token, Some(token));
    guard.check().expect("held");
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// All clients see the leader and its value. Candidates are elected in queue order.
pub async fn leaders_are_elected_in_queue_order(world: &World) {
    let (one, two, observer) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("election");
    let elections = [one.locker.election(&key), two.locker.election(&key), observer.locker.election(&key)];
    assert_eq!(elections[2].leader().await.expect("no error"), None);
    let first = elections[0].campaign("first").await.expect("elected");
    let mut leaders = elections[2].observe(Duration::from_millis(20));
    let seen = leaders.next().await.expect("no error").expect("there is a leader");
    assert_eq!(seen.value.as_deref(), Some("first"));
    assert_eq!(seen.token, Some(first.guard().fencing_token()));

    let test_limit = world.test_limit();
    let second = tokio::spawn(elections[1].campaign("second").wait(test_limit).into_future());
    two.calls.queued(1).await;
    first.resign().await.expect("resigned");
    let second = timeout(test_limit, second).await.expect("in time").expect("the task did not panic").expect("elected");
    let mut seen = None;
    while seen.as_ref() != Some(&Some(second.guard().fencing_token())) {
        let leader = timeout(test_limit, leaders.next()).await.expect("seen in time").expect("no error");
        seen = Some(leader.and_then(|leader| leader.token));
    }
    second.resign().await.expect("resigned");
    world.expect_nothing_left().await;
}

/// An adopted hold continues in another process with its token. The old guard is notified and can no longer change the
/// hold.
pub async fn a_hold_is_adopted(world: &World) {
    let (before, after, other) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("adopt");
    let old = before.locker.lock(&key).owner("job-7").label("nightly").await.expect("granted");
    let waiting = spawn_waiter(world, &other, &key).await;
    let mut label = "nightly";
    if before.locker.capabilities().amends {
        label = "half way";
        old.relabel(label).await.expect("changed");
    }
    let ticket = old.export();
    let new = after.locker.adopt(&ticket).await.expect("taken over");
    if after.locker.capabilities().inspects {
        let seen = after.locker.inspect().get(&key).await.expect("no error").expect("held");
        let record = seen.holder().and_then(|holder| holder.record.clone()).expect("one of ours");
        assert_eq!(record.label.as_deref(), Some(label), "it is still the same hold");
    }
    assert_eq!((new.fencing_token(), new.owner().as_str()), (old.fencing_token(), "job-7"));
    timeout(world.test_limit(), old.lost()).await.expect("the old guard is notified");
    assert_eq!(old.unlock().await.expect_err("not its any more").kind(), ErrorKind::Lost);
    tokio::time::sleep(world.ttl() * 2).await;
    new.check().expect("it is renewed in its new place");
    assert!(!waiting.is_finished(), "two holders");
    new.unlock().await.expect("released");
    expect_granted(world, waiting).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A hold that has ended cannot be adopted, and its ticket does not adopt the next hold.
pub async fn an_ended_hold_is_not_adopted(world: &World) {
    let (before, after, key) = (world.client().await, world.client().await, world.key("adopt-late"));
    let guard = before.locker.lock(&key).await.expect("granted");
    let ticket = guard.export();
    guard.unlock().await.expect("released");
    assert_eq!(after.locker.adopt(&ticket).await.expect_err("it has ended").kind(), ErrorKind::NotHeld);
    let next = before.locker.lock(&key).await.expect("granted");
    assert_eq!(after.locker.adopt(&ticket).await.expect_err("it has ended").kind(), ErrorKind::NotHeld);
    next.check().expect("untouched");
    next.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Adoption is idempotent: a retry after a lost reply returns the same grant with a real lease.
pub async fn a_repeated_adoption_returns_the_same_grant(world: &World) {
    let (before, after, key) = (world.engine().await, world.engine().await, world.key("adopt-twice"));
    let (old, new) = (claim_of(world, &key, true), claim_of(world, &key, false));
    let token = expect_grant(&*before, &old).await.token;
    let first = after.adopt(old.attempt, token, &new).await.expect("taken over");
    tokio::time::sleep(world.ttl() / 2).await;
    let second = after.adopt(old.attempt, token, &new).await.expect("the same again");
    assert_eq!((first.token, first.slot), (token, None));
    assert_eq!((second.token, second.slot), (token, None));
    let lease = second.term.expect("a lease");
    let other = world.client().await;
    let next = expect_lock(world, &other.locker, &key).await;
    let kept = world.now().since(lease.start);
    // A thousandth for the clocks' rates and 2 ms, as for every deadline.
    assert!(kept + Duration::from_millis(2) >= lease.ttl.mul_f64(0.999), "{:?} lasted {kept:?}", lease.ttl);
    next.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A holder receives the request to release, hands over, and learns the next holder.
pub async fn an_asked_holder_hands_over(world: &World) {
    let (holder, waiter, asker) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("ask");
    assert_eq!(asker.locker.ask(&key, "anybody?").await.expect("no error"), Asked::Free);
    let guard = holder.locker.lock(&key).await.expect("granted");
    let request = waiter.locker.lock(&key).owner("the-next").wait(world.test_limit());
    let waiting = super::spawn_request(&waiter, request).await;
    let asking = tokio::spawn(asker.locker.ask(&key, "deploy at noon").wait(world.test_limit()).into_future());
    let reason = timeout(world.test_limit(), guard.asked()).await.expect("heard").expect("no error");
    assert_eq!(reason, "deploy at noon");
    let next = guard.hand_over().await.expect("released").expect("the waiter was granted the lock");
    assert_eq!(next.record.expect("one of ours").owner.as_str(), "the-next");
    let asked = timeout(world.test_limit(), asking).await.expect("in time").expect("the task did not panic");
    assert!(matches!(asked.expect("released"), Asked::Released(_)));
    expect_granted(world, waiting).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}
