//! Runs the cases of [`crate::cases`] on a set-up.

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use distlock::backend::Capabilities;

use crate::any_engine::BoxFuture;
use crate::setup::{Setup, World};

/// The time limit of a case.
const LIMIT: Duration = Duration::from_secs(120);

/// A case ready to run.
pub type CaseFuture<'a> = BoxFuture<'a, ()>;

/// A conformance case.
struct Case {
    name: &'static str,
    /// The capabilities that the case needs.
    needs: &'static [Need],
    body: Body,
}

type Need = (&'static str, fn(&Capabilities) -> bool);

/// The code of a case.
type Body = for<'a> fn(&'a World) -> CaseFuture<'a>;

/// Runs one case and panics if it fails. A case whose needs the engine does not meet is skipped and counted.
///
/// # Panics
/// When the case fails, or no case has this name.
pub fn run<S: Setup>(setup: &str, case: &str) {
    match attempt_by_name::<S>(case, LIMIT) {
        Outcome::Passed => {}
        Outcome::Skipped(need) => record_skip(&format!("{setup}/{case}: {need}")),
        Outcome::Failed(why) => panic!("{setup}/{case}: {why}"),
    }
}

/// Runs the case `name` on a new set-up, for at most `limit`.
///
/// # Panics
/// When no case has this name.
pub fn attempt_by_name<S: Setup>(name: &str, limit: Duration) -> Outcome {
    let case = CASES.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case {name}"));
    within(limit, World::start::<S>, case.needs, case.body)
}

/// Runs `body` on a new set-up, for at most `limit`.
pub fn attempt<S: Setup>(limit: Duration, body: Body) -> Outcome {
    within(limit, World::start::<S>, &[], body)
}

/// Returns the number of cases.
#[must_use]
pub fn count() -> usize {
    CASES.len()
}

/// Returns the cases that an engine with these capabilities skips, each with the first missing need.
#[must_use]
pub fn skips(able: &Capabilities) -> Vec<(&'static str, &'static str)> {
    CASES.iter().filter_map(|case| Some((case.name, first_missing(case.needs, able)?))).collect()
}

fn first_missing(needs: &[Need], able: &Capabilities) -> Option<&'static str> {
    needs.iter().find(|(_, has)| !has(able)).map(|(need, _)| *need)
}

/// The outcome of a case.
#[derive(Debug)]
pub enum Outcome {
    /// All assertions held.
    Passed,
    /// The engine lacks a capability that the case needs.
    Skipped(&'static str),
    /// An assertion failed, or the case took too long.
    Failed(String),
}

fn within(limit: Duration, start: fn() -> BoxFuture<'static, World>, needs: &'static [Need], body: Body) -> Outcome {
    let (report, reported) = std::sync::mpsc::channel();
    // A thread of its own, so that a case that blocks cannot block the test run beyond its limit.
    std::thread::spawn(move || {
        let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
            runtime.block_on(in_world(start, needs, body))
        }));
        let _ = report.send(done.unwrap_or_else(|panic| Outcome::Failed(message_of(&*panic))));
    });
    reported.recv_timeout(limit).unwrap_or_else(|_| Outcome::Failed(format!("not done within {limit:?}")))
}

async fn in_world(start: fn() -> BoxFuture<'static, World>, needs: &[Need], body: Body) -> Outcome {
    let world = start().await;
    match first_missing(needs, &world.capabilities().await) {
        Some(need) => Outcome::Skipped(need),
        None => {
            body(&world).await;
            Outcome::Passed
        }
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked").to_owned()
}

/// Records a skipped test as `<test>: <missing need>`. `cargo xtask test` counts the skips from this file, because the
/// output of a passing test is not shown.
pub fn record_skip(line: &str) {
    println!("skipped: {line}");
    if let Some(path) = std::env::var_os("DISTLOCK_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "skipped: {line}")).expect("the skip is recorded");
    }
}

/// Declares the cases: one list for the names, the needs and the tests that [`conformance!`](crate::conformance!) makes.
macro_rules! declare {
    ($d:tt $($name:ident [$($need:ident),*])+) => {
        const CASES: &[Case] = &[$(Case {
            name: stringify!($name),
            needs: &[$((stringify!($need), |able| able.$need)),*],
            body: |world| Box::pin(crate::cases::$name(world)),
        }),+];

        /// Makes one `#[test]` for each case and set-up: `conformance! { memory: MemorySetup, file: FileSetup }`.
        #[macro_export]
        macro_rules! conformance {
            ($d($d setup:ident: $d type:ty),+ $d(,)?) => {
                $d(mod $d setup {
                    #[allow(unused_imports)]
                    use super::*;
                    $crate::conformance_cases!($d setup, $d type);
                })+
            };
        }

        /// Makes the tests of one set-up.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! conformance_cases {
            ($d setup:ident, $d type:ty) => {
                $(#[test]
                fn $name() {
                    $crate::conformance::run::<$d type>(stringify!($d setup), stringify!($name));
                })+
            };
        }
    };
}

