//! The protocols as models, each a test: every order of messages, losses and pauses within small bounds. A crate of its
//! own, since a checker wants optimised code.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model};

/// The property of every model that shows that it does something.
pub const TWICE: &str = "it is granted twice";

/// Bounds for memory and time: a model that needs more has not been explored, and its test fails. It takes seconds; the
/// runner, which does not say what was left to explore, ends it after three minutes.
const MOST_STATES: usize = 12_000_000;
const MOST_TIME: Duration = Duration::from_secs(170);

/// Explores a model to the end.
///
/// # Panics
/// When a property is broken, with the way to it; when there is more to explore than the bounds allow; when nothing happens.
pub fn expect_sound<M>(model: M)
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>,
    M: Send + Sync + 'static,
{
    let checker = model.checker().target_state_count(MOST_STATES).timeout(MOST_TIME).threads(2).spawn_bfs().join();
    let (states, all) = (checker.unique_state_count(), checker.state_count());
    println!("{states} states, {all} steps");
    for name in broken(&checker) {
        println!("{name}: {:#?}", checker.discovery(name).map(|path| path.into_actions()));
    }
    assert_eq!(broken(&checker), [""; 0]);
    assert!(checker.is_done() && all < MOST_STATES, "not explored to the end: {states} states, {all} steps");
    assert!(checker.discoveries().contains_key(TWICE), "hardly anything was granted");
}

/// Looks until all of `wanted` are found broken, and prints the ways to them.
///
/// # Panics
/// When one of them is not.
pub fn expect_broken<M>(model: M, wanted: &[&'static str])
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>,
    M: Send + Sync + 'static,
{
    let enough = HasDiscoveries::AllOf(wanted.iter().copied().collect());
    let checker = model.checker().target_state_count(MOST_STATES).timeout(MOST_TIME).threads(2).finish_when(enough);
    let checker = checker.spawn_bfs().join();
    for name in wanted {
        println!("{name}: {:?}", checker.discovery(name).map(|path| path.into_actions()));
    }
    let found = broken(&checker);
    assert!(wanted.iter().all(|name| found.contains(name)), "{found:?}");
}

/// What the checker found broken.
fn broken<M>(checker: &impl Checker<M>) -> Vec<&'static str>
where
    M: Model<State: Clone + Debug + Hash + PartialEq, Action: Clone + Debug + PartialEq>,
{
    let mut names: Vec<_> = checker.discoveries().into_keys().filter(|name| *name != TWICE).collect();
    names.sort_unstable();
    names
}
