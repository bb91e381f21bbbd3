//! Readers and writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use distlock::Mode;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{expect_granted, expect_lock, record_history, spawn_request, spawn_waiter};
use crate::setup::World;

/// Any number of readers, or one writer.
pub async fn readers_share_and_writers_exclude(world: &World) {
    let (one, two, key) = (world.client().await, world.client().await, world.key("share"));
    let first = one.locker.read(&key).await.expect("granted");
    let second = two.locker.try_read(&key).await.expect("no failure").expect("readers share it");
    assert_eq!([first.mode(), second.mode()], [Mode::Shared; 2]);
    assert!(two.locker.clone().try_write(&key).await.expect("no failure").is_none(), "two readers have it");
    first.unlock().await.expect("released");
    assert!(one.locker.try_lock(&key).await.expect("no failure").is_none(), "one reader has it still");
    second.unlock().await.expect("released");
    let writer = one.locker.try_write(&key).await.expect("no failure").expect("it is free");
    assert!(two.locker.try_read(&key).await.expect("no failure").is_none(), "a writer has it");
    writer.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A reader that arrives after a writer is not granted before it.
pub async fn a_reader_behind_a_waiting_writer_waits(world: &World) {
    let (reader, writer, late) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("behind-a-writer");
    let reading = reader.locker.read(&key).await.expect("granted");
    let writing = spawn_waiter(world, &writer, &key).await;
    assert!(late.locker.try_read(&key).await.expect("no failure").is_none(), "a writer waits");
    let reading_late = spawn_request(&late, late.locker.read(&key).wait(world.test_limit())).await;
    reading.unlock().await.expect("released");
    let guard = expect_granted(world, writing).await;
    assert!(!reading_late.is_finished(), "a reader is inside with a writer");
    guard.unlock().await.expect("released");
    expect_granted(world, reading_late).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// When a writer leaves, all readers at the head of the queue enter; readers behind the next writer do not.
pub async fn consecutive_readers_enter_together(world: &World) {
    let (writer, next_writer, key) = (world.client().await, world.client().await, world.key("row"));
    let guard = writer.locker.write(&key).await.expect("granted");
    let mut clients = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let client = world.client().await;
        waiting.push(spawn_request(&client, client.locker.read(&key).wait(world.test_limit())).await);
        clients.push(client);
    }
    let writing = spawn_waiter(world, &next_writer, &key).await;
    guard.unlock().await.expect("released");
    let mut readers = Vec::new();
    for task in waiting {
        readers.push(expect_granted(world, task).await);
    }
    assert!(!writing.is_finished(), "a writer is inside with readers");
    for reader in readers {
        reader.unlock().await.expect("released");
    }
    expect_granted(world, writing).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A continuous stream of readers does not starve a writer.
pub async fn readers_do_not_starve_a_writer(world: &World) {
    let (writer, key) = (world.client().await, world.key("stream"));
    let (over, inside) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let (client, key, over, inside) = (world.client().await, key.clone(), over.clone(), inside.clone());
        readers.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let guard = client.locker.read(&key).await.expect("granted");
                inside.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(3)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("released");
            }
        });
    }
    for _ in 0..3 {
        let guard = expect_lock(world, &writer.locker, &key).await;
        assert_eq!(inside.load(Ordering::SeqCst), 0, "readers are inside with a writer");
        guard.unlock().await.expect("released");
    }
    over.store(true, Ordering::SeqCst);
    timeout(world.test_limit(), readers.join_all()).await.expect("the readers end");
    world.expect_nothing_left().await;
}

/// A crashed reader blocks a writer for its lease; a living reader stays inside as long as it renews.
pub async fn a_crashed_reader_blocks_for_one_lease(world: &World) {
    let (dead, living, writer) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("dead-reader");
    std::mem::forget(dead.locker.read(&key).await.expect("granted"));
    dead.calls.cut();
    let reading = living.locker.read(&key).await.expect("granted");
    tokio::time::sleep(world.ttl() * 2).await;
    reading.check().expect("its own lease is renewed");
    assert!(writer.locker.try_write(&key).await.expect("no failure").is_none(), "a reader is inside");
    reading.unlock().await.expect("released");
    let guard = expect_lock(world, &writer.locker, &key).await;
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A resource that remembers the tokens of writes can detect a late reader.
pub async fn a_readers_token_lies_between_the_writers(world: &World) {
    let (client, key) = (world.client().await, world.key("reader-tokens"));
    let mut last_written = 0;
    for _ in 0..3 {
        let writer = client.locker.write(&key).await.expect("granted");
        let written = writer.fencing_token().get();
        assert!(written > last_written);
        writer.unlock().await.expect("released");
        let (one, two) = (client.locker.clone(), client.locker.clone());
        let readers = [one.read(&key).await.expect("granted"), two.read(&key).await.expect("granted")];
        for reader in readers {
            assert!(reader.fencing_token().get() >= written);
            last_written = last_written.max(reader.fencing_token().get());
            reader.unlock().await.expect("released");
        }
    }
}

/// Readers, writers, cancelled waits and drops at random; the checker judges the history.
pub async fn readers_and_writers_keep_a_clean_history(world: &World) {
    record_history(world, "readers-and-writers", |locker, key, number| match number % 3 {
        0 => (locker.write(key), number),
        _ => (locker.read(key), number),
    })
    .await;
}
