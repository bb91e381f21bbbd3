//! The rules that a run must not break.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use distlock_testkit::history::{History, Hold, Violation};

use crate::job::TickJob;
use crate::resource::Written;
use crate::tick_judge::{TickHistory, TickViolation};
use crate::timeline::Timeline;
use crate::worker::name;
use crate::workers::NOT_ENDED;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Two holders, a token that fell or was granted twice, a waiter that was overtaken, or a stale write that was
    /// accepted.
    History {
        /// The violation that the checker of histories found.
        violation: Violation,
        /// The events around it.
        excerpt: String,
    },
    /// A worker was not served although all faults had ended.
    NotServed {
        /// The worker and the lock.
        excerpt: String,
    },
    /// A holder lost its lock although the server of the lock and the holder had no fault.
    LostUnharmed {
        /// The holder, and the events around the loss.
        excerpt: String,
    },
    /// A rule of ticks is broken.
    Tick {
        /// The broken rule.
        violation: TickViolation,
        /// The job, its tick, and what the workers did about it.
        excerpt: String,
    },
    /// A worker crashed.
    Crashed {
        /// Its output.
        log: String,
    },
    /// State of a lock remains after every lease has ended.
    LeftBehind {
        /// The names of the remaining state.
        names: Vec<String>,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::History { violation, excerpt } => write!(f, "{}:\n{excerpt}", title(violation)),
            Finding::NotServed { excerpt } => write!(f, "not served though nothing was in the way:\n{excerpt}"),
            Finding::LostUnharmed { excerpt } => write!(f, "lost though its own server was well:\n{excerpt}"),
            Finding::Tick { violation, excerpt } => write!(f, "{violation}:\n{excerpt}"),
            Finding::Crashed { log } => write!(f, "a worker failed: {log}"),
            Finding::LeftBehind { names } => write!(f, "left behind: {names:?}"),
        }
    }
}

fn title(violation: &Violation) -> String {
    match violation {
        Violation::TwoHolders(pair) => {
            let by = pair[0].end.since(pair[1].granted);
            format!("two holders of {} for {by:?}", pair[0].key)
        }
        Violation::TokenRepeated(pair) => format!("token {} of {} was granted twice", pair[0].token, pair[0].key),
        Violation::TokenFell(pair) => {
            format!("{}: token {} was granted after {}", pair[0].key, pair[1].token, pair[0].token)
        }
        Violation::Overtaken(pair) => {
            format!("{}: token {} was granted to one who came after the waiter", pair[0].key, pair[1].token)
        }
        Violation::StaleWrite { key, after, token } => {
            format!("the resource of {key} accepted {token} after {after}")
        }
    }
}

/// Judges the history.
pub(crate) fn judge(timeline: &Timeline, writes: &[Written], is_fair: bool) -> Option<Finding> {
    let history = History::default();
    timeline.holds(is_fair).for_each(|hold| history.hold(hold));
    writes.iter().for_each(|write| history.write(&name(write.lock), write.token, write.accepted));
    let violation = history.check().err()?;
    let excerpt = timeline.excerpt(&turns_of(timeline, &violation));
    Some(Finding::History { violation, excerpt })
}

fn turns_of(timeline: &Timeline, violation: &Violation) -> Vec<usize> {
    let pair = |pair: &[Hold; 2]| pair.iter().map(|hold| hold.client as usize).collect();
    match violation {
        Violation::TwoHolders(two)
        | Violation::TokenRepeated(two)
        | Violation::TokenFell(two)
        | Violation::Overtaken(two) => pair(two),
        Violation::StaleWrite { key, after, token } => {
            let is_one = |hold: &Hold| hold.key == *key && (hold.token == *after || hold.token == *token);
            timeline.holds(false).filter(is_one).map(|hold| hold.client as usize).take(2).collect()
        }
    }
}

/// Returns the first loss without an explaining fault, given the server of each lock.
pub(crate) fn judge_losses(timeline: &Timeline, server_of: &[Option<usize>], ttl: Duration) -> Option<Finding> {
    let turn = timeline.unexplained(server_of, ttl).next()?;
    Some(Finding::LostUnharmed { excerpt: timeline.excerpt(&[turn]) })
}

/// Judges the history of ticks.
pub(crate) fn judge_ticks(timeline: &Timeline, ticks: &TickHistory) -> Option<Finding> {
    let (violation, job, tick) = ticks.check()?;
    Some(tick_finding(timeline, violation, job, &tick))
}

fn tick_finding(timeline: &Timeline, violation: TickViolation, job: TickJob, tick: &str) -> Finding {
    Finding::Tick { violation, excerpt: format!("job {job}, tick {tick}\n{}", timeline.tick_excerpt(job, tick)) }
}

/// Judges the workers that did not exit normally: those that wait in vain, and those that crashed.
pub(crate) fn judge_ends(timeline: &Timeline, ticks: &TickHistory, odd: &BTreeMap<usize, String>) -> Vec<Finding> {
    let (mut waiting, mut findings) = (Vec::new(), Vec::new());
    for (life, log) in odd {
        let turns: Vec<usize> = timeline.unserved(*life).collect();
        let unsettled = ticks.unsettled(*life);
        if turns.is_empty() && unsettled.is_none() || !log.starts_with(NOT_ENDED) {
            findings.push(Finding::Crashed { log: log.clone() });
        }
        let never = |(job, tick): (_, String)| tick_finding(timeline, TickViolation::NeverSettled, job, &tick);
        findings.extend(unsettled.map(never));
        waiting.extend(turns);
    }
    if !waiting.is_empty() {
        findings.push(Finding::NotServed { excerpt: timeline.excerpt(&waiting) });
    }
    findings
}
