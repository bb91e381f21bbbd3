//! Readers and semaphores, with flock(1) and after crashes.

use super::*;
use crate::types::mode::Mode;

const SEMAPHORE: Mode = Mode::Slot { of: 2 };

fn in_mode(mode: Mode, key: &Key, owner: &str) -> Claim {
    let Claim { record, .. } = claim(key, owner);
    Claim::new(key.clone(), Duration::from_secs(10), true, Arc::new(Record::clone(&record).with_mode(mode)))
}

fn try_in_mode(mode: Mode, key: &Key, owner: &str) -> Claim {
    Claim { queue: false, ..in_mode(mode, key, owner) }
}

fn owners(info: Option<LockInfo>) -> Vec<String> {
    let holders = info.map_or(Vec::new(), |info| info.holders);
    holders.iter().map(|holder| holder.record.as_ref().map_or("?".into(), |record| record.owner.to_string())).collect()
}

#[tokio::test]
async fn readers_have_names_and_tokens_of_their_own_between_the_writers() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    for key in [Key::new("a").unwrap(), scratch.key("x")] {
        let writer = claim(&key, "writer");
        let written = granted(engine.claim(&writer).await).token;
        engine.release(&writer).await.unwrap();
        let (one, two) = (in_mode(Mode::Shared, &key, "one"), in_mode(Mode::Shared, &key, "two"));
        let first = granted(engine.claim(&one).await).token;
        let second = granted(engine.claim(&two).await).token;
        assert_eq!(granted(engine.claim(&one).await).token, first, "a repeat is the same grant");
        assert!(written < first && first < second);
        assert_eq!(owners(engine.get(&key).await.unwrap()), ["one", "two"]);
        let error = engine.force_release(&key, second, "test").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        busy(engine.claim(&try_claim(&key, "writer")).await);
        engine.release(&two).await.unwrap();
        assert_eq!(owners(engine.get(&key).await.unwrap()), ["one"]);
        engine.release(&one).await.unwrap();
        assert!(engine.get(&key).await.unwrap().is_none());
        let late = claim(&key, "writer");
        assert!(granted(engine.claim(&late).await).token > second);
        engine.release(&late).await.unwrap();
    }
    assert_eq!(scratch.names(), ["a.lock", "x"], "the writer cleared up");
}

#[tokio::test]
async fn tokens_of_readers_count_on_when_the_clock_was_set_back() {
    const AHEAD: u64 = 1 << 62;
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    fs::create_dir(scratch.file("a.in")).unwrap();
    fs::write(scratch.file(&format!("a.in/{AHEAD:020}")), "").unwrap();
    let mut last = AHEAD;
    for mode in [Mode::Shared, Mode::Shared, SEMAPHORE, SEMAPHORE, Mode::Exclusive, Mode::Shared] {
        let ours = in_mode(mode, &key, "us");
        let token = granted(engine.claim(&ours).await).token.get();
        assert_eq!(token, last + 1, "{mode}");
        last = token;
        engine.release(&ours).await.unwrap();
    }
    assert_eq!(fs::read_dir(scratch.file("a.in")).unwrap().count(), 1, "the highest number alone stays");
}

#[tokio::test]
async fn a_killed_reader_is_gone_at_once_and_so_is_what_it_wrote() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let mut second = Second::start_in(Mode::Shared, scratch.path(), key.as_str(), "second");
    let token = second.granted();
    busy(engine.claim(&try_claim(&key, "writer")).await);
    second.kill();
    assert!(engine.get(&key).await.unwrap().is_none());
    let reader = in_mode(Mode::Shared, &key, "reader");
    assert!(granted(engine.claim(&reader).await).token.get() > token);
    assert_eq!(fs::read_dir(scratch.file("x.distlock.in")).unwrap().count(), 1, "swept");
    engine.release(&reader).await.unwrap();
    granted(engine.claim(&try_claim(&key, "writer")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_writer_hears_of_the_last_reader_by_the_hint_alone() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let reader = in_mode(Mode::Shared, &key, "reader");
    granted(engine.claim(&reader).await);
    let mut second = Second::start_in(Mode::Shared, scratch.path(), key.as_str(), "second");
    second.granted();
    let writer = claim(&key, "writer");
    busy(engine.claim(&writer).await);
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { timeout(AT_LAST, engine.wait(&writer)).await.expect("a hint") }
    });
    engine.release(&reader).await.unwrap();
    second.kill();
    assert!(matches!(waiting.await.unwrap(), Wake::Granted(_)));
}

