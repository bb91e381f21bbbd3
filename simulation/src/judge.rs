//! The rules that a world must not break.

use std::fmt;

use distlock_testkit::history::Violation;

use crate::timeline::Timeline;

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Two holders, a token that fell or was granted twice, a waiter that was overtaken, or a stale write that was
    /// accepted. The client of a hold is the number of its turn in the log.
    History(Violation),
    /// Turns that were not served although all faults had ended.
    NotServed(Vec<usize>),
    /// Keys of locks that remain after every lease has ended.
    LeftBehind(Vec<String>),
    /// The turn of a holder that lost its lock although at most one server at a time had a fault.
    KeepLost(usize),
    /// A machine stopped with an error or a panic.
    Failed(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::History(violation) => write!(f, "{violation}"),
            Finding::NotServed(turns) => write!(f, "not served though nothing was in the way: turns {turns:?}"),
            Finding::LeftBehind(keys) => write!(f, "left behind: {keys:?}"),
            Finding::KeepLost(turn) => write!(f, "lost though the other servers had it: turn {turn}"),
            Finding::Failed(how) => write!(f, "a machine failed: {how}"),
        }
    }
}

/// Judges every rule. `failed` is an error of the world itself, `kept` the keys that the server still has at the end.
pub(crate) fn judge(timeline: &Timeline, failed: Option<String>, kept: &[String]) -> Vec<Finding> {
    let violation = timeline.history().check().err().map(Finding::History);
    let unserved = Some(timeline.unserved()).filter(|turns| !turns.is_empty()).map(Finding::NotServed);
    // Fences must outlive their locks, and the canary key of the restart guard outlives every server.
    let passes = |key: &&String| !key.ends_with(":f") && !key.ends_with(":g");
    let kept: Vec<_> = kept.iter().filter(passes).cloned().collect();
    let left = Some(kept).filter(|keys| !keys.is_empty()).map(Finding::LeftBehind);
    let lost = timeline.lost_keep().map(Finding::KeepLost);
    [failed.map(Finding::Failed), violation, unserved, lost, left].into_iter().flatten().collect()
}
