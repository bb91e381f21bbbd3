//! Models of the protocols, each a test: every order of messages, losses and pauses within small bounds. A separate
//! crate, because a model checker needs optimised code.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model};

/// The property that shows that a model makes progress.
pub const TWICE: &str = "it is granted twice";

/// Bounds for memory and time: a model that needs more was not explored completely, and its test fails. The time limit
/// is below the runner's three minutes, because the runner does not report what was left to explore.
const MOST_STATES: usize = 12_000_000;
const MOST_TIME: Duration = Duration::from_secs(170);

/// Explores a model completely.
///
/// # Panics
/// When a property is violated, with the path to it; when there is more to explore than the bounds allow; when the
/// model makes no progress.
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

/// Explores until all of `wanted` are violated, and prints the paths to them.
///
/// # Panics
/// When one of them is not violated.
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

/// Returns the violated properties.
fn broken<M>(checker: &impl Checker<M>) -> Vec<&'static str>
where
    M: Model<State: Clone + Debug + Hash + PartialEq, Action: Clone + Debug + PartialEq>,
{
    let mut names: Vec<_> = checker.discoveries().into_keys().filter(|name| *name != TWICE).collect();
    names.sort_unstable();
    names
}
