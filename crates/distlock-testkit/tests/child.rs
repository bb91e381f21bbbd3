//! The kit's second process takes locks, and can be frozen and killed.

use std::path::Path;
use std::time::Duration;

use distlock::Clock;
use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::servers::eventually;

distlock_testkit::child!();

const TTL: Duration = Duration::from_millis(600);

#[test]
fn a_child_takes_and_releases() {
    let mut child = Child::start();
    child.connect("mem://");
    let before = Clock::system().now();
    let first = child.lock("k", TTL);
    assert!(before <= first.began && first.began < first.ended && first.ended <= Clock::system().now());
    assert!(first.deadline() > first.ended && first.deadline() <= first.ended.after(TTL));
    assert_eq!(child.state("k").outcome, Outcome::State("Held".into()));
    let again = child.try_lock("k", TTL).outcome;
    assert!(matches!(&again, Outcome::Failed { kind, .. } if kind == "AlreadyHeld"), "{again:?}");
    assert_eq!(child.unlock("k").outcome, Outcome::Done);
    assert!(child.lock("k", TTL).token() > first.token());
    assert_eq!(child.drop_guard("k").outcome, Outcome::Done);
}

#[test]
fn a_child_frozen_past_its_lease_knows_it_when_it_wakes() {
    let mut child = Child::start();
    child.connect("mem://");
    let deadline = child.lock("k", TTL).deadline();
    child.stop();
    // It may have renewed once before it was frozen.
    let late = deadline.after(TTL);
    eventually("the lease to end", || (Clock::system().now() > late).then_some(()));
    child.cont();
    assert_eq!(child.state("k").outcome, Outcome::State("Lost".into()));
    assert!(matches!(child.lost("k").outcome, Outcome::Lost(_)));
}

#[test]
fn a_child_can_be_killed() {
    let mut child = Child::start();
    child.connect("mem://");
    child.lock("k", TTL).token();
    child.kill9();
    assert!(!Path::new(&format!("/proc/{}", child.pid())).exists());
}

#[test]
#[should_panic(expected = "an unknown scheme")]
fn a_child_that_cannot_connect_reports_the_reason() {
    Child::start().connect("nothing://");
}
