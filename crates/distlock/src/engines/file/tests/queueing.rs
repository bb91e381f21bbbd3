//! The queue, over tasks and processes.

use tokio::sync::mpsc;

use super::*;
use crate::engines::file::claim::{UNNOTIFIED_FIRST_POLL, UNNOTIFIED_OTHERS_POLL};

fn waiters(info: Option<LockInfo>) -> Vec<String> {
    info.map_or(Vec::new(), |info| info.waiters.iter().map(|record| record.owner.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_are_served_in_the_order_in_which_they_came() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let ours = claim(&key, "us");
    let mut last = granted(engine.claim(&ours).await).token.get();
    let owners = ["p0", "p1", "p2", "p3"];
    let mut processes: Vec<Second> = Vec::new();
    for owner in owners {
        let mut process = Second::start(scratch.path(), key.as_str(), owner);
        process.waits();
        processes.push(process);
    }
    assert_eq!(waiters(engine.get(&key).await.unwrap()), owners);
    engine.release(&ours).await.unwrap();
    for (at, process) in processes.iter_mut().enumerate() {
        let token = process.granted();
        assert!(token > last);
        last = token;
        assert_eq!(waiters(engine.get(&key).await.unwrap()), owners[at + 1..], "the rest still waits");
        process.release();
    }
    assert_eq!(scratch.names(), ["x"], "no ticket is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_is_skipped_and_leaves_nothing() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let ours = claim(&key, "us");
    granted(engine.claim(&ours).await);
    let mut killed = Second::start(scratch.path(), key.as_str(), "killed");
    killed.waits();
    let mut next = Second::start(scratch.path(), key.as_str(), "next");
    next.waits();
    killed.kill();
    assert_eq!(waiters(engine.get(&key).await.unwrap()), ["next"]);
    engine.release(&ours).await.unwrap();
    next.granted();
    next.release();
    assert_eq!(scratch.names(), ["x"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_predecessor_is_noticed_by_the_hint_alone() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let holder = claim(&key, "holder");
    granted(engine.claim(&holder).await);
    let mut killed = Second::start(scratch.path(), key.as_str(), "killed");
    killed.waits();
    let ours = claim(&key, "us");
    busy(engine.claim(&ours).await);
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { timeout(AT_LAST, engine.wait(&ours)).await.expect("a hint") }
    });
    killed.kill();
    engine.release(&holder).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Wake::Granted(_)));
}

#[tokio::test]
async fn nobody_barges_past_a_waiter_though_the_lock_is_free() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let (holder, waiter) = (claim(&key, "holder"), claim(&key, "waiter"));
    granted(engine.claim(&holder).await);
    busy(engine.claim(&waiter).await);
    engine.release(&holder).await.unwrap();
    let other = FileBackend::host(scratch.path());
    busy(other.claim(&try_claim(&key, "barges")).await);
    let late = claim(&key, "late");
    busy(other.claim(&late).await);
    granted(engine.claim(&waiter).await);
    engine.release(&waiter).await.unwrap();
    granted(other.claim(&late).await);
    assert_eq!(scratch.names(), ["a.lock"]);
}

#[tokio::test]
async fn a_waiter_that_hangs_is_passed_over_until_it_goes_on() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let (clock, hand) = Clock::manual();
    let other = FileBackend::host(scratch.path()).with_clock(clock);
    let key = Key::new("a").unwrap();
    let (holder, hangs, next) = (claim(&key, "holder"), claim(&key, "hangs"), claim(&key, "next"));
    granted(engine.claim(&holder).await);
    busy(engine.claim(&hangs).await);
    busy(other.claim(&next).await);
    hand.jump(Duration::from_millis(9_900));
    busy(other.claim(&next).await);
    // It goes on, so the count begins again.
    busy(engine.claim(&hangs).await);
    hand.jump(Duration::from_millis(9_900));
    busy(other.claim(&next).await);
    engine.release(&holder).await.unwrap();
    hand.jump(Duration::from_millis(9_900));
    busy(other.claim(&next).await);
    hand.jump(Duration::from_millis(200));
    granted(other.claim(&next).await);
    busy(engine.claim(&hangs).await);
    other.release(&next).await.unwrap();
    granted(engine.claim(&hangs).await);
    assert_eq!(scratch.names(), ["a.lock"]);
}

