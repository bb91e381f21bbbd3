//! Jobs that run once per tick: what does not depend on the engine.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{
    ClockSkew, Error, ErrorKind, Locker, MAX_PERIOD, MAX_TICKS, OnceGuard, OnceOutcome, OnceRequest, Result, Tick,
};

const HOUR: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(30);

fn locker(store: &Store) -> Locker {
    Locker::new(Memory::on(store)).unwrap()
}

async fn expect_run(request: OnceRequest) -> OnceGuard {
    match request.await.unwrap() {
        OnceOutcome::Run(run) => run,
        other => panic!("expected to run, not {other:?}"),
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_bad_tick_is_refused_before_anything_is_sent() {
    let store = Store::new();
    let locker = locker(&store);
    let requests: [(OnceRequest, &str); 9] = [
        (locker.once("job").every(Duration::ZERO), "every: 0ns is not from 1s"),
        (locker.once("job").every(Duration::from_millis(999)), "every: 999ms is not from 1s"),
        (locker.once("job").every(MAX_PERIOD + Duration::from_secs(1)), "every: "),
        (locker.once("job").tick(""), "tick: the text is empty"),
        (locker.once("job").tick("x".repeat(257)), "tick: 257 bytes"),
        (locker.once("job").tick("a\nb"), "control character"),
        (locker.once("job").tick("a").attempts(0), "attempts: 0 runs"),
        (locker.once("job").tick("a").keep(Duration::ZERO), "keep: "),
        (locker.once("job").tick("a").ttl(Duration::ZERO), "ttl: "),
    ];
    for (request, problem) in requests {
        // A request that is sent would fail otherwise.
        store.script(Operation::Inspect, Fault::Refuse);
        let error = request.await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(problem) && error.to_string().contains("job"), "{error}");
    }
    assert!(locker.once("").tick("a").await.is_err());
}

#[tokio::test]
async fn a_wait_that_is_over_is_a_timeout() {
    let store = Store::new();
    let (first, second) = (locker(&store), locker(&store));
    let run = expect_run(first.once("job").tick("a")).await;
    let waited = second.once("job").tick("a").wait(Duration::from_millis(20)).await;
    let error = waited.map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Timeout && error.holder().is_some(), "{error}");
    run.failed().await.unwrap();
}

