//! The conformance cases: what every engine must do. Each case runs on its own set-up.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock::backend::{Claim, Claimed, Grant, Release};
use distlock::{
    ErrorKind, FencingToken, Key, LockGuard, LockRequest, Locker, LossReason, Mode, OwnerId, Process, Record,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::any_engine::AnyEngine;
use crate::history::{History, Hold};
use crate::polls::poll_times;
use crate::setup::{Client, World};

mod drops;
mod histories;
mod leases;
mod once;
mod primitives;
mod reentry;
mod resizing;
mod semaphore;
mod shared;
mod waits;

pub use drops::*;
pub use histories::*;
pub use leases::*;
pub use once::*;
pub use primitives::*;
pub use reentry::*;
pub use resizing::*;
pub use semaphore::*;
pub use shared::*;
pub use waits::*;

type Granted = distlock::Result<LockGuard>;

/// Takes a lock that must become free. Fails the case instead of waiting for ever.
async fn expect_lock(world: &World, locker: &Locker, key: &Key) -> LockGuard {
    locker.lock(key).wait(world.test_limit()).await.expect("the lock becomes free")
}

/// Starts a task that waits for `key`, and returns when the task is in the queue.
async fn spawn_waiter(world: &World, client: &Client, key: &Key) -> tokio::task::JoinHandle<Granted> {
    spawn_request(client, client.locker.lock(key).wait(world.test_limit())).await
}

/// Starts a task whose request has to wait, and returns when the task is in the queue.
async fn spawn_request(client: &Client, request: LockRequest) -> tokio::task::JoinHandle<Granted> {
    let busy = client.calls.busy_so_far();
    let task = tokio::spawn(request.into_future());
    client.calls.queued(busy + 1).await;
    task
}

/// Waits longer than a heartbeat of a waiter with a long lease: on a busy machine a waiter may miss the short lease with which
/// the lock was handed over to it, and then claims at its next heartbeat.
async fn expect_granted(world: &World, task: tokio::task::JoinHandle<Granted>) -> LockGuard {
    let granted = timeout(world.test_limit() * 4, task).await.expect("in time").expect("the task did not panic");
    granted.expect("the waiter is granted the lock")
}

fn claim_of(world: &World, key: &Key, queue: bool) -> Claim {
    let record = Record::new(OwnerId::random(), Process::current(), None, world.clock.wall());
    Claim::new(key.clone(), world.ttl(), queue, Arc::new(record))
}

async fn expect_grant(engine: &dyn AnyEngine, claim: &Claim) -> Grant {
    match engine.claim(claim).await.expect("the engine replies") {
        Claimed::Granted(grant) => grant,
        Claimed::Busy(busy) => panic!("expected a grant, not {busy:?}"),
    }
}

/// Many tasks of several clients increment a counter without atomics: the sum is right only under mutual exclusion.
pub async fn one_holder_at_a_time(world: &World) {
    const TASKS: u64 = 12;
    const ROUNDS: u64 = 8;
    let key = world.key("counter");
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (key, counter, client) = (key.clone(), counter.clone(), world.client().await);
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = client.locker.lock(&key).await.expect("granted");
                let seen = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(seen + 1, Ordering::SeqCst);
                guard.unlock().await.expect("released");
            }
        });
    }
    timeout(world.test_limit() * 2, tasks.join_all()).await.expect("every task finished its rounds");
    assert_eq!(counter.load(Ordering::SeqCst), TASKS * ROUNDS);
    world.expect_nothing_left().await;
}

/// Holds, cancelled waits and drops at random; the checker judges the history.
pub async fn the_history_is_clean_under_load(world: &World) {
    record_history(world, "history", |locker, key, number| (locker.lock(key), number)).await;
}

/// Runs eight clients that acquire by turns, and checks their history. `ask` makes the request for each number and
/// returns the owner it asks for.
async fn record_history(world: &World, about: &str, ask: fn(&Locker, &Key, u32) -> (LockRequest, u32)) {
    record_history_as(world, about, History::default(), ask).await;
}

