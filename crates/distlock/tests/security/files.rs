//! Hostile files in a lock directory that others may write to.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use distlock::{AttemptId, Clock, ErrorKind, HistoryKind, Locker};
use distlock_testkit::servers::Directory;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{count_panics, in_time, peak_memory_mb, use_all};

/// Ten times what is needed, and a fraction of the longest file.
const MOST_MEMORY_MB: u64 = 200;
/// This much memory is available, so only a bound keeps the file from being read.
const LONG: u64 = 1 << 30;

const HEADER: &[u8] = b"distlock 1: the fencing counter and the holder of a lock.      \n";
const RECORD: &str = r#"{"owner":"x","host":"h","pid":1,"user":"u","since_ms":1}"#;
const NUMBER: &str = "00000000000000000001";
const SLOT: &str = "slot-0-of-3";

/// An unexpected thing at a path: its name, and how to create it. The second path is a foreign directory, as a target
/// of links.
type Odd = (&'static str, fn(&Path, &Path));

const ODD: [Odd; 10] = [
    ("garbage", |path, _| fs::write(path, b"\xff\x00garbage").expect("written")),
    ("our header and garbage", |path, _| fs::write(path, [HEADER, &[b'9'; 4000]].concat()).expect("written")),
    ("our header and a gigabyte", |path, _| {
        fs::write(path, HEADER).expect("written");
        File::options().write(true).open(path).and_then(|file| file.set_len(LONG)).expect("a sparse file");
    }),
    ("a gigabyte", |path, _| File::create(path).and_then(|file| file.set_len(LONG)).expect("a sparse file")),
    ("a pipe", |path, _| mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("a pipe")),
    ("a directory", |path, _| fs::create_dir(path).expect("a directory")),
    ("a link to endless zeros", |path, _| symlink("/dev/zero", path).expect("a link")),
    ("a link to an empty file", |path, theirs| symlink(theirs.join("empty"), path).expect("a link")),
    ("a link to nothing", |path, theirs| symlink(theirs.join("nothing"), path).expect("a link")),
    ("a link to a directory", |path, theirs| symlink(theirs, path).expect("a link")),
];

/// Returns a foreign directory, in which all files have the names of ours.
fn theirs() -> Directory {
    let directory = Directory::new();
    let ticket = format!("{:020}-{}-{}", 1, AttemptId::random(), AttemptId::random());
    let session = format!("{}.live", AttemptId::random());
    for name in ["empty", NUMBER, SLOT, &ticket, &session] {
        fs::write(directory.path().join(name), b"").expect("written");
    }
    fs::write(directory.path().join("record"), RECORD).expect("written");
    directory
}

fn contents(directory: &Directory) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(directory.path()).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.map(|path| (path.clone(), fs::read(&path).expect("read"))).collect()
}

async fn locker_in(directory: &Directory) -> Locker {
    Locker::connect(&format!("file://{}?history=10", directory.path().display())).await.expect("connected")
}

