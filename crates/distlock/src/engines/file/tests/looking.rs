//! Claims that are not to wait, while others look at the lock.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::*;
use crate::engines::file::claim::SHARERS_RETRY_PAUSES;
use crate::types::mode::Mode;

fn try_in_mode(mode: Mode, key: &Key) -> Claim {
    let claim = try_claim(key, "us");
    let record = Arc::new(Record::clone(&claim.record).with_mode(mode));
    Claim { record, ..claim }
}

/// A file as a listing has it for a moment.
fn looked_at(path: &Path) -> File {
    let file = File::open(path).unwrap();
    file.lock_shared().unwrap();
    file
}

/// The one who looks is done as soon as the claim lets it.
#[tokio::test]
async fn a_try_that_meets_nothing_but_a_look_looks_again() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let slot = Mode::Slot { of: 1 };
    fs::create_dir(scratch.file("a.in")).unwrap();
    for (mode, file) in [(Mode::Exclusive, "a.lock"), (slot, "a.in/slot-0-of-1"), (Mode::Exclusive, "a.lock")] {
        fs::create_dir_all(scratch.file(file).parent().unwrap()).unwrap();
        drop(File::options().create(true).append(true).open(scratch.file(file)).unwrap());
        let look = looked_at(&scratch.file(file));
        let looked = tokio::spawn(async move { drop(look) });
        let ours = try_in_mode(mode, &key);
        granted(engine.claim(&ours).await);
        looked.await.unwrap();
        assert_eq!(engine.release(&ours).await.unwrap(), Release::Released);
    }
}

/// Those who stay are not waited for: readers of ours not at all, strangers for as long as a look may take.
#[tokio::test(start_paused = true)]
async fn a_try_that_meets_who_stays_is_busy_in_bounded_time() {
    let scratch = Scratch::new();
    let engine = engine(&scratch);
    let key = Key::new("a").unwrap();
    let reader = try_in_mode(Mode::Shared, &key);
    granted(engine.claim(&reader).await);
    let asked = Instant::now();
    busy(engine.claim(&try_claim(&key, "us")).await);
    assert_eq!(asked.elapsed(), Duration::ZERO, "one of ours is inside");
    engine.release(&reader).await.unwrap();

    let _stranger = looked_at(&scratch.file("a.lock"));
    busy(engine.claim(&try_claim(&key, "us")).await);
    let most = SHARERS_RETRY_PAUSES.iter().sum::<Duration>() + Duration::from_millis(SHARERS_RETRY_PAUSES.len() as u64);
    assert!(asked.elapsed() <= most, "{:?}", asked.elapsed());
    busy(engine.claim(&claim(&key, "waiter")).await);
    assert!(asked.elapsed() <= most, "who waits has its place in the queue meanwhile");
}

#[test]
fn a_thousand_tries_among_listings_never_fail_falsely() {
    const TRIES: usize = 1000;
    let scratch = Scratch::new();
    let done = AtomicBool::new(false);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                runtime().block_on(async {
                    let engine = engine(&scratch);
                    while !done.load(Ordering::Relaxed) {
                        engine.list("").await.unwrap();
                    }
                });
            });
        }
        let failed = runtime().block_on(async {
            let (engine, key) = (engine(&scratch), Key::new("a").unwrap());
            let mut failed = 0;
            for _ in 0..TRIES {
                let ours = try_claim(&key, "us");
                match engine.claim(&ours).await.unwrap() {
                    Claimed::Granted(_) => {
                        let held = fs::read(scratch.file("a.lock")).unwrap();
                        engine.release(&ours).await.unwrap();
                        // As one leaves it who crashes: an entry whose author the kernel's list does not show. Who
                        // lists the locks then has to try the lock itself.
                        let file = File::options().write(true).open(scratch.file("a.lock")).unwrap();
                        file.write_all_at(&held, 0).unwrap();
                    }
                    Claimed::Busy(_) => failed += 1,
                }
            }
            failed
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0, "of {TRIES}");
    });
}