async fn record_history_as(
    world: &World,
    about: &str,
    history: History,
    ask: fn(&Locker, &Key, u32) -> (LockRequest, u32),
) {
    let key = world.key(about);
    let history = Arc::new(history);
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let (key, history, client) = (key.clone(), history.clone(), world.client().await);
        let clock = world.clock.clone();
        tasks.spawn(async move {
            for round in 0..10 {
                let asked = clock.now();
                // Every third wait is given up early, sometimes right after the grant.
                let wait = Duration::from_millis(if (number + round) % 3 == 0 { 2 } else { 60_000 });
                let (request, owner) = ask(&client.locker, &key, number);
                let Ok(granted) = timeout(wait, request.into_future()).await else { continue };
                let guard = granted.expect("granted");
                let (granted, token) = (clock.now(), guard.fencing_token().get());
                let (mode, slot) = (guard.mode(), guard.slot());
                if mode == Mode::Exclusive {
                    history.write(key.as_str(), token, true);
                }
                // Long enough for another client to enter if exclusion fails.
                tokio::time::sleep(Duration::from_millis(2)).await;
                let end = clock.now();
                match round % 2 {
                    0 => drop(guard),
                    _ => guard.unlock().await.expect("released"),
                }
                let key = key.to_string();
                history.hold(Hold { key, client: owner, mode, slot, asked, queued: None, granted, token, end });
            }
        });
    }
    timeout(world.test_limit() * 2, tasks.join_all()).await.expect("every task finished its rounds");
    assert!(history.holds() > 40, "only {} holds", history.holds());
    history.check().expect("a clean history");
    world.expect_nothing_left().await;
}

/// `try_lock` on a held lock returns `None`, not an error, and leaves no trace.
pub async fn try_lock_returns_none_while_held(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("try"));
    let guard = holder.locker.try_lock(&key).await.expect("no failure").expect("it is free");
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none());
    guard.unlock().await.expect("released");
    let guard = other.locker.try_lock(&key).await.expect("no failure").expect("it is free again");
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Clones of one locker exclude each other.
pub async fn each_clone_is_an_owner(world: &World) {
    let (client, key) = (world.client().await, world.key("clones"));
    let other = client.locker.clone();
    assert_ne!(client.locker.owner(), other.owner());
    let guard = client.locker.lock(&key).await.expect("granted");
    assert!(other.try_lock(&key).await.expect("no failure").is_none());
    let waiter = tokio::spawn(other.lock(&key).wait(world.test_limit()).into_future());
    client.calls.queued(2).await;
    guard.unlock().await.expect("released");
    expect_granted(world, waiter).await.unlock().await.expect("released");
}

/// A second request of the same owner fails at once, and the error names the way out.
pub async fn a_second_request_of_the_owner_fails_at_once(world: &World) {
    let (client, key) = (world.client().await, world.key("already"));
    let guard = client.locker.lock(&key).await.expect("granted");
    let claims = client.calls.claims.load(Ordering::SeqCst);
    let waiting = client.locker.lock(&key).await.expect_err("it has the lock");
    let trying = client.locker.try_lock(&key).await.expect_err("it has the lock");
    for error in [waiting, trying] {
        assert_eq!(error.kind(), ErrorKind::AlreadyHeld);
        let text = error.to_string();
        assert!(text.contains("locker.clone()") && text.contains(client.locker.owner().as_str()), "{text}");
    }
    assert_eq!(client.calls.claims.load(Ordering::SeqCst), claims, "nothing was sent");
    assert!(!guard.is_lost());
    guard.unlock().await.expect("released");
}