#[tokio::test]
async fn a_waiter_that_hangs_keeps_nobody_out_of_a_free_lock_who_asks_but_once() {
    for was_stopped_at_once in [false, true] {
        let scratch = Scratch::new();
        let (clock, hand) = Clock::manual();
        let engine = FileBackend::host(scratch.path()).with_clock(clock);
        let key = Key::new("a").unwrap();
        let (holder, hangs, tries) = (claim(&key, "holder"), claim(&key, "hangs"), try_claim(&key, "tries"));
        granted(engine.claim(&holder).await);
        busy(engine.claim(&hangs).await);
        if was_stopped_at_once {
            let mut tickets = std::fs::read_dir(scratch.path().join("a.q")).unwrap().map(|entry| entry.unwrap().path());
            let ticket = tickets.find(|path| path.extension().is_none()).unwrap();
            // Its first beat did not come.
            std::fs::File::open(ticket).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
        }
        engine.release(&holder).await.unwrap();
        hand.jump(Duration::from_millis(9_900));
        busy(engine.claim(&tries).await);
        hand.jump(Duration::from_millis(200));
        granted(engine.claim(&tries).await);
        engine.release(&tries).await.unwrap();
        granted(engine.claim(&hangs).await);
        assert_eq!(scratch.names(), ["a.lock"]);
    }
}

#[tokio::test]
async fn a_release_is_a_hint_to_the_first_alone_and_its_grant_to_the_next_alone() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let holder = claim(&key, "holder");
    granted(engine.claim(&holder).await);
    let claims: [Claim; 4] = std::array::from_fn(|number| claim(&key, &format!("waiter {number}")));
    for claim in &claims {
        busy(engine.claim(claim).await);
    }
    let waiters = claims.each_ref().map(|claim| engine.0.waiters.get(claim.attempt).unwrap());
    let hinted = async |number: usize| timeout(Duration::from_millis(30), waiters[number].hint()).await.is_ok();
    engine.release(&holder).await.unwrap();
    timeout(AT_LAST, waiters[0].hint()).await.expect("a hint to the first");
    for number in 0..4 {
        assert!(!hinted(number).await, "waiter {number}");
    }
    granted(engine.claim(&claims[0]).await);
    timeout(AT_LAST, waiters[1].hint()).await.expect("a hint to the next");
    assert!(!hinted(2).await && !hinted(3).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_a_waiter_gets_it_by_polling() {
    let scratch = Scratch::new();
    // Never attached, so there is no runtime to listen on; as when a limit leaves no inotify.
    let engine = FileBackend::host(scratch.path());
    let key = Key::new("a").unwrap();
    let (holder, first, second) = (claim(&key, "holder"), claim(&key, "first"), claim(&key, "second"));
    granted(engine.claim(&holder).await);
    assert_eq!(busy(engine.claim(&first).await).poll_after, Some(UNNOTIFIED_FIRST_POLL));
    assert_eq!(busy(engine.claim(&second).await).poll_after, Some(UNNOTIFIED_OTHERS_POLL));
    let waiting = acquire_in_background(&engine, &first).await;
    engine.release(&holder).await.unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn a_change_between_the_claim_and_the_wait_is_not_missed() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let (holder, waiter) = (claim(&key, "holder"), claim(&key, "waiter"));
    granted(engine.claim(&holder).await);
    busy(engine.claim(&waiter).await);
    engine.release(&holder).await.unwrap();
    let woken = timeout(AT_LAST, engine.wait(&waiter)).await.expect("it ends at once");
    let Wake::Granted(grant) = woken else { panic!("{woken:?}") };
    assert_eq!(granted(engine.claim(&waiter).await).token, grant.token);
}

#[tokio::test]
async fn a_dropped_wait_keeps_the_place_and_a_release_gives_it_up() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let (holder, dropped, next) = (claim(&key, "holder"), claim(&key, "dropped"), claim(&key, "next"));
    granted(engine.claim(&holder).await);
    busy(engine.claim(&dropped).await);
    busy(engine.claim(&next).await);
    for polls in 0..3 {
        let mut wait = Box::pin(engine.wait(&dropped));
        for _ in 0..polls {
            assert!(timeout(Duration::ZERO, &mut wait).await.is_err());
        }
    }
    assert_eq!(waiters(engine.get(&key).await.unwrap()), ["dropped", "next"]);
    assert_eq!(engine.release(&dropped).await.unwrap(), Release::NotOurs);
    assert_eq!(waiters(engine.get(&key).await.unwrap()), ["next"]);
    engine.release(&holder).await.unwrap();
    granted(engine.claim(&next).await);
    assert_eq!(scratch.names(), ["a.lock"]);
}

