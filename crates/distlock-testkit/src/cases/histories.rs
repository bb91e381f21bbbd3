//! The history of a lock.

use std::time::Duration;

use distlock::HistoryKind::{Acquired, Broken, Lost, Released};
use distlock::{FencingToken, HistoryEntry, HistoryKind, Key, LossReason, OwnerId, Process, Record};
use tokio::time::timeout;

use super::expect_lock;
use crate::setup::{Client, World};

/// Reads the last `most` entries of `key` with a client that keeps no history.
async fn read(world: &World, key: &Key, most: u32) -> Vec<HistoryEntry> {
    let reader = world.client().await;
    reader.locker.inspect().history(key, most).await.expect("a history")
}

/// Waits until the history has `count` entries.
async fn expect_entries(world: &World, key: &Key, count: usize) -> Vec<HistoryEntry> {
    let until = world.now().after(world.test_limit());
    loop {
        let entries = read(world, key, 100).await;
        if entries.len() >= count {
            return entries;
        }
        assert!(world.now() < until, "only {entries:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Closes a client, which flushes its pending history entries.
async fn close(client: &Client) {
    client.locker.close().await.expect("closed");
}

fn told(entries: &[HistoryEntry]) -> Vec<(FencingToken, HistoryKind)> {
    entries.iter().map(|entry| (entry.token, entry.kind)).collect()
}

/// The history lists in order which client held the lock, for how long, and how each hold ended, also when several
/// clients write it.
pub async fn the_history_records_every_hold(world: &World) {
    let (first, second) = (world.chronicler(100).await, world.chronicler(100).await);
    let key = world.key("written");
    let guard = expect_lock(world, &first.locker, &key).await;
    let one = guard.fencing_token();
    guard.unlock().await.expect("released");
    let request = second.locker.lock(&key).label("the second").max_hold(Duration::from_millis(150));
    let guard = request.wait(world.test_limit()).await.expect("granted");
    let two = guard.fencing_token();
    let reason = timeout(world.test_limit(), guard.lost()).await.expect("max_hold ends it");
    assert_eq!(reason, LossReason::MaxHold);
    close(&first).await;
    let entries = expect_entries(world, &key, 4).await;
    assert_eq!(told(&entries), [(one, Acquired), (one, Released), (two, Acquired), (two, Lost)]);
    let owners: Vec<_> = entries.iter().map(|entry| &entry.record.owner).collect();
    assert!(owners[..2] == [first.locker.owner(); 2] && owners[2..] == [second.locker.owner(); 2], "{owners:?}");
    let lost = &entries[3];
    assert_eq!(lost.reason.as_deref(), Some(LossReason::MaxHold.describe()));
    assert!(lost.took_ms.is_some_and(|held| held >= 140), "{lost:?}");
    assert_eq!(lost.record.label.as_deref(), Some("the second"));
    assert_eq!(*lost.record.process, *Process::current());
    assert!(entries.iter().all(|entry| entry.took_ms.is_some() && entry.at_ms > 1_600_000_000_000), "{entries:?}");

    assert_eq!(told(&read(world, &key, 1).await), [(two, Lost)], "the last ones");
    assert!(read(world, &key, 0).await.is_empty(), "none of them");
    assert!(read(world, &world.key("other"), 10).await.is_empty());
    if world.capabilities().await.inspects {
        let locks = world.client().await.locker.inspect().list("").await.expect("a list");
        assert!(locks.is_empty(), "a history is no lock: {locks:?}");
    }
}

/// A forced release is recorded with its reason and its author, and so is the holder's loss.
pub async fn the_history_records_a_forced_release(world: &World) {
    let (holder, breaker, key) = (world.chronicler(100).await, world.chronicler(100).await, world.key("broken"));
    let guard = expect_lock(world, &holder.locker, &key).await;
    let token = guard.fencing_token();
    breaker.locker.inspect().force_release(&key, token, "it hangs").await.expect("broken");
    timeout(world.test_limit(), guard.lost()).await.expect("its holder is notified");
    close(&breaker).await;
    let entries = expect_entries(world, &key, 3).await;
    assert_eq!(told(&entries), [(token, Acquired), (token, Broken), (token, Lost)]);
    assert_eq!(entries[1].reason.as_deref(), Some("it hangs"));
    assert_eq!(&entries[1].record.owner, breaker.locker.owner());
    assert_eq!(&entries[2].record.owner, holder.locker.owner());
}

/// The history of a busy lock is bounded.
pub async fn a_history_is_bounded(world: &World) {
    const MOST: u32 = 8;
    const BATCHES: u64 = 5;
    const BATCH: u64 = 60;
    let (engine, key, other) = (world.engine().await, world.key("long"), world.key("short"));
    let record = Record::new(OwnerId::random(), Process::current(), None, world.clock.wall());
    let entry = |token| HistoryEntry::new(1, Released, FencingToken::new(token), record.clone());
    for batch in 0..BATCHES {
        let mut entries = vec![(other.clone(), entry(batch))];
        entries.extend((batch * BATCH..(batch + 1) * BATCH).map(|token| (key.clone(), entry(token))));
        let answers = engine.write_history(&entries, MOST).await;
        assert_eq!(answers.len(), entries.len());
        answers.into_iter().for_each(|answer| answer.expect("written"));
    }
    let kept = read(world, &key, u32::MAX).await;
    assert!((MOST as usize..=4 * MOST as usize + 128).contains(&kept.len()), "{}", kept.len());
    let tokens: Vec<_> = kept.iter().map(|entry| entry.token.get()).collect();
    let last = BATCHES * BATCH;
    assert!(tokens.iter().copied().eq(last - tokens.len() as u64..last), "the last ones: {tokens:?}");
    let others: Vec<_> = read(world, &other, u32::MAX).await.iter().map(|entry| entry.token.get()).collect();
    assert_eq!(others, [0, 1, 2, 3, 4], "each lock has its own");
}

/// A locker without `history` writes no entries.
pub async fn without_history_no_entries_are_written(world: &World) {
    let (client, key) = (world.client().await, world.key("silent"));
    expect_lock(world, &client.locker, &key).await.unlock().await.expect("released");
    close(&client).await;
    assert!(read(world, &key, 100).await.is_empty());
    world.expect_nothing_left().await;
}