/// Re-entry is counted and keeps the token. The last unlock releases.
pub async fn reentry_counts_and_keeps_the_token(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("reentry"));
    let outer = client.locker.lock(&key).owner("req-7").reentrant().await.expect("granted");
    let inner = client.locker.clone().lock(&key).owner("req-7").reentrant().await.expect("entered again");
    let third = client.locker.try_lock(&key).owner("req-7").reentrant().await.expect("no failure").expect("entered");
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    assert_eq!(outer.fencing_token(), third.fencing_token());
    outer.unlock().await.expect("left once");
    drop(third);
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none(), "released while still inside");
    assert!(!inner.is_lost());
    inner.unlock().await.expect("released");
    let next = expect_lock(world, &other.locker, &key).await;
    next.unlock().await.expect("released");
}

/// Only its owner ends a hold.
pub async fn only_the_owner_releases(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("owner"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    let error = other.locker.unlock(&key).await.expect_err("it does not have the lock");
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    let engine = world.engine().await;
    let stranger = claim_of(world, &key, false);
    assert_eq!(engine.release(&stranger).await.expect("the engine replies"), Release::NotOurs);
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none(), "a stranger released it");
    guard.unlock().await.expect("still ours");
}

/// `unlock` by name without a hold is `NotHeld`, also after an earlier hold has ended.
pub async fn unlock_without_a_hold_is_an_error(world: &World) {
    let (client, key) = (world.client().await, world.key("not-held"));
    for _ in 0..2 {
        let error = client.locker.unlock(&key).await.expect_err("not held");
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        assert_eq!(error.key(), Some(&key));
        client.locker.lock(&key).await.expect("granted").unlock().await.expect("released");
    }
}

/// A detached hold is kept, and unlocked by name.
pub async fn a_detached_hold_is_unlocked_by_name(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("detached"));
    client.locker.lock(&key).await.expect("granted").detach();
    tokio::time::sleep(world.ttl() * 2).await;
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none(), "not kept");
    client.locker.unlock(&key).await.expect("released");
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
}

/// Claims are idempotent: a retry after a lost reply returns the same grant and token.
pub async fn a_repeated_claim_returns_the_same_grant(world: &World) {
    let (engine, key) = (world.engine().await, world.key("repeat"));
    let claim = claim_of(world, &key, true);
    let first = expect_grant(&*engine, &claim).await;
    let second = expect_grant(&*engine, &claim).await;
    assert_eq!(first.token, second.token);
    assert_eq!(engine.release(&claim).await.expect("the engine replies"), Release::Released);
    world.expect_nothing_left().await;
}

/// A duplicate release never ends the next holder's lock.
pub async fn a_repeated_release_changes_nothing(world: &World) {
    let (engine, key) = (world.engine().await, world.key("twice"));
    let claim = claim_of(world, &key, true);
    expect_grant(&*engine, &claim).await;
    assert_eq!(engine.release(&claim).await.expect("the engine replies"), Release::Released);
    let next = world.client().await;
    let guard = expect_lock(world, &next.locker, &key).await;
    assert_eq!(engine.release(&claim).await.expect("the engine replies"), Release::NotOurs);
    let third = world.client().await;
    assert!(third.locker.try_lock(&key).await.expect("no failure").is_none(), "a late release freed it");
    guard.unlock().await.expect("still ours");
}

/// Each grant's token is higher than all earlier tokens, across owners.
pub async fn tokens_rise(world: &World) {
    let (one, two, key) = (world.client().await, world.client().await, world.key("tokens"));
    let mut last = FencingToken::new(0);
    for round in 0..20 {
        let client = if round % 2 == 0 { &one } else { &two };
        let guard = client.locker.lock(&key).await.expect("granted");
        assert!(guard.fencing_token() > last, "{} after {last}", guard.fencing_token());
        last = guard.fencing_token();
        guard.unlock().await.expect("released");
    }
    // Tokens keep rising after all state of the lock was removed.
    world.expect_nothing_left().await;
    let guard = two.locker.lock(&key).await.expect("granted");
    assert!(guard.fencing_token() > last);
}

