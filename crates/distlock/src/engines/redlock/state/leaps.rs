//! Tells a node's clock that leapt from this process's clock that stood still.

use std::time::Duration;

use crate::engines::redlock::state::quorum::quorum_of;
use crate::types::clock::Moment;

/// Leaps that are seen within this time count as one event.
const SAME_EVENT: Duration = Duration::from_secs(5);

/// When this process last saw the clock of each node leap.
#[derive(Debug)]
pub(crate) struct Leaps(Vec<Option<Moment>>);

impl Leaps {
    pub(crate) fn new(nodes: usize) -> Leaps {
        Leaps(vec![None; nodes])
    }

    /// Records a leap of `node`. Returns whether a majority leapt at the same time: then this process's own clock stood
    /// still, and the nodes' clocks are right.
    pub(crate) fn is_own_pause(&mut self, node: usize, now: Moment) -> bool {
        self.0[node] = Some(now);
        let recent = self.0.iter().flatten().filter(|leap| now.since(**leap) < SAME_EVENT).count();
        recent >= quorum_of(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_that_leaps_at_once_is_a_pause_of_this_process() {
        let (mut leaps, start) = (Leaps::new(5), Moment::from_nanos(1_000_000_000_000));
        let after = |seconds| start.after(Duration::from_secs(seconds));
        assert!(!leaps.is_own_pause(0, after(0)) && !leaps.is_own_pause(0, after(1)), "one node twice counts once");
        assert!(!leaps.is_own_pause(1, after(10)) && !leaps.is_own_pause(2, after(11)), "the first was long ago");
        assert!(leaps.is_own_pause(4, after(12)));
    }
}
