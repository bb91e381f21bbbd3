//! Jobs that run once per tick.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock::{ErrorKind, Key, LossReason, OnceGuard, OnceOutcome, OnceRequest, Tick, TickNote};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::drops::drop_after;
use super::{claim_of, expect_grant};
use crate::setup::{Client, World};

const HOUR: Duration = Duration::from_secs(3600);

/// Requests a run of the tick "1" and waits for one that is under way.
fn ask(world: &World, client: &Client, key: &Key) -> OnceRequest {
    client.locker.once(key).tick("1").wait(world.test_limit())
}

async fn expect_run(request: OnceRequest) -> OnceGuard {
    match request.await.expect("an outcome") {
        OnceOutcome::Run(run) => run,
        other => panic!("expected to run, not {other:?}"),
    }
}

async fn expect_done(request: OnceRequest) -> TickNote {
    match request.await.expect("an outcome") {
        OnceOutcome::Done { note, .. } => note,
        other => panic!("expected a tick that is done, not {other:?}"),
    }
}

/// The first request of a tick runs. When the run has succeeded, the tick is done for every client, with a note of the run,
/// and no lock is left held. Other ticks and other locks are not done.
pub async fn a_tick_runs_once(world: &World) {
    let (first, second, key) = (world.lasting_client().await, world.lasting_client().await, world.key("once"));
    let run = expect_run(first.locker.once(&key).every(HOUR).label("the first")).await;
    let token = run.guard().fencing_token();
    run.guard().check().expect("held");
    let done = run.done().await.expect("done");
    assert!(done.is_done() && done.starts == 1 && done.token == token, "{done:?}");
    assert!(matches!(done.tick, Tick::Period { length_ms: 3_600_000, start_ms } if start_ms % 3_600_000 == 0));
    assert_eq!(done.record.label.as_deref(), Some("the first"));

    for client in [&first, &second] {
        let claims = client.calls.claims.load(Ordering::SeqCst);
        assert_eq!(expect_done(client.locker.once(&key).every(HOUR)).await, done);
        assert_eq!(client.calls.claims.load(Ordering::SeqCst), claims, "told without taking the lock");
    }
    let inspect = second.locker.inspect();
    assert_eq!(inspect.ticks(&key).await.expect("notes"), std::slice::from_ref(&done));
    assert_eq!(inspect.list_ticks("case:once").await.expect("notes"), [(key.clone(), vec![done])]);
    assert!(inspect.list_ticks("other").await.expect("notes").is_empty());
    if world.capabilities().await.inspects {
        assert!(inspect.list("").await.expect("a list").is_empty(), "a note is no lock");
        assert!(inspect.get(&key).await.expect("a look").is_none());
    }
    expect_run(second.locker.once(&key).every(2 * HOUR)).await.done().await.expect("another period is another tick");
    expect_run(second.locker.once(&key).tick("1")).await.done().await.expect("so is a name");
    expect_run(second.locker.once(world.key("once")).every(HOUR)).await.done().await.expect("and another lock");
}

/// A run that ends without success is repeated, as often as the request allows; the runs are counted.
pub async fn a_failed_run_is_repeated(world: &World) {
    let (first, second, key) = (world.lasting_client().await, world.lasting_client().await, world.key("again"));
    drop(expect_run(ask(world, &first, &key)).await);
    match ask(world, &second, &key).attempts(1).await.expect("an outcome") {
        OnceOutcome::Exhausted { note, .. } => assert!(!note.is_done() && note.starts == 1, "{note:?}"),
        other => panic!("a second run was started: {other:?}"),
    }
    let run = expect_run(ask(world, &second, &key).attempts(2)).await;
    assert_eq!(run.note().starts, 2);
    run.failed().await.expect("released");
    let request = ask(world, &first, &key);
    let failed: Result<OnceOutcome<()>, distlock::Error> =
        request.run(async |_| Err(distlock::Error::unavailable("the work failed"))).await;
    assert_eq!(failed.expect_err("the work's error").kind(), ErrorKind::Unavailable);
    let request = ask(world, &second, &key).attempts(4);
    let ran = request.run(async |run| Ok::<_, distlock::Error>(run.note().starts)).await.expect("an outcome");
    assert!(matches!(ran, OnceOutcome::Run(4)), "{ran:?}");
    assert_eq!(expect_done(ask(world, &first, &key).attempts(1)).await.starts, 4);
}