/// Names with spaces, slashes, accents, percent signs and tags are different locks; so are long ones.
pub async fn unusual_names_are_distinct_locks(world: &World) {
    let client = world.client().await;
    let stem = world.key("odd");
    let long = |end: &str| format!("{stem}{}{end}", "x".repeat(500 - stem.as_str().len()));
    let mut names: Vec<Key> =
        ["", " ", "/", "/a", "%2Fa", "a b", "ä", "a\u{308}", "日本語", "%", "..", "*", "?", "[a]"]
            .iter()
            .map(|odd| Key::new(format!("{stem}{odd}")).expect("a good name"))
            .collect();
    names.push(Key::new(format!("{stem}:{{tag}}:x")).expect("a good name"));
    names.push(Key::escape(format!("{stem}\0\n{{}}")).expect("any bytes"));
    names.extend([long("1"), long("2")].map(|name| Key::new(name).expect("a good name")));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.locker.lock(name).wait(world.test_limit()).await.expect("each is free"));
    }
    if client.locker.capabilities().inspects {
        let listed = client.locker.inspect().list(stem.as_str()).await.expect("listed");
        let listed: HashSet<_> = listed.into_iter().map(|lock| lock.key).collect();
        assert_eq!(listed, names.iter().cloned().collect::<HashSet<_>>());
    }
    for guard in guards {
        guard.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// Invalid arguments are errors of kind `InvalidInput` that name the field, and no request reaches the engine.
pub async fn bad_input_is_refused_before_anything_is_sent(world: &World) {
    let client = world.client().await;
    let lock = |name: &[u8]| client.locker.lock(name).into_future();
    let long = "x".repeat(513);
    let names: [&[u8]; 6] = [b"", long.as_bytes(), b"a\0b", b"a\nb", b"{}", b"\xff"];
    for name in names {
        let error = lock(name).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("key: "), "{error}");
    }
    let ask = || client.locker.lock("good");
    let ms = Duration::from_millis;
    for (field, request) in [
        ("ttl: ", ask().ttl(Duration::ZERO)),
        ("ttl: ", ask().ttl(ms(99))),
        ("ttl: ", ask().ttl(Duration::MAX)),
        ("wait: ", ask().wait(Duration::MAX)),
        ("retry_interval: ", ask().retry_interval(Duration::ZERO)),
        ("max_attempts: ", ask().max_attempts(0)),
        ("max_hold: ", ask().max_hold(Duration::ZERO)),
        ("renew_at: ", ask().renew_at(1.0)),
        ("owner: ", ask().owner("")),
        ("label: ", ask().label("two\nlines")),
    ] {
        let error = request.await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(field), "{field:?} is not in {error}");
    }
    assert_eq!(client.calls.total(), 0, "something was sent");
}

/// Inspection shows the holder and the waiters in queue order.
pub async fn inspect_shows_holder_and_waiters(world: &World) {
    let (client, key) = (world.client().await, world.key("inspect"));
    let inspect = client.locker.inspect();
    assert!(inspect.get(&key).await.expect("shown").is_none());
    let guard = client.locker.lock(&key).owner("holder").label("eod").await.expect("granted");
    let mut waiters = Vec::new();
    for (number, name) in ["first", "second", "third"].into_iter().enumerate() {
        waiters.push(tokio::spawn(client.locker.lock(&key).owner(name).into_future()));
        client.calls.queued(number as u64 + 1).await;
    }
    let lock = inspect.get(&key).await.expect("shown").expect("it is there");
    let holder = lock.holder().expect("it is held");
    let record = holder.record.clone().expect("it is one of ours");
    assert_eq!((record.owner.as_str(), record.label.as_deref()), ("holder", Some("eod")));
    assert_eq!(record.process.pid, std::process::id());
    assert_eq!(holder.token, Some(guard.fencing_token()));
    assert_eq!(holder.ttl_left.is_some(), client.locker.capabilities().leases);
    let order: Vec<_> = lock.waiters.iter().map(|waiter| waiter.owner.as_str()).collect();
    assert_eq!(order, ["first", "second", "third"]);
    let listed = inspect.list(key.as_str()).await.expect("listed");
    assert_eq!(listed.iter().map(|lock| &lock.key).collect::<Vec<_>>(), [&key]);
    for waiter in waiters {
        waiter.abort();
        assert!(waiter.await.is_err(), "it was still waiting");
    }
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
    assert!(inspect.list(key.as_str()).await.expect("listed").is_empty());
}

