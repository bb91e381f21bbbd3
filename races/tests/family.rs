//! A family of lockers under schedules that tests on real threads do not reach: the real table of holds, keeper,
//! guards and waits, on the memory engine.

mod common;

use std::time::Duration;

use common::{Scene, TTL, end_somehow, explore};
use distlock_races::backend::memory::{Fault, Operation};
use distlock_races::{ErrorKind, LossReason};
use shuttle::future::block_on;
use shuttle::thread;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(1);

#[test]
fn contenders_enter_one_by_one_and_leave_nothing() {
    explore(|| {
        let mut scene = Scene::new();
        for _ in 0..3 {
            scene.act(|locker, ward| {
                let guard = block_on(locker.lock("k").into_future()).unwrap();
                let token = ward.enter(guard);
                thread::yield_now();
                end_somehow(ward.leave(token));
            });
        }
        // Time stands still: a waiter that is not woken would hang here.
        scene.play();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn an_ended_lease_is_noticed_before_the_next_grant() {
    explore(|| {
        let mut scene = Scene::new();
        // Replies to renewals that arrive when the lease they renew would already have ended.
        (0..4).for_each(|_| scene.store.script(Operation::Renew, Fault::DelayReply(TTL * 3 / 4)));
        for watchdog in [true, false] {
            scene.act(move |locker, ward| {
                let guard = block_on(locker.lock("k").watchdog(watchdog).into_future()).unwrap();
                let token = ward.enter(guard);
                let mut was_lost = false;
                for _ in 0..8 {
                    let is_lost = ward.is_lost(token);
                    assert!(is_lost || !was_lost, "a lost guard came back");
                    was_lost = is_lost;
                    thread::yield_now();
                }
                end_somehow(ward.leave(token));
            });
        }
        scene.play_in_time();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn a_lost_guard_stays_lost_for_its_first_reason_while_it_is_renewed_broken_and_closed() {
    explore(|| {
        let mut scene = Scene::new();
        let guard = block_on(scene.locker.lock("k").into_future()).unwrap();
        let token = guard.fencing_token();
        scene.act(move |locker, _| {
            // The hold may have been lost before, or the family closed.
            let _ = block_on(locker.inspect().force_release("k", token, "race"));
        });
        scene.act(|locker, _| drop(block_on(locker.close())));
        scene.act(move |_, _| {
            let mut reason = None;
            for _ in 0..6 {
                let seen = guard.check().err().map(|error| error.to_string());
                assert!(reason.is_none() || reason == seen, "{reason:?} became {seen:?}");
                reason = seen;
                thread::yield_now();
            }
            let _ = block_on(guard.lost());
            assert!(guard.is_lost());
            end_somehow(guard);
        });
        scene.play_in_time();
        scene.assert_nothing_stays();
    });
}

#[test]
fn a_forced_release_reaches_a_brand_new_guard() {
    explore(|| {
        let mut scene = Scene::new();
        scene.act(|locker, _| {
            let guard = block_on(locker.lock("k").into_future()).unwrap();
            // Time stands still, so that no renewal can report the loss.
            assert_eq!(block_on(guard.lost()), LossReason::Broken);
        });
        scene.act(|locker, _| {
            let lock = loop {
                match block_on(locker.inspect().get("k")).unwrap() {
                    Some(lock) if !lock.holders.is_empty() => break lock,
                    _ => thread::yield_now(),
                }
            };
            let token = lock.holders[0].token.unwrap();
            block_on(locker.inspect().force_release("k", token, "race")).unwrap();
        });
        scene.play();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn ending_a_lost_hold_does_not_end_its_owners_next_hold() {
    explore(|| {
        let mut scene = Scene::new();
        let lost = block_on(scene.locker.lock("k").owner("o").into_future()).unwrap();
        block_on(scene.locker.inspect().force_release("k", lost.fencing_token(), "race")).unwrap();
        scene.act(|locker, _| {
            let lost_before = lost;
            block_on(lost_before.lost());
            drop(locker);
            end_somehow(lost_before);
        });
        scene.act(|locker, _| {
            let again = loop {
                match block_on(locker.lock("k").owner("o").into_future()) {
                    // The keeper has not updated the table yet.
                    Err(error) if error.kind() == ErrorKind::AlreadyHeld => thread::yield_now(),
                    again => break again.unwrap(),
                }
            };
            again.detach();
            thread::yield_now();
            block_on(locker.unlock("k").owner("o").into_future()).unwrap();
        });
        scene.play();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn cancelled_waits_neither_keep_nor_block_the_lock() {
    explore(|| {
        let mut scene = Scene::new();
        for _ in 0..2 {
            scene.act(|locker, ward| {
                if let Ok(guard) = block_on(timeout(SOON, locker.lock("k").into_future())) {
                    let token = ward.enter(guard.unwrap());
                    end_somehow(ward.leave(token));
                }
            });
        }
        scene.act(|locker, ward| {
            let token = ward.enter(block_on(locker.lock("k").into_future()).unwrap());
            thread::yield_now();
            end_somehow(ward.leave(token));
        });
        scene.play();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn closing_at_every_stage_of_a_lock_leaves_nothing() {
    explore(|| {
        let mut scene = Scene::new();
        for _ in 0..2 {
            scene.act(|locker, ward| match block_on(locker.lock("k").into_future()) {
                Ok(guard) => {
                    let token = ward.enter(guard);
                    thread::yield_now();
                    end_somehow(ward.leave(token));
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
            });
        }
        scene.act(|locker, _| block_on(locker.close()).unwrap());
        scene.play();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn a_guard_dropped_while_the_family_closes_is_released() {
    explore(|| {
        let mut scene = Scene::new();
        let guard = block_on(scene.locker.lock("k").into_future()).unwrap();
        scene.act(|_, _| drop(guard));
        // No other actor: with fewer steps, more of their orders are tried.
        block_on(scene.locker.close()).unwrap();
        scene.play();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn lost_returns_when_the_lease_ends() {
    explore(|| {
        let mut scene = Scene::new();
        for name in ["a", "b"] {
            scene.act(move |locker, _| {
                let guard = block_on(locker.lock(name).watchdog(false).into_future()).unwrap();
                assert_eq!(block_on(guard.lost()), LossReason::Expired);
            });
        }
        scene.play_in_time();
        scene.assert_nothing_stays();
    });
}

#[test]
fn a_dropped_family_releases_its_locks() {
    explore(|| {
        let mut scene = Scene::new();
        scene.act(|locker, _| block_on(locker.lock("k").into_future()).unwrap().detach());
        scene.act(|locker, _| drop(block_on(timeout(SOON, locker.lock("k").into_future()))));
        scene.play();
        let Scene { store, locker, .. } = scene;
        drop(locker);
        // The keeper ends by itself, without a close.
        while !store.is_empty() {
            thread::yield_now();
        }
        assert!(store.is_empty());
    });
}

#[test]
fn a_reentered_lock_is_free_after_the_second_unlock() {
    explore(|| {
        let mut scene = Scene::new();
        for _ in 0..2 {
            scene.act(|locker, _| {
                let guard = block_on(locker.lock("k").owner("twice").reentrant().into_future()).unwrap();
                thread::yield_now();
                assert!(!guard.is_lost(), "the other one left, not this one");
                end_somehow(guard);
            });
        }
        scene.act(|locker, ward| {
            let token = ward.enter(block_on(locker.lock("k").into_future()).unwrap());
            thread::yield_now();
            let guard = ward.leave(token);
            assert!(!guard.is_lost());
            end_somehow(guard);
        });
        scene.play();
        scene.assert_nothing_is_left();
    });
}

#[test]
fn a_lock_kept_by_at_least_is_released_then_and_not_before() {
    explore(|| {
        let mut scene = Scene::new();
        let held_until = scene.clock.now().after(TTL / 2);
        scene.act(|locker, _| end_somehow(block_on(locker.lock("k").at_least(TTL / 2).into_future()).unwrap()));
        scene.play();
        let clock = scene.clock.clone();
        scene.act(move |locker, _| {
            let guard = block_on(locker.lock("k").into_future()).unwrap();
            assert!(clock.now() >= held_until);
            end_somehow(guard);
        });
        scene.play_in_time();
        // Observers get no event for a lock that is still kept at the end: it is left to its lease.
        scene.assert_nothing_stays();
    });
}