fn expect_little_memory() {
    let peak = peak_memory_mb();
    assert!(peak < MOST_MEMORY_MB, "{peak} MB");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_files_are_an_error_or_a_foreign_lock() {
    count_panics();
    let theirs = theirs();
    let before = contents(&theirs);
    for (what, make) in ODD {
        for name in ["a.lock", "a.held", "a.log", "a.q", "a.in", &format!("a.in/{NUMBER}"), &format!("a.in/{SLOT}")] {
            if name == "a.log" && what.contains("our header") {
                // There is none.
                continue;
            }
            let directory = Directory::new();
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            make(&path, theirs.path());
            let what = format!("{name} is {what}");
            let locker = locker_in(&directory).await;
            let neighbour = locker.lock("neighbour").await.expect("granted");
            let granted = use_all(&locker, "a", &what).await;
            let listed =
                in_time(&what, locker.inspect().list("")).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(listed.iter().any(|lock| lock.key == *neighbour.key()), "hidden because {what}");
            // Closing also writes its history.
            let _ = in_time(&what, locker.close()).await;
            let is_ours = name != "a.lock" || what.contains("our header");
            assert!(is_ours || granted == 0, "granted {granted} times though {what}");
            assert_eq!(contents(&theirs), before, "{what}");
        }
    }
    expect_little_memory();
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_files_at_a_long_names_directory_lead_nowhere() {
    count_panics();
    let theirs = theirs();
    let before = contents(&theirs);
    let (piece, key) = ("a".repeat(200), "a".repeat(300));
    for (what, make) in ODD {
        let directory = Directory::new();
        make(&directory.path().join(format!("{piece}.d")), theirs.path());
        let locker = locker_in(&directory).await;
        let granted = use_all(&locker, &key, what).await;
        let _ = in_time(what, locker.close()).await;
        assert_eq!(granted > 0, what == "a directory", "granted {granted} times though it is {what}");
        assert_eq!(contents(&theirs), before, "{what}");
    }
    expect_little_memory();
}

/// A live process may have written anything into its waiters' tickets.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_tickets_in_a_queue_do_not_block_readers() {
    count_panics();
    let theirs = theirs();
    let before = contents(&theirs);
    let waits: Odd = ("a waiter's own words", |path, _| fs::write(path, RECORD).expect("written"));
    let link: Odd = ("a link to a record", |path, theirs| symlink(theirs.join("record"), path).expect("a link"));
    for (what, make) in ODD.into_iter().chain([waits, link]) {
        let directory = Directory::new();
        let queue = directory.path().join("a.q");
        fs::create_dir(&queue).expect("made");
        let session = AttemptId::random();
        let alive = File::create(queue.join(format!("{session}.live"))).expect("made");
        alive.lock().expect("locked");
        // A recent ticket: without a sign of life for some time it would be skipped.
        let number = Clock::system().now().as_nanos();
        make(&queue.join(format!("{number:020}-{}-{session}", AttemptId::random())), theirs.path());
        let locker = locker_in(&directory).await;
        let listed = in_time(what, locker.inspect().get("a")).await.expect("an answer");
        assert_eq!(listed.map_or(0, |lock| lock.waiters.len()), usize::from(what == waits.0), "{what}");
        assert_eq!(use_all(&locker, "a", what).await, 0, "{what}, and its process lives and is before us");
        assert_eq!(contents(&theirs), before, "{what}");
    }
    expect_little_memory();
}

/// It starts like ours, so that only a bound keeps the rest from being read and rewritten.
#[tokio::test(flavor = "multi_thread")]
async fn reading_a_history_costs_only_its_last_entries() {
    let directory = Directory::new();
    let path = directory.path().join("a.log");
    fs::write(&path, entry()).expect("written");
    File::options().write(true).open(&path).and_then(|file| file.set_len(LONG)).expect("a sparse file");
    let locker = locker_in(&directory).await;
    let before = bytes_read();
    assert_eq!(in_time("history", locker.inspect().history("a", 10)).await.expect("an answer"), []);
    let guard = in_time("lock", locker.lock("a")).await.expect("granted");
    assert!(guard.unlock().await.is_ok());
    assert!(in_time("close", locker.close()).await.is_ok());
    let read = bytes_read() - before;
    assert!(read < 4 << 20, "{read} bytes");
    let text = fs::read_to_string(&path).expect("text");
    assert!(text.lines().count() == 2 && text.contains("released"), "{text}");
}

/// Returns how many bytes of files this process has read.
fn bytes_read() -> u64 {
    let counts = fs::read_to_string("/proc/self/io").expect("Linux");
    let count = counts.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("a count");
    count.parse().expect("a number")
}

/// A line of a history.
fn entry() -> String {
    format!("{{\"at_ms\":1,\"what\":\"acquired\",\"token\":1,{}\n", &RECORD[1..])
}

/// A lock may have the name of another program, whose log is in the same directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_file_is_no_history_and_stays_unchanged() {
    let directory = Directory::new();
    let file = |name: &str| directory.path().join(name);
    let log = "2026-01-01 started\n".repeat(1000);
    for name in ["app.log", "app.new", "job.new"] {
        fs::write(file(name), &log).expect("written");
    }
    fs::write(file("job.log"), entry().repeat(1000)).expect("written");
    let locker = locker_in(&directory).await;
    for key in ["app", "job"] {
        let guard = in_time(key, locker.lock(key)).await.expect("it is a lock like any other");
        assert!(guard.unlock().await.is_ok());
    }
    // Closing writes the histories.
    assert!(in_time("close", locker.close()).await.is_ok());
    for name in ["app.log", "app.new", "job.new"] {
        assert!(fs::read_to_string(file(name)).is_ok_and(|text| text == log), "{name}");
    }
    let locker = locker_in(&directory).await;
    let foreign = locker.inspect().history("app", 10).await.expect_err("it is no history");
    assert!(foreign.kind() == ErrorKind::Foreign && foreign.to_string().contains("app.log"), "{foreign}");
    let kinds: Vec<_> = locker.inspect().history("job", 3).await.expect("ours").iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [HistoryKind::Acquired, HistoryKind::Acquired, HistoryKind::Released]);
    assert_eq!(fs::read_to_string(file("job.log")).expect("text").lines().count(), 10);
    let names: Vec<_> =
        fs::read_dir(directory.path()).expect("a directory").map(|it| it.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 4 + 4, "lock, anchor and what was there: {names:?}");
}