/// After a forced release the holder learns of the loss, and the lock is free for the next client.
pub async fn force_release_notifies_the_holder(world: &World) {
    let (holder, operator, key) = (world.client().await, world.client().await, world.key("force"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    operator.locker.inspect().force_release(&key, guard.fencing_token(), "stuck").await.expect("forced");
    let reason = timeout(world.test_limit(), guard.lost()).await.expect("notified");
    assert!(matches!(reason, LossReason::Broken | LossReason::Revoked), "{reason:?}");
    let next = expect_lock(world, &operator.locker, &key).await;
    assert!(next.fencing_token() > guard.fencing_token());
    drop(guard);
    next.check().expect("the old guard does not release the new hold");
    next.unlock().await.expect("released");
}

/// A forced release with the wrong token or without a reason is refused.
pub async fn force_release_needs_the_right_token(world: &World) {
    let (holder, operator, key) = (world.client().await, world.client().await, world.key("force-token"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    let inspect = operator.locker.inspect();
    let wrong = FencingToken::new(guard.fencing_token().get() + 1);
    let error = inspect.force_release(&key, wrong, "stuck").await.expect_err("wrong token");
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    let error = inspect.force_release(&key, guard.fencing_token(), " ").await.expect_err("no reason");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    guard.unlock().await.expect("still ours");
}

/// An acquire dropped after any number of polls leaves no trace, whether the lock was free or held.
pub async fn acquire_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("polls"));
    for polls in 0..8 {
        drop(drop_after(polls, client.locker.lock(&key).into_future()).await);
        expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    }
    for polls in 0..4 {
        let guard = expect_lock(world, &other.locker, &key).await;
        drop(drop_after(polls, client.locker.lock(&key).into_future()).await);
        guard.unlock().await.expect("released");
    }
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A `try_lock` dropped after any number of polls leaves no trace.
pub async fn try_lock_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("try-polls"));
    for polls in 0..8 {
        drop(drop_after(polls, client.locker.try_lock(&key).into_future()).await);
        expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// An unlock dropped after any number of polls still releases.
pub async fn unlock_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("unlock-polls"));
    for polls in 0..8 {
        let guard = expect_lock(world, &client.locker, &key).await;
        let _ = poll_times(polls, guard.unlock()).await;
        let asked = world.now();
        expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
        assert!(world.now().since(asked) < world.test_limit());
    }
    for polls in 0..8 {
        expect_lock(world, &client.locker, &key).await.detach();
        if poll_times(polls, client.locker.unlock(&key).into_future()).await.is_none() && polls == 0 {
            client.locker.unlock(&key).await.expect("never polled, so still held");
        }
        expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// An `extend` dropped after any number of polls does not harm the hold: only a reply moves the deadline, and no lease
/// gets shorter.
pub async fn extend_dropped_at_every_poll(world: &World) {
    let (client, other) = (world.lasting_client().await, world.client().await);
    let mut guards = Vec::new();
    for polls in 0..8 {
        let guard = expect_lock(world, &client.locker, &world.key("extend-polls")).await;
        let before = guard.deadline();
        let answer = drop_after(polls, guard.extend(Duration::from_secs(3600))).await;
        assert!(answer.is_some() || guard.deadline() == before, "{polls} polls: the deadline moved without a reply");
        let _ = drop_after(polls, guard.extend(world.ttl())).await;
        guards.push(guard);
    }
    tokio::time::sleep(world.ttl()).await;
    for guard in guards {
        assert!(other.locker.try_lock(guard.key()).await.expect("no failure").is_none(), "its lease has ended");
        guard.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// Dropping a guard releases soon, not only when the lease ends.
pub async fn a_dropped_guard_releases(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("drop"));
    drop(client.locker.lock(&key).ttl(Duration::from_secs(600)).await.expect("granted"));
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A guard dropped on a plain thread neither panics nor blocks, and releases.
pub async fn a_guard_dropped_outside_a_runtime_releases(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("thread"));
    let guard = client.locker.lock(&key).ttl(Duration::from_secs(600)).await.expect("granted");
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
}

/// A hold survives the shutdown of the runtime in which it was taken, and its guard releases it.
pub async fn a_guard_outlives_its_runtime(world: &World) {
    let key = world.key("runtime");
    let guard = std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let guard = runtime.block_on(async { world.client().await.locker.lock(&key).await.expect("granted") });
            runtime.shutdown_background();
            guard
        });
        elsewhere.join().expect("no panic")
    });
    tokio::time::sleep(world.ttl() * 2).await;
    guard.check().expect("renewed without the runtime");
    let other = world.client().await;
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none());
    drop(guard);
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
}

