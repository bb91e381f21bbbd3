//! The tests that docs/testing.md shows.

use std::sync::Arc;
use std::time::Duration;

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{ErrorKind, FencingToken, HoldState, Locker};

#[test]
fn every_snippet_of_the_page_is_in_this_file() {
    let page = include_str!("../../../docs/testing.md");
    let blocks: Vec<_> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 6);
    let lines = |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    let here = lines(include_str!("testing_page.rs"));
    for block in blocks {
        assert!(here.contains(&lines(block)), "not run:\n{block}");
    }
}

async fn ship(locker: &Locker, order: u32, post: impl AsyncFnOnce(FencingToken)) -> u16 {
    let request = locker.lock(format!("order:{order}")).as_new_owner().wait(Duration::from_secs(2));
    let guard = match request.await {
        Ok(guard) => guard,
        Err(error) if error.kind() == ErrorKind::Timeout => return 423,
        Err(_) => return 503,
    };
    match guard.run(post(guard.fencing_token())).await {
        Ok(()) => guard.unlock().await.map_or(500, |()| 200),
        Err(_lost) => 500,
    }
}

#[tokio::test]
async fn an_order_is_shipped_with_its_token() {
    let (store, _clock) = Store::manual();
    let locker = Locker::new(Memory::on(&store)).unwrap();
    let mut posted = None;
    let status = ship(&locker, 7, async |token| posted = Some(token)).await;
    assert_eq!((status, posted), (200, Some(FencingToken::new(1))));
    assert!(store.is_empty(), "released");
}

#[tokio::test]
async fn an_order_in_other_hands_is_423_after_two_seconds() {
    let (store, clock) = Store::manual();
    let [locker, other] = [(); 2].map(|()| Locker::new(Memory::on(&store)).unwrap());
    let held = other.lock("order:7").await.unwrap();
    let answer = tokio::spawn(async move { ship(&locker, 7, async |_| unreachable!("not granted")).await });

    clock.advance(Duration::from_millis(1_999)).await;
    assert!(!answer.is_finished());
    clock.advance(Duration::from_millis(1)).await;
    assert_eq!(answer.await.unwrap(), 423);
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn work_is_dropped_when_its_lock_is_lost() {
    let (store, clock) = Store::manual();
    let locker = Locker::new(Memory::on(&store)).unwrap();
    let answer = tokio::spawn(async move { ship(&locker, 7, async |_| std::future::pending().await).await });
    clock.advance(Duration::from_secs(60)).await;
    assert!(!answer.is_finished(), "renewed as long as it works");

    store.expire("order:7").tell_holders();
    clock.settle().await;
    assert_eq!(answer.await.unwrap(), 500);
}

#[tokio::test]
async fn a_late_write_is_refused() {
    let (store, clock) = Store::manual();
    let [locker, other] = [(); 2].map(|()| Locker::new(Memory::on(&store)).unwrap());
    let mut written = FencingToken::new(0);
    let mut write = |token: FencingToken| {
        let accepted = token >= written;
        written = written.max(token);
        accepted
    };

    let stopped = locker.lock("order:7").await.unwrap();
    clock.jump(Duration::from_secs(20));
    let next = other.lock("order:7").await.unwrap();
    assert!(write(next.fencing_token()));
    assert!(stopped.is_lost(), "it can know, but may have checked before");
    assert!(!write(stopped.fencing_token()));
}

#[tokio::test]
async fn an_engine_that_is_away_is_503_and_costs_no_lock_that_is_held() {
    let (store, clock) = Store::manual();
    let locker = Arc::new(Locker::new(Memory::on(&store)).unwrap());
    let held = locker.lock("order:8").ttl(Duration::from_secs(10)).await.unwrap();

    store.disconnect();
    let handler = locker.clone();
    let answer = tokio::spawn(async move { ship(&handler, 7, async |_| unreachable!("not granted")).await });
    clock.advance(Duration::from_secs(5)).await;
    assert_eq!(answer.await.unwrap(), 503);
    assert_eq!(held.state(), HoldState::AtRisk);

    store.reconnect();
    clock.advance(Duration::from_secs(5)).await;
    assert_eq!(held.state(), HoldState::Held);
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_is_finished_in_the_background() {
    let (store, clock) = Store::manual();
    let locker = Locker::new(Memory::on(&store)).unwrap();
    store.script(Operation::Release, Fault::LoseRequest);
    assert_eq!(ship(&locker, 7, async |_| ()).await, 500, "whether it was released is unknown");
    assert!(!store.is_empty());
    clock.advance(Duration::from_secs(1)).await;
    assert!(store.is_empty());
}
