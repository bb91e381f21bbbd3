//! What must not have happened.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use distlock_testkit::history::{History, Hold, Violation};

use crate::crew::NOT_ENDED;
use crate::resource::Written;
use crate::story::Story;
use crate::worker::name;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Two holders, a token that fell or was given twice, a waiter that was overtaken, a stale write that was accepted.
    History {
        /// What the checker of histories says.
        violation: Violation,
        /// What happened around it, and nothing else.
        excerpt: String,
    },
    /// Somebody waited in vain though nothing was in the way any more.
    NotServed {
        /// Who, and for what.
        excerpt: String,
    },
    /// A holder was told of a loss though the server of its lock was well, and so was the holder.
    LostUnharmed {
        /// Who, and what happened around it.
        excerpt: String,
    },
    /// A worker ended as it should not.
    Crashed {
        /// What it printed.
        log: String,
    },
    /// Something of a lock is there after every lease is over.
    LeftBehind {
        /// Its names.
        names: Vec<String>,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::History { violation, excerpt } => write!(f, "{}:\n{excerpt}", title(violation)),
            Finding::NotServed { excerpt } => write!(f, "not served though nothing was in the way:\n{excerpt}"),
            Finding::LostUnharmed { excerpt } => write!(f, "lost though its own server was well:\n{excerpt}"),
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

/// The rules of histories.
pub(crate) fn judge(story: &Story, writes: &[Written], is_fair: bool) -> Option<Finding> {
    let history = History::default();
    story.holds(is_fair).for_each(|hold| history.hold(hold));
    writes.iter().for_each(|write| history.write(&name(write.lock), write.token, write.accepted));
    let violation = history.check().err()?;
    let excerpt = story.excerpt(&turns_of(story, &violation));
    Some(Finding::History { violation, excerpt })
}

fn turns_of(story: &Story, violation: &Violation) -> Vec<usize> {
    let pair = |pair: &[Hold; 2]| pair.iter().map(|hold| hold.client as usize).collect();
    match violation {
        Violation::TwoHolders(two)
        | Violation::TokenRepeated(two)
        | Violation::TokenFell(two)
        | Violation::Overtaken(two) => pair(two),
        Violation::StaleWrite { key, after, token } => {
            let is_one = |hold: &Hold| hold.key == *key && (hold.token == *after || hold.token == *token);
            story.holds(false).filter(is_one).map(|hold| hold.client as usize).take(2).collect()
        }
    }
}

/// Locks that were lost for no reason of their own, given which server each is on: the first of them, if there are any.
pub(crate) fn judge_losses(story: &Story, server_of: &[Option<usize>], ttl: Duration) -> Option<Finding> {
    let turn = story.unexplained(server_of, ttl).next()?;
    Some(Finding::LostUnharmed { excerpt: story.excerpt(&[turn]) })
}

/// What became of the workers that did not end well: those that wait in vain, and those that crashed.
pub(crate) fn judge_ends(story: &Story, odd: &BTreeMap<usize, String>) -> Vec<Finding> {
    let (mut waiting, mut findings) = (Vec::new(), Vec::new());
    for (life, log) in odd {
        let turns: Vec<usize> = story.unserved(*life).collect();
        if turns.is_empty() || !log.starts_with(NOT_ENDED) {
            findings.push(Finding::Crashed { log: log.clone() });
        }
        waiting.extend(turns);
    }
    if !waiting.is_empty() {
        findings.push(Finding::NotServed { excerpt: story.excerpt(&waiting) });
    }
    findings
}
