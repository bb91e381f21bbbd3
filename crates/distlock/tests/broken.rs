//! The suite detects defects: each deliberately broken engine fails the cases named for it.

use std::time::Duration;

use distlock_testkit::broken::{BrokenSetup, Flaw, Flawed};
use distlock_testkit::conformance::{Outcome, attempt_by_name};

/// Long enough for the passing cases on a slow machine, short enough for those that hang.
const LIMIT: Duration = Duration::from_secs(20);

fn check_detected<F: Flawed>(cases: &[&str]) {
    for case in cases {
        let outcome = attempt_by_name::<BrokenSetup<F>>(case, LIMIT);
        assert!(matches!(outcome, Outcome::Failed(_)), "{:?} passed {case}: {outcome:?}", F::FLAW);
    }
}

macro_rules! flaws {
    ($($test:ident $flaw:ident: $($case:ident)+;)+) => {$(
        #[test]
        fn $test() {
            struct This;
            impl Flawed for This {
                const FLAW: Flaw = Flaw::$flaw;
            }
            check_detected::<This>(&[$(stringify!($case)),+]);
        }
    )+};
}

flaws! {
    never_releases NeverReleases: try_lock_returns_none_while_held close_releases_everything;
    ignores_the_owner IgnoresTheOwner: only_the_owner_releases a_repeated_release_changes_nothing;
    renews_after_loss RenewsAfterLoss: force_release_notifies_the_holder;
    repeats_tokens RepeatsTokens: tokens_rise the_history_is_clean_under_load;
    grants_every_claim GrantsEveryClaim: one_holder_at_a_time try_lock_returns_none_while_held the_history_is_clean_under_load;
    counts_a_repeat_twice CountsARepeatTwice: a_repeated_claim_returns_the_same_grant;
    starts_the_lease_late StartsTheLeaseLate: a_cut_off_holder_expires_before_the_next_grant without_a_watchdog_the_lease_ends;
    never_renews NeverRenews: a_hold_outlives_its_lease_by_renewal a_detached_hold_is_unlocked_by_name;
    forgets_the_queue ForgetsTheQueue: waiters_are_served_in_order inspect_shows_holder_and_waiters a_larger_size_does_not_overtake_a_waiter;
    wakes_the_herd WakesTheHerd: one_wake_up_per_release;
    keeps_dead_waiters KeepsDeadWaiters: a_cancelled_wait_gives_up_its_place;
    hangs Hangs: tokens_rise;
    hides_locks HidesLocks: inspect_shows_holder_and_waiters unusual_names_are_distinct_locks;
    forces_without_looking ForcesWithoutLooking: force_release_needs_the_right_token;
    shares_with_writers SharesWithWriters: readers_share_and_writers_exclude readers_and_writers_keep_a_clean_history;
    starves_writers StarvesWriters: a_reader_behind_a_waiting_writer_waits;
    oversells_slots OversellsSlots: slots_are_counted_and_the_lowest_is_granted_first a_semaphore_keeps_a_clean_history;
    lets_any_owner_enter LetsAnyOwnerEnter: an_owner_reenters_from_another_client reentries_keep_a_clean_history;
    counts_entries_as_grants CountsEntriesAsGrants: an_owner_reenters_from_another_client a_repeated_reentry_counts_once;
    forgets_the_delay ForgetsTheDelay: a_lost_lock_is_not_granted_during_its_delay;
    adopts_nothing AdoptsNothing: a_hold_is_adopted an_ended_hold_is_not_adopted;
    keeps_the_label KeepsTheLabel: a_label_can_be_changed;
    takes_some_of_several TakesSomeOfSeveral: claim_all_never_holds_a_part;
    counts_several_twice CountsSeveralTwice: a_repeated_claim_all_returns_the_same_grants;
    largest_size_wins LargestSizeWins: a_semaphore_shrinks_without_ending_a_hold;
    smallest_size_wins SmallestSizeWins: a_semaphore_grows_in_a_rolling_deploy;
    oversells_resized OversellsResized: a_semaphore_grows_in_a_rolling_deploy a_resized_semaphore_keeps_a_clean_history;
    never_resizes NeverResizes: a_semaphore_grows_in_a_rolling_deploy a_semaphore_shrinks_without_ending_a_hold an_adopted_permit_keeps_its_size;
    resizes_unasked ResizesUnasked: sizes_differ_only_if_all_requests_resize another_number_of_slots_is_refused;
    never_forgets NeverForgets: a_history_is_bounded;
    notes_for_anyone NotesForAnyone: only_the_holder_notes_a_tick;
    forgets_done_ticks ForgetsDoneTicks: a_tick_runs_once many_requests_make_one_run;
    forgets_starts ForgetsStarts: a_failed_run_is_repeated;
    never_forgets_ticks NeverForgetsTicks: ticks_end_and_notes_are_forgotten;
}