/// While a run is under way, a request is told so, or waits for its end: then the tick is done, or the request runs.
pub async fn a_run_under_way_is_reported_or_awaited(world: &World) {
    let (first, second, key) = (world.lasting_client().await, world.lasting_client().await, world.key("running"));
    for succeeds in [false, true] {
        let run = expect_run(ask(world, &first, &key)).await;
        match second.locker.once(&key).tick("1").await.expect("an outcome") {
            OnceOutcome::Running { holder, .. } => {
                let owner = holder.and_then(|holder| Some(holder.record?.owner.clone()));
                assert_eq!(owner.as_ref(), Some(first.locker.owner()), "the holder is named");
            }
            other => panic!("expected a run under way, not {other:?}"),
        }
        let busy = second.calls.busy_so_far();
        let waiting = tokio::spawn(ask(world, &second, &key).into_future());
        second.calls.queued(busy + 1).await;
        match succeeds {
            true => drop(run.done().await.expect("done")),
            false => run.failed().await.expect("released"),
        }
        let outcome = timeout(world.test_limit(), waiting).await.expect("in time").expect("no panic");
        match outcome.expect("an outcome") {
            OnceOutcome::Done { note, .. } if succeeds => assert_eq!(&note.record.owner, first.locker.owner()),
            OnceOutcome::Run(run) if !succeeds => run.failed().await.expect("released"),
            other => panic!("succeeds: {succeeds}, {other:?}"),
        }
    }
}

