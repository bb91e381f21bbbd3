//! Some worlds, a reproducibility check, and proof that each rule of the judge can fail.

use std::time::Duration;

use distlock_simulation::{Broken, Engine, Finding, Order, run};
use distlock_testkit::history::Violation;

fn order(engine: Engine, seed: u64) -> Order {
    Order { engine, seed, time: Duration::from_secs(15), broken: None }
}

/// Asserts that there are no findings, and that the worlds did something.
fn expect_clean(engine: Engine, seeds: u64) {
    let mut sums = [0; 4];
    for seed in 0..seeds {
        let outcome = run(&order(engine, seed));
        let log = || outcome.log.join("\n");
        assert!(outcome.findings.is_empty(), "seed {seed}: {:?}\n{}", outcome.findings, log());
        sums.iter_mut().zip(outcome.figures).for_each(|(sum, figure)| *sum += figure);
    }
    let [asked, granted, in_order, stale] = sums;
    println!("{asked} asked, {granted} granted, {in_order} judged for their order, {stale} stale writes");
    assert!(granted > 20 * seeds as usize, "{sums:?}: nothing was tried");
    assert!(engine == Engine::Redlock || in_order > seeds as usize, "{sums:?}: no order was judged");
}

#[test]
fn many_worlds_have_no_findings() {
    expect_clean(Engine::Redis, 30);
}

#[test]
fn many_worlds_of_redlock_have_no_findings() {
    expect_clean(Engine::Redlock, 6);
}

#[test]
fn worlds_that_found_defects_have_no_findings_now() {
    for (engine, seed) in
        [(Engine::Redis, 1804), (Engine::Redlock, 1917), (Engine::Redlock, 2870), (Engine::Redlock, 3321)]
    {
        let outcome = run(&order(engine, seed));
        assert_eq!(outcome.findings, [], "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_log() {
    for order in
        [(Engine::Redis, 4), (Engine::Redis, 7), (Engine::Redlock, 3)].map(|(engine, seed)| order(engine, seed))
    {
        let (one, other) = (run(&order), run(&order));
        for (number, lines) in one.log.iter().zip(&other.log).enumerate() {
            assert_eq!(lines.0, lines.1, "{order:?}, line {number}");
        }
        assert_eq!(one.log.len(), other.log.len(), "{order:?}");
        assert!(one.log.len() > 100, "{order:?}: nothing happened");
    }
}

/// Returns the findings from a seed that is known to find something; should the protocol change, a nearby seed does.
fn findings(engine: Engine, broken: Broken, seed: u64) -> impl Iterator<Item = Finding> {
    let worlds = (seed..seed + 60).map(move |seed| run(&Order { broken: Some(broken), ..order(engine, seed) }));
    worlds.flat_map(|outcome| outcome.findings)
}

fn finding_of(broken: Broken, seed: u64) -> Option<Finding> {
    findings(Engine::Redis, broken, seed).next()
}

/// Other findings may come first: two simultaneous holders also overtake each other.
#[track_caller]
fn expect_two_holders(engine: Engine, broken: Broken, seed: u64) {
    let is_it = |finding: Finding| matches!(finding, Finding::History(Violation::TwoHolders(_)));
    assert!(findings(engine, broken, seed).any(is_it), "{broken:?} is not detected");
}

#[test]
fn a_release_without_an_owner_check_is_detected() {
    expect_two_holders(Engine::Redis, Broken::ReleasesWithoutOwnerCheck, 0);
}

#[test]
fn leases_shorter_than_their_holders_believe_are_detected() {
    expect_two_holders(Engine::Redis, Broken::HalvesLeases, 4);
}

#[test]
fn deadlines_by_slow_clocks_are_detected() {
    expect_two_holders(Engine::Redis, Broken::SlowClocks, 7);
}

#[test]
fn data_lost_without_a_restart_guard_is_detected() {
    expect_two_holders(Engine::Redis, Broken::LosesDataUnguarded, 13);
}

#[test]
fn a_clock_jump_without_a_restart_guard_is_detected() {
    expect_two_holders(Engine::Redlock, Broken::LeapsUnguarded, 13);
}

#[test]
fn tokens_that_do_not_start_at_the_clock_are_detected() {
    let finding = finding_of(Broken::CountsFromOne, 2);
    let Some(Finding::History(violation)) = finding else { panic!("{finding:?}") };
    let is_it =
        matches!(violation, Violation::TokenRepeated(_) | Violation::TokenFell(_) | Violation::StaleWrite { .. });
    assert!(is_it, "{violation:?}");
}

#[test]
fn a_queue_served_from_its_end_is_detected() {
    let finding = finding_of(Broken::ServesLastFirst, 1);
    assert!(matches!(finding, Some(Finding::History(Violation::Overtaken(_)))), "{finding:?}");
}

#[track_caller]
fn expect_overtaken(broken: Broken, seed: u64) {
    let is_it = |finding: Finding| matches!(finding, Finding::History(Violation::Overtaken(_)));
    assert!(findings(Engine::Redis, broken, seed).any(is_it), "{broken:?} is not detected");
}

#[test]
fn a_queue_that_expires_before_its_longest_waiter_is_detected() {
    expect_overtaken(Broken::ShortensQueues, 486);
}

#[test]
fn newcomers_that_overtake_behind_dead_waiters_are_detected() {
    expect_overtaken(Broken::StopsAtDeadWaiters, 255);
}

#[test]
fn an_open_fence_is_detected() {
    let finding = finding_of(Broken::OpenFence, 19);
    assert!(matches!(finding, Some(Finding::History(Violation::StaleWrite { .. }))), "{finding:?}");
}

#[test]
fn locks_that_are_never_deleted_are_detected() {
    let finding = finding_of(Broken::NeverForgets, 2);
    assert!(matches!(finding, Some(Finding::NotServed(_) | Finding::LeftBehind(_))), "{finding:?}");
}

#[test]
fn contended_locks_lost_in_rolling_restarts_are_detected() {
    let mut findings = findings(Engine::Redlock, Broken::NeverHeals, 0);
    assert!(findings.any(|finding| matches!(finding, Finding::KeepLost(_))), "restarts cost nothing");
}

#[test]
fn contended_locks_outlive_rolling_restarts() {
    // Every third world has rolling restarts.
    for seed in (0..18).step_by(3) {
        let outcome = run(&order(Engine::Redlock, seed));
        assert!(outcome.log.iter().any(|line| line.ends_with("keeps it")), "seed {seed}: nothing was kept");
        assert!(outcome.findings.is_empty(), "seed {seed}: {:?}\n{}", outcome.findings, outcome.log.join("\n"));
    }
}