#[tokio::test]
async fn whatever_is_removed_no_writer_gets_in_beside_a_reader() {
    let scratch = Scratch::new();
    let (engine, other) = (engine(&scratch), engine(&scratch));
    for removed in [&["bare.lock"][..], &["bare.lock", "bare.held"]] {
        let key = Key::new("bare").unwrap();
        let reader = in_mode(Mode::Shared, &key, "reader");
        let token = granted(engine.claim(&reader).await).token;
        for file in removed {
            fs::remove_file(scratch.file(file)).unwrap();
        }
        busy(other.claim(&try_claim(&key, "writer")).await);
        let renewed = engine.renew(&[Lease::new(reader.clone(), token)]).await;
        assert!(matches!(renewed[..], [Ok(Renewal::Renewed(None))]), "still inside: {renewed:?}");
        assert_eq!(engine.release(&reader).await.unwrap(), Release::Released);
        let writer = claim(&key, "writer");
        assert!(acquire(&other, &writer).await.token > token);
        other.release(&writer).await.unwrap();
    }
}

#[tokio::test]
async fn a_reader_of_whose_files_nothing_is_left_is_told_and_so_is_one_without_its_slot() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    for (mode, files) in [(Mode::Shared, &["a.lock", "a.held"][..]), (SEMAPHORE, &[])] {
        let key = Key::new("a").unwrap();
        let ours = in_mode(mode, &key, "us");
        let token = granted(engine.claim(&ours).await).token;
        files.iter().for_each(|file| fs::remove_file(scratch.file(file)).unwrap());
        fs::remove_dir_all(scratch.file("a.in")).unwrap();
        let renewed = engine.renew(&[Lease::new(ours.clone(), token)]).await;
        assert!(matches!(renewed[..], [Ok(Renewal::Lost(LossReason::Revoked))]), "{mode}: {renewed:?}");
        assert_eq!(engine.release(&ours).await.unwrap(), Release::NotOurs);
    }
}

#[tokio::test]
async fn foreign_contents_are_shared_and_left_alone() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    fs::write(scratch.file("data"), "mine\n").unwrap();
    let reader = in_mode(Mode::Shared, &scratch.key("data"), "reader");
    granted(engine.claim(&reader).await);
    assert!(!Shell::can_lock(&scratch.file("data")));
    engine.release(&reader).await.unwrap();
    assert!(Shell::can_lock(&scratch.file("data")));
    assert_eq!(fs::read(scratch.file("data")).unwrap(), b"mine\n");
    fs::write(scratch.file("a.lock"), "and this").unwrap();
    let error = engine.claim(&in_mode(Mode::Shared, &Key::new("a").unwrap(), "us")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
}

