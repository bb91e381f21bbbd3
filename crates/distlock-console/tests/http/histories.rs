//! Past holds: histories, and losses.

use std::time::{Duration, Instant};

use distlock::Locker;
use distlock::backend::memory::{Memory, Store};
use distlock_testkit::servers::RedisServer;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::break_body;
use crate::common::{Events, LIMIT, Running};

#[tokio::test]
async fn events_before_the_consoles_start_are_shown_from_a_history() {
    let store = Store::new();
    let before = Locker::builder().history(50).build(Memory::on(&store)).unwrap();
    before.lock("job").owner("first").await.unwrap().unlock().await.unwrap();
    let second = before.lock("job").owner("second").await.unwrap();
    before.inspect().force_release("job", second.fencing_token(), "it hangs").await.unwrap();
    timeout(LIMIT, second.lost()).await.unwrap();
    before.close().await.unwrap();

    let watcher = Locker::new(Memory::on(&store)).unwrap();
    let _third = watcher.clone().lock("job").owner("third").await.unwrap();
    let console = Running::start(&watcher, |_| {}).await;
    let detail = console.get("/api/v1/locks/job").send().await.json();
    let past = detail["past"].as_array().unwrap();
    let ends: Vec<_> = past.iter().map(|past| (past["owner"].as_str(), past["end"].as_str())).collect();
    assert_eq!(ends, [(Some("first"), Some("released")), (Some("second"), Some("broken"))], "{detail}");
    assert_eq!((&past[1]["reason"], &detail["has_history"]), (&"it hangs".into(), &true.into()));
    assert_eq!(detail["lock"]["holders"][0]["owner"], "third");
    let shown = |field: &str| -> Vec<Value> {
        detail["events"].as_array().unwrap().iter().map(|event| event[field].clone()).collect()
    };
    assert_eq!(shown("what"), ["lost", "broken", "acquired", "released", "acquired"], "the newest first");
    assert_eq!(shown("owner")[3..], ["first", "first"]);
    let token = second.fencing_token().to_string();
    assert_eq!((&shown("token")[0], &shown("reason")[1]), (&token.into(), &"it hangs".into()));
    assert!(shown("at_ms").iter().chain(&shown("took_ms")[3..]).all(Value::is_u64), "{detail}");
    console.stop().await;
}

/// Reads events until the console counts `count` losses.
async fn await_losses(events: &mut Events, count: u64) -> Value {
    let began = Instant::now();
    loop {
        let lost = events.next_of("changes").await["lost"].clone();
        if lost["count"] == count {
            return lost;
        }
        assert!(began.elapsed() < LIMIT, "{count} are not counted: {lost}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_seen_in_listings_histories_and_breaks_counts_once() {
    let server = RedisServer::start();
    let url = server.url();
    let writer = Locker::connect(&format!("{url}?history=50")).await.unwrap();
    // Before the first listing: only the history contains it.
    let old = writer.lock("old").owner("old-holder").await.unwrap();
    writer.inspect().force_release("old", old.fencing_token(), "before").await.unwrap();
    timeout(LIMIT, old.lost()).await.unwrap();
    writer.lock("old").await.unwrap().unlock().await.unwrap();
    let _held = writer.lock("old").ttl(LIMIT).await.unwrap();

    let locker = Locker::connect(&url).await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let mut events = console.events().await;
    let (_, first) = events.next().await;
    assert_eq!(first["lost"]["count"], 0, "nothing was read yet");
    let lost = await_losses(&mut events, 1).await;
    assert_eq!((&lost["last"], &lost["since_ms"]), (&"old".into(), &first["at_ms"]), "it does not know the day");

    // It is not renewed: a listing sees its lease expire. A released lock is no loss.
    let request = locker.lock("dying").owner("dying-holder").ttl(Duration::from_secs(6));
    let dying = request.watchdog(false).await.unwrap();
    let well = locker.lock("well").await.unwrap();
    events.next_of("changes").await;
    well.unlock().await.unwrap();
    await_losses(&mut events, 2).await;

    let hung = locker.lock("hung").owner("hung-holder").await.unwrap();
    let token = hung.fencing_token().to_string();
    assert_eq!(console.post("/api/v1/break", &break_body("hung", &token)).send().await.status, 200);
    let lost = await_losses(&mut events, 3).await;
    assert_eq!((&lost["last"], &lost["since_ms"]), (&"hung".into(), &first["at_ms"]));
    let shown = console.get("/api/v1/losses").send().await.json();
    let rows = shown["rows"].as_array().unwrap().iter();
    let rows: Vec<_> = rows.map(|row| [&row["name"], &row["end"], &row["owner"], &row["reason"]]).collect();
    let expected = json!([
        ["hung", "broken", "hung-holder", "it hangs"],
        ["dying", "expired", "dying-holder", null],
        ["old", "broken", "old-holder", "before"],
    ]);
    assert_eq!(json!(rows), expected, "{shown}");
    assert_eq!(shown["count"], 3);
    drop(dying);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_with_unread_histories_are_counted() {
    let locker = Locker::new(Memory::new()).unwrap();
    let mut guards = Vec::new();
    for number in 0..5_003 {
        guards.push(locker.lock(format!("job:{number}")).ttl(Duration::from_secs(3_600)).await.unwrap());
    }
    let console = Running::start(&locker, |_| {}).await;
    let losses = console.get("/api/v1/losses").send().await.json();
    assert_eq!((&losses["unread"], &losses["since_ms"]), (&3.into(), &losses["at_ms"]));
    console.stop().await;
}
