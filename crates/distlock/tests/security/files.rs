//! Hostile files in a lock directory that others may write to.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use distlock::{AttemptId, Locker};
use distlock_testkit::servers::Directory;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{count_panics, in_time, peak_memory_mb, use_all};

const MOST_MEMORY_MB: u64 = 500;

/// Something that nobody expects at a path: what it is called, and what makes it.
type Odd = (&'static str, fn(&Path));

const ODD: [Odd; 6] = [
    ("garbage", |path| fs::write(path, b"\xff\x00garbage").expect("written")),
    ("our header and garbage", |path| {
        let header = b"distlock 1: the fencing counter and the holder of a lock.      \n";
        fs::write(path, [header.as_slice(), &[b'9'; 4000]].concat()).expect("written");
    }),
    ("a terabyte", |path| File::create(path).and_then(|file| file.set_len(1 << 40)).expect("a sparse file")),
    ("a pipe", |path| mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("a pipe")),
    ("a link to endless zeros", |path| symlink("/dev/zero", path).expect("a link")),
    ("a directory", |path| fs::create_dir(path).expect("a directory")),
];

#[tokio::test(flavor = "multi_thread")]
async fn hostile_files_are_an_error_or_a_foreign_lock() {
    count_panics();
    for (what, make) in ODD {
        for name in ["a.lock", "a.held", "a.q", "a.in", "a.in/1", "a.in/slot-0-of-3"] {
            let directory = Directory::new();
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            make(&path);
            let locker = Locker::connect(&format!("file://{}", directory.path().display())).await.expect("connected");
            use_all(&locker, "a", &format!("{name} is {what}")).await;
        }
    }
    let peak = peak_memory_mb();
    assert!(peak < MOST_MEMORY_MB, "{peak} MB");
}

/// A process that lives may have written anything where its waiters say who they are.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_tickets_in_a_queue_hold_up_nobody_who_looks() {
    count_panics();
    for (what, make) in ODD {
        let directory = Directory::new();
        let queue = directory.path().join("a.q");
        fs::create_dir(&queue).expect("made");
        let session = AttemptId::random();
        let alive = File::create(queue.join(format!("{session}.live"))).expect("made");
        alive.lock().expect("locked");
        make(&queue.join(format!("{:020}-{}-{session}", 1, AttemptId::random())));
        let locker = Locker::connect(&format!("file://{}", directory.path().display())).await.expect("connected");
        let listed = in_time(what, locker.inspect().get("a")).await.expect("an answer");
        assert!(listed.is_none_or(|lock| lock.waiters.is_empty()), "{what} is nobody");
        use_all(&locker, "a", what).await;
    }
    let peak = peak_memory_mb();
    assert!(peak < MOST_MEMORY_MB, "{peak} MB");
}