#[tokio::test]
async fn a_killed_holder_s_slot_is_the_next_one_s_and_names_are_shown() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    for key in [Key::new("a").unwrap(), scratch.key("x")] {
        let mut second = Second::start_in(SEMAPHORE, scratch.path(), key.as_str(), "second");
        let token = second.granted();
        let ours = in_mode(SEMAPHORE, &key, "us");
        let grant = granted(engine.claim(&ours).await);
        assert!(grant.slot == Some(1) && grant.token.get() > token);
        assert_eq!(owners(engine.get(&key).await.unwrap()), ["second", "us"]);
        busy(engine.claim(&try_in_mode(SEMAPHORE, &key, "third")).await);
        second.kill();
        assert_eq!(owners(engine.get(&key).await.unwrap()), ["us"]);
        let next = try_in_mode(SEMAPHORE, &key, "next");
        let grant = granted(engine.claim(&next).await);
        assert!(grant.slot == Some(0) && grant.token.get() > token);
        engine.release(&ours).await.unwrap();
        engine.release(&next).await.unwrap();
        assert!(engine.get(&key).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn what_does_not_agree_with_a_holder_or_a_waiter_is_refused_and_leaves_nothing() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let more = Mode::Slot { of: 3 };
    let refused = async |mode, queue| {
        let error = engine.claim(&Claim { queue, ..in_mode(mode, &key, "other") }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{mode}: {error}");
    };
    for (held, others) in [
        (SEMAPHORE, [Mode::Exclusive, Mode::Shared, more]),
        (Mode::Shared, [SEMAPHORE, SEMAPHORE, more]),
        (Mode::Exclusive, [SEMAPHORE, SEMAPHORE, more]),
    ] {
        let holder = in_mode(held, &key, "holder");
        granted(engine.claim(&holder).await);
        for other in others {
            refused(other, false).await;
            refused(other, true).await;
        }
        assert!(!scratch.file("a.q").exists(), "no place in the queue is left");
        engine.release(&holder).await.unwrap();
    }
    // There is no holder any more, but still a waiter.
    let holders = [in_mode(SEMAPHORE, &key, "one"), in_mode(SEMAPHORE, &key, "two")];
    for holder in &holders {
        granted(engine.claim(holder).await);
    }
    let waiter = in_mode(SEMAPHORE, &key, "waiter");
    busy(engine.claim(&waiter).await);
    for holder in &holders {
        engine.release(holder).await.unwrap();
    }
    refused(Mode::Exclusive, true).await;
    refused(Mode::Shared, false).await;
    assert_eq!(granted(engine.claim(&waiter).await).slot, Some(0));
    engine.release(&waiter).await.unwrap();
    granted(engine.claim(&try_claim(&key, "free for all")).await);
}

fn resizing(of: u32, key: &Key, owner: &str) -> Claim {
    let claim = try_in_mode(Mode::Slot { of }, key, owner);
    Claim { record: Arc::new(Record::clone(&claim.record).with_resizes(true)), ..claim }
}

#[tokio::test]
async fn slots_of_several_sizes_have_the_names_that_older_clients_know() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let (three, four) = (resizing(3, &key, "three"), resizing(4, &key, "four"));
    assert_eq!(granted(engine.claim(&three).await).slot, Some(0));
    assert_eq!(granted(engine.claim(&four).await).slot, Some(1));
    for name in ["a.in/slot-0-of-3", "a.in/slot-1-of-4"] {
        assert!(scratch.file(name).exists(), "{name}");
    }
    engine.release(&three).await.unwrap();
    engine.release(&four).await.unwrap();
    granted(engine.claim(&try_claim(&key, "writer")).await);
    assert_eq!(scratch.names(), ["a.lock"], "the writer cleared up");
}

/// A holder without an entry may be one that does not resize: its disk was full, or it is of an older version.
#[tokio::test]
async fn a_slot_without_an_entry_agrees_with_its_own_size_alone() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let three = resizing(3, &key, "three");
    granted(engine.claim(&three).await);
    fs::File::options().write(true).open(scratch.file("a.in/slot-0-of-3")).unwrap().set_len(0).unwrap();
    let error = engine.claim(&resizing(4, &key, "four")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let same = resizing(3, &key, "same");
    assert_eq!(granted(engine.claim(&same).await).slot, Some(1));
    engine.release(&same).await.unwrap();
    engine.release(&three).await.unwrap();
}

#[tokio::test]
async fn claims_that_resize_enter_one_at_a_time_and_others_do_not_wait_for_them() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let one = resizing(3, &key, "one");
    granted(engine.claim(&one).await);
    // As a claim does that is stopped in the middle of entering.
    let entering = fs::File::open(scratch.file("a.in")).unwrap();
    entering.try_lock().unwrap();
    busy(engine.claim(&resizing(4, &key, "two")).await);
    let strict = try_in_mode(Mode::Slot { of: 3 }, &key, "strict");
    assert_eq!(granted(engine.claim(&strict).await).slot, Some(1));
    engine.release(&strict).await.unwrap();
    drop(entering);
    let two = resizing(4, &key, "two");
    assert_eq!(granted(engine.claim(&two).await).slot, Some(1));
    engine.release(&one).await.unwrap();
    engine.release(&two).await.unwrap();
}

#[tokio::test]
async fn a_copied_descriptor_keeps_the_slot_or_the_reader_s_place() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let one = Mode::Slot { of: 1 };
    for (mode, other) in [(Mode::Shared, Mode::Exclusive), (one, one)] {
        let ours = in_mode(mode, &key, "us");
        granted(engine.claim(&ours).await);
        let copy = engine.descriptor(&ours).unwrap().expect("held");
        engine.release(&ours).await.unwrap();
        busy(engine.claim(&try_in_mode(other, &key, "other")).await);
        if mode == one {
            let error = engine.claim(&try_claim(&key, "writer")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "a child goes on in the slot: {error}");
        } else {
            assert_eq!(owners(engine.get(&key).await.unwrap()), ["us"], "under the name of who took it");
        }
        drop(copy);
        let next = try_in_mode(other, &key, "other");
        granted(engine.claim(&next).await);
        engine.release(&next).await.unwrap();
    }
}