#[tokio::test]
async fn removing_the_queue_by_hand_costs_the_place_but_not_the_lock() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let (holder, waiter) = (claim(&key, "holder"), claim(&key, "waiter"));
    granted(engine.claim(&holder).await);
    busy(engine.claim(&waiter).await);
    fs::remove_dir_all(scratch.file("a.q")).unwrap();
    busy(engine.claim(&waiter).await);
    assert_eq!(waiters(engine.get(&key).await.unwrap()), ["waiter"]);
    engine.release(&holder).await.unwrap();
    granted(engine.claim(&waiter).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_tasks_get_it_in_order_by_hints_with_few_descriptors() {
    const TASKS: usize = 300;
    let scratch = Scratch::new();
    // Its clock stands still: on a machine that is busy for long, no waiter counts as stuck.
    let engine = FileBackend::host(scratch.path()).with_clock(Clock::manual().0);
    engine.attach(Attachment::standalone(&Handle::current()));
    let key = Key::new("a").unwrap();
    let holder = claim(&key, "holder");
    granted(engine.claim(&holder).await);
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let (served, mut order) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let (engine, served, ours) = (engine.clone(), served.clone(), claim(&key, &format!("task {number}")));
        busy(engine.claim(&ours).await);
        tasks.push(tokio::spawn(async move {
            // No poll: each must be woken.
            let Wake::Granted(grant) = timeout(AT_LAST, engine.wait(&ours)).await.expect("a hint") else {
                panic!("an error")
            };
            served.send((number, grant.token)).unwrap();
            engine.release(&ours).await.unwrap();
        }));
    }
    // Other tests of this process open files too, but not one for each of these tasks.
    assert!(open() < before + TASKS / 2, "{} after {before}", open());
    engine.release(&holder).await.unwrap();
    let mut last = FencingToken::new(0);
    for number in 0..TASKS {
        let (next, token) = timeout(AT_LAST, order.recv()).await.unwrap().unwrap();
        assert_eq!(next, number);
        assert!(token > last);
        last = token;
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(scratch.names(), ["a.lock"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_at_once_never_overlap_and_leave_nothing() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let ours = claim(&key, "us");
    granted(engine.claim(&ours).await);
    let mut processes: Vec<Second> =
        (0..6).map(|number| Second::start(scratch.path(), key.as_str(), &format!("p{number}"))).collect();
    processes.iter_mut().for_each(Second::waits);
    engine.release(&ours).await.unwrap();
    let mut tokens = Vec::new();
    // In which order they came only the queue knows.
    while let Some(info) = engine.get(&key).await.unwrap() {
        let Some(holder) = info.holder() else { continue };
        // Locked, and on a busy machine not yet written down.
        let Some(record) = &holder.record else { continue };
        let pid = record.process.pid;
        let process = processes.iter_mut().find(|process| process.pid() == pid).unwrap();
        tokens.push(process.granted());
        process.release();
    }
    assert_eq!(tokens.len(), 6);
    assert!(tokens.is_sorted());
    assert_eq!(scratch.names(), ["x"]);
}
