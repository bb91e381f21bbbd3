//! The engine on real files and with real second processes.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::*;
use crate::contract::{Busy, Grant};
use crate::types::clock::Clock;
use crate::types::error::ErrorKind;
use crate::types::event::LossReason;
use crate::types::owner::{OwnerId, Process, Record};
use crate::types::token::AttemptId;
use hold::{FileHold, TakeOutcome};
use second::{Second, Shell};

mod looking;
mod queueing;
mod second;
mod sharing;

/// A directory of its own for a test, removed at the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Scratch {
        let dir = std::env::temp_dir().join(format!("distlock-test-{}", AttemptId::random()));
        fs::create_dir(&dir).expect("a scratch directory");
        Scratch(dir)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The key that is the path of a file in here.
    fn key(&self, name: &str) -> Key {
        Key::new(self.file(name).to_str().unwrap()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // Every lock has an anchor.
        let mut names: Vec<_> = entries.filter(|name| name != "paths" && !name.ends_with(".held")).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Long enough for any machine; a test that needs it has failed.
const AT_LAST: Duration = Duration::from_secs(60);

fn engine(scratch: &Scratch) -> FileBackend {
    let engine = FileBackend::host(scratch.path());
    engine.attach(Attachment::standalone(&Handle::current()));
    engine
}

fn claim(key: &Key, owner: &str) -> Claim {
    let record = Record::new(OwnerId::new(owner).unwrap(), Process::current(), Some("test".into()), SystemTime::now());
    Claim::new(key.clone(), Duration::from_secs(10), true, Arc::new(record))
}

fn try_claim(key: &Key, owner: &str) -> Claim {
    Claim { queue: false, ..claim(key, owner) }
}

/// What the core does until a claim is granted.
async fn acquire(engine: &FileBackend, claim: &Claim) -> Grant {
    let granted = async {
        loop {
            let busy = match engine.claim(claim).await.unwrap() {
                Claimed::Granted(grant) => return grant,
                Claimed::Busy(busy) => busy,
            };
            match timeout(busy.poll_after.unwrap(), engine.wait(claim)).await {
                Ok(Wake::Granted(grant)) => return grant,
                Ok(Wake::Retry) | Err(_) => {}
            }
        }
    };
    timeout(AT_LAST, granted).await.expect("the lock is granted at last")
}

fn granted(claimed: Result<Claimed>) -> Grant {
    match claimed.unwrap() {
        Claimed::Granted(grant) => grant,
        Claimed::Busy(busy) => panic!("busy: {busy:?}"),
    }
}

fn busy(claimed: Result<Claimed>) -> Busy {
    match claimed.unwrap() {
        Claimed::Busy(busy) => busy,
        Claimed::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

#[tokio::test]
async fn claim_and_release_are_repeatable_and_tokens_rise() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let first = claim(&key, "first");
    let grant = granted(engine.claim(&first).await);
    assert_eq!(granted(engine.claim(&first).await).token, grant.token);
    let second = try_claim(&key, "second");
    let holder = busy(engine.claim(&second).await).holder.expect("a holder");
    assert_eq!((holder.record.unwrap().owner.as_str(), holder.token), ("first", Some(grant.token)));
    assert_eq!(engine.release(&second).await.unwrap(), Release::NotOurs);
    assert_eq!(engine.release(&first).await.unwrap(), Release::Released);
    assert_eq!(engine.release(&first).await.unwrap(), Release::NotOurs);
    assert!(granted(engine.claim(&second).await).token > grant.token);
    assert_eq!(scratch.names(), ["a.lock"]);
}

#[tokio::test]
async fn flock_and_we_exclude_each_other_both_ways() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let mut shell = Shell::holding(&scratch.file("x"));
    let found = busy(engine.claim(&try_claim(&key, "us")).await);
    assert_eq!(found.holder.expect("a holder").record, None, "flock is not one of ours");
    assert_eq!(engine.holder_pids(&key).unwrap(), [shell.pid()]);
    shell.end();
    let ours = claim(&key, "us");
    acquire(&engine, &ours).await;
    assert!(!Shell::can_lock(&scratch.file("x")));
    engine.release(&ours).await.unwrap();
    assert!(Shell::can_lock(&scratch.file("x")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_hears_of_flock_s_end_and_of_a_killed_holder() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let mut shell = Shell::holding(&scratch.file("x"));
    let ours = claim(&key, "us");
    let waiting = acquire_in_background(&engine, &ours).await;
    shell.end();
    let token = waiting.await.unwrap().token;
    engine.release(&ours).await.unwrap();

    let mut second = Second::start(scratch.path(), key.as_str(), "second");
    assert!(second.granted() > token.get());
    let again = claim(&key, "us again");
    let waiting = acquire_in_background(&engine, &again).await;
    second.kill();
    assert!(waiting.await.unwrap().token > token);
}

/// Begins to acquire, and returns once the claim stands in the queue.
async fn acquire_in_background(engine: &FileBackend, claim: &Claim) -> tokio::task::JoinHandle<Grant> {
    busy(engine.claim(claim).await);
    let (engine, claim) = (engine.clone(), claim.clone());
    tokio::spawn(async move { acquire(&engine, &claim).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_by_the_hint_alone_when_a_holder_is_killed() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let mut second = Second::start(scratch.path(), key.as_str(), "second");
    second.granted();
    let ours = claim(&key, "us");
    busy(engine.claim(&ours).await);
    // No poll here: nothing but inotify can end this.
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { timeout(AT_LAST, engine.wait(&ours)).await.expect("a hint") }
    });
    second.kill();
    assert!(matches!(waiting.await.unwrap(), Wake::Granted(_)));
}

#[tokio::test]
async fn a_removed_or_replaced_file_never_has_two_holders() {
    for replace in [false, true] {
        let scratch = Scratch::new();
        let (engine, other) = (engine(&scratch), engine(&scratch));
        for key in [scratch.key("x"), Key::new("bare").unwrap()] {
            let file = if key.as_str() == "bare" { scratch.file("bare.lock") } else { scratch.file("x") };
            let first = claim(&key, "first");
            let token = granted(engine.claim(&first).await).token;
            let lease = Lease::new(first.clone(), token);
            let second = claim(&key, "second");
            busy(other.claim(&second).await);
            fs::remove_file(&file).unwrap();
            if replace {
                fs::write(&file, "").unwrap();
            }
            busy(other.claim(&second).await);
            busy(other.claim(&try_claim(&key, "third")).await);
            assert!(matches!(engine.renew(&[lease]).await[..], [Ok(Renewal::Renewed(None))]), "still its holder");
            assert_eq!(engine.release(&first).await.unwrap(), Release::Released);
            let next = acquire(&other, &second).await;
            assert!(next.token > token, "the counter was removed, the token still rises");
            assert_eq!(other.release(&second).await.unwrap(), Release::Released);
        }
    }
}

#[tokio::test]
async fn without_lock_file_and_anchor_the_holder_is_told() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("bare").unwrap();
    let first = claim(&key, "first");
    let token = granted(engine.claim(&first).await).token;
    for file in ["bare.lock", "bare.held"] {
        fs::remove_file(scratch.file(file)).unwrap();
    }
    let renewed = engine.renew(&[Lease::new(first.clone(), token)]).await;
    assert!(matches!(renewed[..], [Ok(Renewal::Lost(LossReason::Revoked))]));
    assert_eq!(engine.release(&first).await.unwrap(), Release::NotOurs);
}

#[tokio::test]
async fn foreign_contents_stay_as_they_are() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("data");
    fs::write(scratch.file("data"), "mine\n").unwrap();
    let mut last = None;
    for owner in ["first", "second"] {
        let ours = claim(&key, owner);
        let token = granted(engine.claim(&ours).await).token;
        assert!(Some(token) > last.replace(token));
        let info = engine.get(&key).await.unwrap().expect("held");
        assert_eq!(info.holder().unwrap().token, Some(token));
        assert!(!Shell::can_lock(&scratch.file("data")));
        engine.release(&ours).await.unwrap();
        assert_eq!(engine.get(&key).await.unwrap().map(|info| info.key), None);
    }
    assert_eq!(fs::read(scratch.file("data")).unwrap(), b"mine\n");
    assert_eq!(scratch.names(), ["data", "data.distlock"]);
}

#[tokio::test]
async fn tokens_rise_when_the_counter_moves_into_the_file_or_out_of_it() {
    // Ahead of the clock, so that only the counters can tell.
    const AHEAD: u64 = 1 << 62;
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let ledger_at = |name| {
        let file = fs::File::options().read(true).write(true).create_new(true).open(scratch.file(name)).unwrap();
        protocol::lock_contents::LockContents::of(&file).advance(AHEAD).unwrap();
    };
    ledger_at("emptied.distlock");
    fs::write(scratch.file("emptied"), "").unwrap();
    let token = granted(engine.claim(&claim(&scratch.key("emptied"), "us")).await).token;
    assert!(token.get() > AHEAD, "{token}");

    // One who may only read the file has its counter beside it.
    ledger_at("both");
    let key = scratch.key("both");
    let place = engine.0.layout.find(&key).unwrap();
    let file = place.open_to_read().unwrap().unwrap();
    let taken = FileHold::take(&claim(&key, "us"), &place, file, &Clock::system()).unwrap();
    let TakeOutcome::Taken(hold) = taken else { panic!("{taken:?}") };
    assert!(hold.grant().token.get() > AHEAD);
    assert!(scratch.file("both.distlock").exists());
}

#[tokio::test]
async fn contents_that_appear_while_the_lock_is_held_are_not_touched() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let ours = claim(&scratch.key("x"), "us");
    granted(engine.claim(&ours).await);
    // `exec 9>x` does that, before it asks for the lock.
    let theirs = "y".repeat(1000);
    fs::write(scratch.file("x"), &theirs).unwrap();
    assert_eq!(engine.release(&ours).await.unwrap(), Release::Released);
    assert_eq!(fs::read_to_string(scratch.file("x")).unwrap(), theirs);
}

#[tokio::test]
async fn with_a_side_file_even_a_removed_lock_file_keeps_others_out() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("data");
    fs::write(scratch.file("data"), "mine").unwrap();
    let first = claim(&key, "first");
    granted(engine.claim(&first).await);
    fs::remove_file(scratch.file("data")).unwrap();
    fs::write(scratch.file("data"), "mine, edited").unwrap();
    busy(engine.claim(&try_claim(&key, "second")).await);
    assert_eq!(engine.release(&first).await.unwrap(), Release::Released);
    granted(engine.claim(&try_claim(&key, "third")).await);
}