/// A panic in the critical section releases the lock.
pub async fn a_panic_inside_releases(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("panic"));
    let request = client.locker.lock(&key).ttl(Duration::from_secs(600)).into_future();
    let task = tokio::spawn(async move {
        let _guard = request.await.expect("granted");
        std::panic::resume_unwind(Box::new("the work failed"));
    });
    assert!(task.await.expect_err("it panicked").is_panic());
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
}

/// `close` releases all holds, notifies their guards, and ends the locker and its clones.
pub async fn close_releases_everything(world: &World) {
    let (client, other) = (world.client().await, world.client().await);
    let keys = [world.key("close"), world.key("close"), world.key("close")];
    let ttl = Duration::from_secs(600);
    let guard = client.locker.lock(&keys[0]).ttl(ttl).await.expect("granted");
    client.locker.lock(&keys[1]).ttl(ttl).await.expect("granted").detach();
    let clone = client.locker.clone();
    let theirs = clone.lock(&keys[2]).ttl(ttl).await.expect("granted");
    client.locker.close().await.expect("closed");
    for guard in [&guard, &theirs] {
        assert_eq!(timeout(world.test_limit(), guard.lost()).await.expect("notified"), LossReason::Closed);
    }
    for key in &keys {
        let next = other.locker.try_lock(key).await.expect("no failure").expect("released by close");
        next.unlock().await.expect("released");
    }
    for error in [
        clone.lock(&keys[0]).await.expect_err("closed"),
        clone.try_lock(&keys[0]).await.expect_err("closed"),
        client.locker.unlock(&keys[1]).await.expect_err("closed"),
        client.locker.inspect().list("").await.expect_err("closed"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    client.locker.close().await.expect("closing twice is fine");
    world.expect_nothing_left().await;
}

/// A thousand tasks of one process wait for the same lock; each gets it once.
pub async fn a_thousand_tasks_take_turns(world: &World) {
    let (client, key) = (world.client().await, world.key("thousand"));
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..1000 {
        let (locker, key, tokens) = (client.locker.clone(), key.clone(), tokens.clone());
        tasks.spawn(async move {
            let guard = locker.lock(&key).ttl(Duration::from_secs(60)).await.expect("granted");
            tokens.lock().unwrap().push(guard.fencing_token());
            guard.unlock().await.expect("released");
        });
    }
    // Unbounded here, since a busy machine may take long; the suite ends a case that hangs.
    tasks.join_all().await;
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 1000);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens in the order of the grants");
}
