//! Short runs of every engine, and proof that each rule of the judge can fail.

use std::time::Duration;

use distlock_chaos::{Broken, Engine, Finding, Order, Outcome, TickViolation, describe, run};
use distlock_testkit::history::Violation;

fn order(engine: Engine, seconds: u64) -> Order {
    Order {
        engine,
        seed: 1,
        time: Duration::from_secs(seconds),
        serve_limit: Duration::from_secs(60),
        broken: None,
        program: env!("CARGO_BIN_EXE_distlock-chaos").into(),
        keep: None,
    }
}

/// Asserts that there are no findings, and that the run did something.
fn expect_clean(engine: Engine, seconds: u64) {
    let order = order(engine, seconds);
    let outcome = run(&order);
    println!("{}", describe(&order, &outcome));
    assert!(outcome.findings.is_empty(), "{}", describe(&order, &outcome));
    assert!(outcome.tally.granted > 10, "{}", describe(&order, &outcome));
    assert!(outcome.tally.faults.values().sum::<usize>() > 5, "{}", describe(&order, &outcome));
    // PostgreSQL has no ticks.
    assert!(outcome.tally.ticks_done > 0, "{}", describe(&order, &outcome));
}

#[test]
fn chaos_on_redis_has_no_findings() {
    expect_clean(Engine::Redis, 7);
}

#[test]
fn chaos_on_redlock_has_no_findings() {
    expect_clean(Engine::Redlock, 7);
}

#[test]
fn chaos_on_a_cluster_has_no_findings() {
    expect_clean(Engine::Cluster, 15);
}

#[test]
fn chaos_on_etcd_has_no_findings() {
    expect_clean(Engine::Etcd, 8);
}

#[test]
fn chaos_on_postgresql_has_no_findings() {
    expect_clean(Engine::Postgres, 8);
}

#[test]
fn chaos_on_files_has_no_findings() {
    expect_clean(Engine::File, 5);
}

fn outcome_of(broken: Broken, engine: Engine, seconds: u64) -> Outcome {
    let serve_limit = match broken {
        Broken::Hoards => 2,
        // Until every worker had every lock takes longer than detecting the defect.
        Broken::IgnoresDeadline => 6,
        _ => 20,
    };
    let serve_limit = Duration::from_secs(serve_limit);
    run(&Order { broken: Some(broken), serve_limit, ..order(engine, seconds) })
}

#[track_caller]
fn violation_of(broken: Broken, engine: Engine, seconds: u64) -> Violation {
    let outcome = outcome_of(broken, engine, seconds);
    let found = outcome.findings.iter().find_map(|finding| match finding {
        Finding::History { violation, excerpt } => Some((violation.clone(), excerpt.clone())),
        _ => None,
    });
    let (violation, excerpt) = found.unwrap_or_else(|| panic!("{broken:?} was not detected: {outcome:?}"));
    assert!(!excerpt.is_empty(), "the excerpt shows the events around it");
    violation
}

#[test]
fn workers_that_skip_the_lock_are_detected() {
    let found = violation_of(Broken::SkipsLock, Engine::File, 1);
    assert!(matches!(found, Violation::TwoHolders(_)), "{found:?}");
}

#[test]
fn workers_that_ignore_their_deadline_are_detected() {
    let found = violation_of(Broken::IgnoresDeadline, Engine::Redis, 1);
    assert!(matches!(found, Violation::TwoHolders(_)), "{found:?}");
}

#[test]
fn repeated_tokens_are_detected() {
    let found = violation_of(Broken::RepeatsToken, Engine::File, 1);
    assert!(matches!(found, Violation::TokenRepeated(_)), "{found:?}");
}

#[test]
fn falling_tokens_are_detected() {
    let found = violation_of(Broken::LowersToken, Engine::File, 1);
    assert!(matches!(found, Violation::TokenFell(_)), "{found:?}");
}

#[test]
fn an_open_fence_in_a_run_is_detected() {
    let found = violation_of(Broken::OpensFence, Engine::File, 1);
    assert!(matches!(found, Violation::StaleWrite { .. }), "{found:?}");
}

#[test]
fn overtaken_waiters_are_detected() {
    let found = violation_of(Broken::Barges, Engine::File, 2);
    assert!(matches!(found, Violation::Overtaken(_)), "{found:?}");
}

#[test]
fn unserved_waiters_are_detected() {
    let findings = outcome_of(Broken::Hoards, Engine::File, 1).findings;
    assert!(findings.iter().any(|finding| matches!(finding, Finding::NotServed { .. })), "{findings:?}");
}

#[test]
fn locks_lost_on_a_healthy_master_are_detected() {
    let findings = outcome_of(Broken::NeverRenews, Engine::Cluster, 6).findings;
    assert!(findings.iter().any(|finding| matches!(finding, Finding::LostUnharmed { .. })), "{findings:?}");
}

#[test]
fn leftover_state_is_detected() {
    // Until the last worker has ended, its locks are left, too.
    let order = Order { serve_limit: Duration::from_secs(15), ..order(Engine::Redis, 1) };
    let findings = run(&Order { broken: Some(Broken::Litters), ..order }).findings;
    let is_it = |finding: &Finding| matches!(finding, Finding::LeftBehind { names } if names == &["litter"]);
    assert!(findings.iter().any(is_it), "{findings:?}");
}

#[test]
fn ticks_that_every_process_runs_are_detected() {
    let findings = outcome_of(Broken::RepeatsTicks, Engine::File, 3).findings;
    let is_it = |finding: &Finding| match finding {
        Finding::Tick { violation, excerpt } => {
            matches!(violation, TickViolation::TwoSuccesses | TickViolation::RanAfterDone) && excerpt.contains("runs")
        }
        _ => false,
    };
    assert!(findings.iter().any(is_it), "{findings:?}");
}