#[tokio::test]
async fn a_foreign_side_file_or_file_in_our_directory_is_refused() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    fs::write(scratch.file("data"), "mine").unwrap();
    fs::write(scratch.file("data.distlock"), "mine too").unwrap();
    fs::write(scratch.file("a.lock"), "and this").unwrap();
    for key in [scratch.key("data"), Key::new("a").unwrap()] {
        let error = engine.claim(&claim(&key, "us")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    }
    assert_eq!(fs::read_to_string(scratch.file("data.distlock")).unwrap(), "mine too");
    assert_eq!(fs::read_to_string(scratch.file("a.lock")).unwrap(), "and this");
}

#[tokio::test]
async fn a_link_and_its_target_are_one_lock_and_a_directory_can_be_one() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    std::os::unix::fs::symlink("target", scratch.file("link")).unwrap();
    let through = claim(&scratch.key("link"), "us");
    granted(engine.claim(&through).await);
    busy(engine.claim(&claim(&scratch.key("target"), "waits")).await);
    assert_eq!(scratch.names(), ["link", "target", "target.distlock.q"]);
    let on_directory = claim(&scratch.key(""), "us");
    assert_eq!(on_directory.key.as_str().chars().last(), Some('/'));
    granted(engine.claim(&on_directory).await);
    assert!(!Shell::can_lock(scratch.path()));
    let _ = fs::remove_file(scratch.path().with_extension("distlock"));
}