/// A run whose process dies is repeated when its lease is over, and its late success counts for nothing.
pub async fn a_crashed_run_is_repeated_after_one_lease(world: &World) {
    let (first, second, key) = (world.client().await, world.client().await, world.key("crashed"));
    let crashed = expect_run(ask(world, &first, &key)).await;
    first.calls.cut();
    let run = expect_run(ask(world, &second, &key)).await;
    assert_eq!(run.note().starts, 2);
    assert!(run.guard().fencing_token() > crashed.guard().fencing_token());
    let error = timeout(world.test_limit(), crashed.done()).await.expect("in time").expect_err("its lock is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(run.done().await.expect("done").starts, 2);
}

/// A run that has lost its lock cannot mark the tick as done.
pub async fn a_lost_run_is_not_done(world: &World) {
    let (first, second, key) = (world.lasting_client().await, world.lasting_client().await, world.key("lost"));
    let run = expect_run(ask(world, &first, &key)).await;
    second.locker.inspect().force_release(&key, run.guard().fencing_token(), "a test").await.expect("broken");
    let error = run.done().await.expect_err("it is lost");
    assert_eq!((error.kind(), error.loss_reason().is_some()), (ErrorKind::Lost, true), "{error}");
    let run = expect_run(ask(world, &second, &key)).await;
    let token = run.guard().fencing_token();
    let request = ask(world, &first, &key);
    let waiting = tokio::spawn(request.into_future());
    let lost = run.guard().lost();
    assert!(timeout(Duration::from_millis(20), lost).await.is_err(), "a new run is not disturbed");
    run.done().await.expect("done");
    match timeout(world.test_limit(), waiting).await.expect("in time").expect("no panic").expect("an outcome") {
        OnceOutcome::Done { note, .. } => assert_eq!((note.token, note.starts), (token, 2)),
        other => panic!("{other:?}"),
    }
    assert_ne!(error.loss_reason(), Some(&LossReason::Expired), "by the engine's word, not by its own clock");
}

/// The engine stores a note only for the attempt that holds the lock, or if it has exactly this note already. A tick that is
/// done is never started again.
pub async fn only_the_holder_notes_a_tick(world: &World) {
    let (engine, key) = (world.engine().await, world.key("noted"));
    let (holder, stranger) = (claim_of(world, &key, false), claim_of(world, &key, false));
    let now_ms = engine.ticks(&key, None).await.expect("notes").now_ms;
    assert!(now_ms > 1_600_000_000_000, "the time: {now_ms}");
    let note_of = |claim: &distlock::backend::Claim, token, name: &str| {
        let record = claim.record.as_ref().clone();
        TickNote::start(Tick::named(name).expect("a name"), now_ms, HOUR, token, record)
    };
    let free = note_of(&stranger, distlock::FencingToken::new(1), "a");
    assert!(!engine.note_tick(&stranger, &free).await.expect("a reply"), "the lock is free");
    let token = expect_grant(&*engine, &holder).await.token;
    let (started, other) = (note_of(&holder, token, "a"), note_of(&holder, token, "b"));
    assert!(!engine.note_tick(&stranger, &free).await.expect("a reply"), "another attempt holds the lock");
    assert!(engine.ticks(&key, None).await.expect("notes").notes.is_empty(), "nothing was written");
    for _ in 0..2 {
        assert!(engine.note_tick(&holder, &started).await.expect("a reply"), "written, and written again");
    }
    assert!(engine.note_tick(&holder, &other).await.expect("a reply"));
    let done = started.clone().done(Duration::from_secs(1), now_ms + 1000, HOUR);
    for _ in 0..2 {
        assert!(engine.note_tick(&holder, &done).await.expect("a reply"));
    }
    assert!(!engine.note_tick(&holder, &started).await.expect("a reply"), "it stays done");
    engine.release(&holder).await.expect("released");
    assert!(engine.note_tick(&holder, &done).await.expect("a reply"), "a retry of what was written");
    let later = other.clone().with_starts(2);
    assert!(!engine.note_tick(&holder, &later).await.expect("a reply"), "it holds the lock no more");
    let found = engine.ticks(&key, Some(&done.tick)).await.expect("notes");
    assert_eq!(found.notes, std::slice::from_ref(&done), "one of them");
    let mut all = engine.ticks(&key, None).await.expect("notes").notes;
    all.sort_by(|one, other| one.tick.cmp(&other.tick));
    assert_eq!(all, [done, other]);
}

/// A period ends: then the job runs again. A named tick is forgotten when its time is over.
pub async fn ticks_end_and_notes_are_forgotten(world: &World) {
    let (client, periods, names) = (world.lasting_client().await, world.key("periods"), world.key("names"));
    let second = Duration::from_secs(1);
    let run = expect_run(client.locker.once(&periods).every(2 * second)).await;
    let first = run.done().await.expect("done");
    expect_run(client.locker.once(&names).tick("1").keep(second)).await.done().await.expect("done");
    let until = world.now().after(world.test_limit());
    let mut runs = [false, false];
    while runs != [true, true] {
        assert!(world.now() < until, "they run again: {runs:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let outcome = client.locker.once(&periods).every(2 * second).await.expect("an outcome");
        if let OnceOutcome::Run(run) = outcome {
            assert!(run.note().tick > first.tick, "a later tick: {:?}, {first:?}", run.note());
            assert_eq!(run.note().starts, 1);
            run.done().await.expect("done");
            runs[0] = true;
        }
        // A note that is read is not kept longer by that.
        let outcome = client.locker.once(&names).tick("1").keep(second).await.expect("an outcome");
        if let OnceOutcome::Run(run) = outcome {
            assert_eq!(run.note().starts, 1, "the note was forgotten");
            run.done().await.expect("done");
            runs[1] = true;
        }
    }
}

/// Of many requests at once, one run succeeds; each that waits is told so, or takes over from a run that failed.
pub async fn many_requests_make_one_run(world: &World) {
    const REQUESTS: usize = 20;
    const FAILURES: u64 = 3;
    let (key, runs) = (world.key("many"), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..REQUESTS {
        let (client, runs) = (world.lasting_client().await, runs.clone());
        let request = client.locker.once(&key).tick("1").wait(world.test_limit());
        tasks.spawn(async move {
            let _client = client;
            match request.await.expect("an outcome") {
                OnceOutcome::Run(run) if runs.fetch_add(1, Ordering::SeqCst) < FAILURES => {
                    drop(run);
                    None
                }
                OnceOutcome::Run(run) => Some(run.done().await.expect("done")),
                OnceOutcome::Done { note, .. } => Some(note),
                other => panic!("{other:?}"),
            }
        });
    }
    let notes = timeout(world.test_limit() * 2, tasks.join_all()).await.expect("every request ends");
    let notes: Vec<_> = notes.into_iter().flatten().collect();
    assert_eq!((notes.len(), runs.load(Ordering::SeqCst)), (REQUESTS - FAILURES as usize, FAILURES + 1));
    assert!(notes.iter().all(|note| *note == notes[0] && u64::from(note.starts) == FAILURES + 1), "{notes:?}");
}

/// Requests and the end of a run, dropped: the next request runs or is told that the tick is done, and waits for no lease.
pub async fn once_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("once-polls"));
    for polls in 0..16 {
        let tick = polls.to_string();
        let request = |client: &Client| client.locker.once(&key).tick(&tick);
        drop(drop_after(polls, request(&client).into_future()).await);
        let run = match request(&other).wait(world.test_limit()).await.expect("an outcome") {
            OnceOutcome::Run(run) => run,
            outcome => panic!("no run has succeeded: {outcome:?}"),
        };
        drop(drop_after(polls, request(&client).wait(world.test_limit()).into_future()).await);
        let done = drop_after(polls, run.done()).await;
        match request(&client).wait(world.test_limit()).await.expect("an outcome") {
            OnceOutcome::Run(run) if !matches!(done, Some(Ok(_))) => run.failed().await.expect("released"),
            OnceOutcome::Done { .. } if done.is_some() || polls > 0 => {}
            outcome => panic!("{polls} polls, {done:?}: {outcome:?}"),
        }
    }
}