declare! { $
    one_holder_at_a_time []
    the_history_is_clean_under_load []
    try_lock_returns_none_while_held []
    each_clone_is_an_owner []
    a_second_request_of_the_owner_fails_at_once []
    reentry_counts_and_keeps_the_token []
    only_the_owner_releases []
    unlock_without_a_hold_is_an_error []
    a_detached_hold_is_unlocked_by_name []
    a_repeated_claim_returns_the_same_grant []
    a_repeated_release_changes_nothing []
    tokens_rise []
    unusual_names_are_distinct_locks []
    bad_input_is_refused_before_anything_is_sent []
    inspect_shows_holder_and_waiters [inspects, fair]
    force_release_notifies_the_holder [breaks]
    force_release_needs_the_right_token [breaks]
    acquire_dropped_at_every_poll []
    try_lock_dropped_at_every_poll []
    unlock_dropped_at_every_poll []
    extend_dropped_at_every_poll []
    a_dropped_guard_releases []
    a_guard_dropped_outside_a_runtime_releases []
    a_guard_outlives_its_runtime []
    a_panic_inside_releases []
    close_releases_everything []
    a_thousand_tasks_take_turns []
    lock_waits_until_it_is_released []
    a_timed_wait_ends_in_time_and_names_the_holder []
    a_timed_wait_names_the_holder_at_its_end [fair]
    a_zero_wait_claims_once []
    attempts_are_bounded []
    a_cancelled_wait_gives_up_its_place []
    waiters_are_served_in_order [fair]
    a_dead_waiter_is_skipped [fair, leases]
    one_wake_up_per_release [fair, wakes]
    closing_ends_waits []
    a_hold_outlives_its_lease_by_renewal []
    extending_makes_the_lease_longer [leases]
    without_a_watchdog_the_lease_ends [leases]
    max_hold_ends_the_hold []
    a_crashed_holder_blocks_for_one_lease [leases]
    a_cut_off_holder_expires_before_the_next_grant [leases]
    work_is_dropped_on_loss [leases]
    unlock_after_a_loss_says_lost [leases]
    readers_share_and_writers_exclude [shares]
    a_reader_behind_a_waiting_writer_waits [shares, fair]
    consecutive_readers_enter_together [shares, fair]
    readers_do_not_starve_a_writer [shares, fair]
    a_crashed_reader_blocks_for_one_lease [shares, leases]
    a_readers_token_lies_between_the_writers [shares]
    readers_and_writers_keep_a_clean_history [shares]
    slots_are_counted_and_the_lowest_is_granted_first [slots]
    a_semaphore_is_served_in_order [slots, fair]
    another_number_of_slots_is_refused [slots]
    a_crashed_permit_comes_back_after_one_lease [slots, leases]
    one_owner_may_have_several_permits [slots]
    a_semaphore_keeps_a_clean_history [slots]
    a_semaphore_grows_in_a_rolling_deploy [slots, fair]
    a_semaphore_shrinks_without_ending_a_hold [slots, fair]
    a_larger_size_does_not_overtake_a_waiter [slots, fair]
    a_killed_instance_of_the_old_size_makes_room [slots, leases]
    sizes_differ_only_if_all_requests_resize [slots]
    an_adopted_permit_keeps_its_size [slots, adopts]
    a_resized_semaphore_keeps_a_clean_history [slots]
    an_owner_reenters_from_another_client [reenters]
    a_reentry_bypasses_the_queue [reenters, fair]
    a_repeated_reentry_counts_once [reenters]
    a_crashed_reentry_leaves_the_others_inside [reenters, leases]
    reentries_keep_a_clean_history [reenters]
    several_locks_are_taken_without_deadlock []
    several_locks_are_all_or_nothing []
    several_locks_are_lost_together [breaks]
    several_locks_are_taken_in_one_step [claim_all]
    a_repeated_claim_all_returns_the_same_grants [claim_all]
    claim_all_never_holds_a_part [claim_all]
    at_least_keeps_a_lock_unlocked_early []
    closing_leaves_at_least_holds_to_their_lease [leases]
    an_unfed_watchdog_releases []
    a_lost_lock_is_not_granted_during_its_delay [delays]
    a_label_can_be_changed [amends, inspects]
    leaders_are_elected_in_queue_order [inspects, fair]
    a_hold_is_adopted [adopts]
    an_ended_hold_is_not_adopted [adopts]
    a_repeated_adoption_returns_the_same_grant [adopts, leases]
    an_asked_holder_hands_over [inspects, fair]
    the_history_records_every_hold [history]
    the_history_records_a_forced_release [history, breaks]
    a_history_is_bounded [history]
    without_history_no_entries_are_written [history]
    a_tick_runs_once [ticks]
    a_failed_run_is_repeated [ticks]
    a_run_under_way_is_reported_or_awaited [ticks]
    a_crashed_run_is_repeated_after_one_lease [ticks, leases]
    a_lost_run_is_not_done [ticks, breaks]
    only_the_holder_notes_a_tick [ticks]
    ticks_end_and_notes_are_forgotten [ticks]
    many_requests_make_one_run [ticks]
    once_dropped_at_every_poll [ticks]
    several_locks_dropped_at_every_poll []
    readers_and_writers_dropped_at_every_poll [shares]
    permits_dropped_at_every_poll [slots]
    elections_dropped_at_every_poll [inspects]
    adoption_dropped_at_every_poll [adopts]
    asking_dropped_at_every_poll [inspects, fair]
    inspection_dropped_at_every_poll [inspects]
    force_release_dropped_at_every_poll [breaks]
    close_dropped_at_every_poll []
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_declared() {
        let sources = [
            include_str!("cases.rs"),
            include_str!("cases/waits.rs"),
            include_str!("cases/leases.rs"),
            include_str!("cases/shared.rs"),
            include_str!("cases/semaphore.rs"),
            include_str!("cases/resizing.rs"),
            include_str!("cases/reentry.rs"),
            include_str!("cases/primitives.rs"),
            include_str!("cases/histories.rs"),
            include_str!("cases/once.rs"),
            include_str!("cases/drops.rs"),
        ];
        let lines = sources.iter().flat_map(|source| source.lines());
        let written: Vec<_> =
            lines.filter_map(|line| line.strip_prefix("pub async fn ")?.split(['<', '(']).next()).collect();
        let declared: Vec<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(written, declared, "cases.rs and the list, in the same order");
    }
}