#[tokio::test]
async fn a_link_where_anchors_are_kept_is_not_followed() {
    let (scratch, theirs) = (Scratch::new(), Scratch::new());
    let engine = engine(&scratch);
    std::os::unix::fs::symlink(theirs.path(), scratch.file("paths")).unwrap();
    granted(engine.claim(&claim(&scratch.key("x"), "us")).await);
    assert_eq!(fs::read_dir(theirs.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn tokens_rise_over_processes_and_torn_writes() {
    let scratch = Scratch::new();
    let key = scratch.key("x");
    let mut last = 0;
    for _ in 0..3 {
        let mut second = Second::start(scratch.path(), key.as_str(), "second");
        let token = second.granted();
        assert!(token > last);
        last = token;
        second.kill();
    }
    // A counter ahead of the clock, the newer slot torn: only the older slot can tell.
    let file = fs::File::options().write(true).read(true).open(scratch.file("x")).unwrap();
    let ahead = last * 2;
    for _ in 0..2 {
        last = protocol::lock_contents::LockContents::of(&file).advance(ahead).unwrap().get();
    }
    file.write_all_at(b"torn", 64).unwrap();
    let engine = engine(&scratch);
    let token = granted(engine.claim(&claim(&key, "us")).await).token.get();
    assert!(token >= last && token > ahead, "{token} after {last}");
}

#[tokio::test]
async fn odd_and_long_names_lock_and_are_listed_in_order() {
    let scratch = Scratch::new();
    let engine = FileBackend::in_dir(scratch.file("locks")).unwrap();
    let long = "é/".repeat(170);
    let names = ["..", "a/b", "a b", &long, "日本語", "%"];
    let mut expected: Vec<Key> = names.iter().map(|name| Key::new(name).unwrap()).collect();
    for key in &expected {
        granted(engine.claim(&claim(key, "us")).await);
    }
    let keys = |infos: Vec<LockInfo>| infos.into_iter().map(|info| info.key).collect::<Vec<_>>();
    expected.sort();
    assert_eq!(keys(engine.list("").await.unwrap()), expected);
    assert_eq!(keys(engine.list("a").await.unwrap()), [Key::new("a b").unwrap(), Key::new("a/b").unwrap()]);
    assert_eq!(scratch.names(), ["locks"], "no name leads out of the directory");
    engine.close().await.unwrap();
    assert!(engine.list("").await.unwrap().is_empty(), "the files stay, the locks are free");
}

#[tokio::test]
async fn a_live_kernel_lock_cannot_be_broken() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let kind = async |token| engine.force_release(&key, token, "test").await.unwrap_err();
    assert_eq!(kind(FencingToken::new(1)).await.kind(), ErrorKind::NotHeld);
    let ours = claim(&key, "us");
    let token = granted(engine.claim(&ours).await).token;
    assert_eq!(kind(FencingToken::new(1)).await.kind(), ErrorKind::NotHeld);
    let error = kind(token).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    engine.release(&ours).await.unwrap();
    let shell = Shell::holding(&scratch.file("x"));
    let error = kind(token).await;
    assert!(error.kind() == ErrorKind::Foreign && error.to_string().contains(&shell.pid().to_string()), "{error}");
}

#[tokio::test]
async fn after_a_crash_nobody_is_shown_as_the_holder() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let mut second = Second::start(scratch.path(), key.as_str(), "second");
    let token = second.granted();
    let holder = engine.get(&key).await.unwrap().unwrap().holders.remove(0);
    assert_eq!((holder.token.unwrap().get(), holder.record.unwrap().process.pid), (token, second.pid()));
    second.kill();
    assert!(engine.get(&key).await.unwrap().is_none());
    // The stale entry is not taken for the foreign holder that follows.
    let _shell = Shell::holding(&scratch.file("x"));
    assert_eq!(engine.get(&key).await.unwrap().unwrap().holder().unwrap().record, None);
}

#[tokio::test]
async fn a_copied_descriptor_keeps_the_lock_after_the_release() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = scratch.key("x");
    let ours = claim(&key, "us");
    assert!(engine.descriptor(&ours).unwrap().is_none());
    granted(engine.claim(&ours).await);
    let copy = engine.descriptor(&ours).unwrap().expect("held");
    engine.release(&ours).await.unwrap();
    busy(engine.claim(&try_claim(&key, "other")).await);
    drop(copy);
    granted(engine.claim(&try_claim(&key, "other")).await);
}

#[tokio::test]
async fn what_cannot_be_made_is_told_apart() {
    use std::error::Error as _;
    let scratch = Scratch::new();
    fs::write(scratch.file("plain"), "").unwrap();
    let errors = [
        FileBackend::in_dir(scratch.file("plain/locks")).unwrap_err(),
        engine(&scratch).claim(&claim(&scratch.key("missing/x"), "us")).await.unwrap_err(),
        engine(&scratch).claim(&claim(&scratch.key("plain/x"), "us")).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("cannot create lock"), "{error}");
        assert!(error.source().is_some_and(|source| source.is::<std::io::Error>()), "{error}");
    }
}