/// Each request of a run, and each of its faults: a tick is done only if its run was told so or may have been, at most as many
/// runs are started as allowed, and the next request finds out.
#[tokio::test]
async fn a_fault_at_every_step_neither_loses_nor_doubles_a_tick() {
    let faults = [Fault::LoseReply, Fault::LoseRequest, Fault::Refuse];
    let operations = [Operation::Inspect, Operation::Claim, Operation::NoteTick, Operation::Release];
    for (fault, operation) in faults.iter().flat_map(|fault| operations.map(|operation| (*fault, operation))) {
        for skipped in 0..3 {
            let store = Store::new();
            let (first, second) = (locker(&store), locker(&store));
            for _ in 0..skipped {
                store.script(operation, Fault::DelayReply(Duration::ZERO));
            }
            store.script(operation, fault);
            let ran = async {
                let run = match first.once("job").tick("a").attempts(1).await? {
                    OnceOutcome::Run(run) => run,
                    other => panic!("nobody else asks: {other:?}"),
                };
                run.done().await
            };
            let ran = ran.await;
            let about = format!("{fault:?} of {operation:?} {skipped}: {ran:?}");
            // What was left over belongs to requests that were not made.
            let outcome = loop {
                match second.once("job").tick("a").attempts(1).wait(LONG).await {
                    Err(error) if error.is_retryable() => {}
                    outcome => break outcome.unwrap(),
                }
            };
            match (&ran, &outcome) {
                (Ok(_), OnceOutcome::Done { .. }) => {}
                // The first request has failed before it was counted.
                (Err(_), OnceOutcome::Run(run)) => assert_eq!(run.note().starts, 1, "{about}"),
                (Err(_), OnceOutcome::Exhausted { .. }) => {}
                _ => panic!("{about}, then {outcome:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_start_without_a_reply_runs_nothing() {
    let store = Store::new();
    let (first, second) = (locker(&store), locker(&store));
    store.script(Operation::NoteTick, Fault::Hang);
    let starting = tokio::spawn(first.once("job").tick("a").ttl(Duration::from_secs(1)).watchdog(false).into_future());
    let error = tokio::time::timeout(LONG, starting).await.unwrap().unwrap().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("unknown"), "{error}");
    expect_run(second.once("job").tick("a").attempts(1).wait(LONG)).await.done().await.unwrap();
}

#[tokio::test]
async fn an_end_without_a_reply_is_unknown_and_the_next_request_finds_out() {
    let store = Store::new();
    let (first, second) = (locker(&store), locker(&store));
    let run = expect_run(first.once("job").tick("a").ttl(Duration::from_secs(1)).watchdog(false)).await;
    store.script(Operation::NoteTick, Fault::DelayReply(LONG));
    let error = tokio::time::timeout(LONG, run.done()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    match second.once("job").tick("a").wait(LONG).await.unwrap() {
        OnceOutcome::Done { note, .. } => assert_eq!(note.starts, 1),
        other => panic!("it was carried out: {other:?}"),
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_runs_no_tick_again() {
    let store = Store::new();
    let locker = locker(&store);
    store.set_time(at(1_000 * 3600 + 10));
    expect_run(locker.once("job").every(HOUR)).await.done().await.unwrap();
    store.set_time(at(1_001 * 3600 + 10));
    let later = expect_run(locker.once("job").every(HOUR)).await.done().await.unwrap();
    assert_eq!(later.tick, Tick::Period { start_ms: 1_001 * 3_600_000, length_ms: 3_600_000 });
    store.set_time(at(1_000 * 3600 + 20));
    assert!(matches!(locker.once("job").every(HOUR).await.unwrap(), OnceOutcome::Done { .. }));
    assert_eq!(locker.inspect().ticks("job").await.unwrap().len(), 2);
    store.set_time(at(1_003 * 3600));
    assert!(locker.inspect().ticks("job").await.unwrap().is_empty(), "both are forgotten");
}

#[tokio::test]
async fn a_tick_that_ends_during_the_wait_is_told_or_the_next_one_runs() {
    for succeeds in [true, false] {
        let store = Store::new();
        let (first, second) = (locker(&store), locker(&store));
        store.set_time(at(1_000 * 3600));
        let run = expect_run(first.once("job").every(HOUR)).await;
        let asked = run.note().tick.clone();
        let waiting = tokio::spawn(second.once("job").every(HOUR).wait(LONG).into_future());
        while second.inspect().get("job").await.unwrap().is_none_or(|lock| lock.waiters.is_empty()) {
            tokio::task::yield_now().await;
        }
        store.set_time(at(1_001 * 3600));
        match succeeds {
            true => drop(run.done().await.unwrap()),
            false => run.failed().await.unwrap(),
        }
        match waiting.await.unwrap().unwrap() {
            OnceOutcome::Done { note, .. } if succeeds => assert_eq!(note.tick, asked),
            OnceOutcome::Run(run) if !succeeds => {
                assert!(run.note().tick > asked && run.note().starts == 1, "{:?}", run.note());
            }
            other => panic!("{succeeds}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_machine_with_another_clock_is_told_and_agrees_on_the_tick() {
    let store = Store::new();
    let locker = locker(&store);
    for (offset, is_ahead) in [(7_200, true), (-7_200_i64, false)] {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let engine_s = now.checked_add_signed(-offset).unwrap();
        store.set_time(at(engine_s));
        let outcome = locker.once(format!("job {offset}")).every(HOUR).await.unwrap();
        match outcome.skew() {
            Some(ClockSkew::Ahead(by)) if is_ahead => assert!(by >= 2 * HOUR, "{by:?}"),
            Some(ClockSkew::Behind(by)) if !is_ahead => assert!(by >= 2 * HOUR - LONG, "{by:?}"),
            other => panic!("{offset}: {other:?}"),
        }
        assert!(outcome.skew().unwrap().to_string().starts_with("this machine's clock is 7"), "{:?}", outcome.skew());
        let OnceOutcome::Run(run) = outcome else { panic!("{outcome:?}") };
        assert_eq!(run.note().tick, Tick::at(engine_s * 1000, HOUR));
    }
    store.set_time(SystemTime::now());
    assert_eq!(locker.once("well").every(HOUR).await.unwrap().skew(), None);
}

#[tokio::test]
async fn one_lock_has_room_for_many_ticks_and_refuses_more() {
    let store = Store::new();
    let locker = locker(&store);
    for number in 0..MAX_TICKS {
        expect_run(locker.once("job").tick(number.to_string())).await.done().await.unwrap();
    }
    let error = locker.once("job").tick("one more").await.map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("1000"), "{error}");
    locker.lock("job").as_new_owner().wait(LONG).await.expect("the lock is free").unlock().await.unwrap();
    assert!(matches!(locker.once("job").tick("7").await.unwrap(), OnceOutcome::Done { .. }), "none was forgotten");
    expect_run(locker.once("other").tick("one more")).await.done().await.unwrap();
}

#[tokio::test]
async fn work_marks_its_tick_as_done_only_when_it_succeeds() {
    let store = Store::new();
    let locker = locker(&store);
    let failed: Result<OnceOutcome<()>> =
        locker.once("job").tick("a").run(async |_| Err(Error::unavailable("no disk"))).await;
    assert!(failed.unwrap_err().to_string().contains("no disk"));
    let request = locker.once("job").tick("a").wait(LONG);
    let broken = request.run(async |run| {
        locker.inspect().force_release("job", run.guard().fencing_token(), "a test").await?;
        std::future::pending::<Result<()>>().await
    });
    let error = tokio::time::timeout(LONG, broken).await.unwrap().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let ran = locker.once("job").tick("a").run(async |run| Ok::<_, Error>(run.note().starts)).await.unwrap();
    assert!(matches!(ran, OnceOutcome::Run(3)), "{ran:?}");
    let told = locker.once("job").tick("a").run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert!(matches!(told, OnceOutcome::Done { .. }), "{told:?}");
}
