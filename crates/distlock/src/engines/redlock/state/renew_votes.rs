//! The votes of the nodes in one round of renewals, and what follows from them.

use crate::engines::redlock::error::{by_node, no_reply};
use crate::engines::redlock::state::quorum::quorum_of;
use crate::types::error::{Error, ErrorKind, Result};

/// The vote of one node on the renewal of one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewVote {
    Renewed,
    /// The lock was missing on the node and is set again.
    Healed,
    /// The lock is missing on the node, and its last ballot is higher: another claim was voted for or given up there since, or
    /// this hold was released.
    Passed(u64),
    /// The hold was ended by force there, or the lock's fence is not ours.
    Ended,
    /// The node keeps the lock for another owner.
    Held,
    NoMemory,
}

impl RenewVote {
    fn text(self) -> &'static str {
        match self {
            RenewVote::Renewed => "renewed",
            RenewVote::Healed => "set again",
            RenewVote::Passed(_) | RenewVote::Ended => "superseded",
            RenewVote::Held => "held by another",
            RenewVote::NoMemory => "no memory to set it again",
        }
    }
}

/// What a majority says about one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewVerdict {
    Renewed,
    Lost,
}

/// The votes of one round, by node and then by lock. Votes of other rounds do not count.
#[derive(Debug)]
pub(crate) struct RenewVotes {
    nodes: Vec<Result<Vec<RenewVote>>>,
    locks: usize,
}

impl RenewVotes {
    /// A round for `locks` locks that no node has answered yet.
    pub(crate) fn new(nodes: usize, locks: usize) -> RenewVotes {
        RenewVotes { nodes: (0..nodes).map(|_| Err(no_reply())).collect(), locks }
    }

    pub(crate) fn set(&mut self, node: usize, votes: Result<Vec<RenewVote>>) {
        self.nodes[node] = votes;
    }

    /// Returns the verdict on one lock; `None` while there is no majority.
    pub(crate) fn verdict(&self, lock: usize) -> Option<RenewVerdict> {
        let quorum = quorum_of(self.nodes.len());
        let count = |is: fn(RenewVote) -> bool| self.on(lock).filter(|vote| is(*vote)).count();
        if count(|vote| matches!(vote, RenewVote::Renewed | RenewVote::Healed)) >= quorum {
            Some(RenewVerdict::Renewed)
        } else if count(|vote| matches!(vote, RenewVote::Passed(_) | RenewVote::Ended | RenewVote::Held)) >= quorum {
            // A majority against the hold is never outvoted. A minority has lost its data, which costs its votes only.
            Some(RenewVerdict::Lost)
        } else {
            None
        }
    }

    /// Whether there is a verdict on every lock.
    pub(crate) fn is_decided(&self) -> bool {
        (0..self.locks).all(|lock| self.verdict(lock).is_some())
    }

    /// Whether a node has set the lock again.
    pub(crate) fn is_healed(&self, lock: usize) -> bool {
        self.on(lock).any(|vote| vote == RenewVote::Healed)
    }

    /// The error for a lock without a verdict, which names each node and its vote.
    pub(crate) fn undecided(&self, lock: usize, places: &[&str]) -> Error {
        let votes = self.nodes.iter().map(|votes| match votes {
            Ok(votes) => votes.get(lock).map_or("nothing", |vote| vote.text()).to_owned(),
            Err(error) => error.to_string(),
        });
        let votes = by_node(places, votes);
        Error::new(ErrorKind::Unknown, format!("redlock: no majority has renewed it in one round: {votes}"))
    }

    /// Returns the votes of each node that has answered.
    pub(crate) fn answered(&self) -> impl Iterator<Item = (usize, &[RenewVote])> {
        self.nodes.iter().enumerate().filter_map(|(node, votes)| Some((node, votes.as_deref().ok()?)))
    }

    fn on(&self, lock: usize) -> impl Iterator<Item = RenewVote> {
        self.nodes.iter().filter_map(move |votes| votes.as_ref().ok()?.get(lock).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(votes: &[Option<RenewVote>]) -> RenewVotes {
        let nodes = votes.iter().map(|vote| vote.map_or_else(|| Err(no_reply()), |vote| Ok(vec![vote]))).collect();
        RenewVotes { nodes, locks: 1 }
    }

    #[test]
    fn only_a_majority_of_one_round_renews_or_loses() {
        use RenewVote::{Ended, Healed, Held, NoMemory, Passed, Renewed};
        let cases: [(&[Option<RenewVote>], Option<RenewVerdict>); 7] = [
            (&[Some(Renewed), Some(Healed), None], Some(RenewVerdict::Renewed)),
            (&[Some(Renewed), None, None], None),
            (&[Some(Passed(9)), Some(Held), Some(Renewed)], Some(RenewVerdict::Lost)),
            (&[Some(Passed(9)), Some(Ended), Some(Renewed)], Some(RenewVerdict::Lost)),
            (&[Some(Passed(9)), Some(Renewed), Some(Renewed)], Some(RenewVerdict::Renewed)),
            (&[Some(Passed(9)), Some(Renewed), None], None),
            (&[Some(NoMemory), Some(NoMemory), Some(Renewed)], None),
        ];
        for (given, expected) in cases {
            assert_eq!(votes(given).verdict(0), expected, "{given:?}");
        }
    }

    #[test]
    fn a_round_is_decided_when_every_lock_is() {
        let mut votes = RenewVotes::new(3, 2);
        votes.set(0, Ok(vec![RenewVote::Renewed, RenewVote::Renewed]));
        votes.set(1, Ok(vec![RenewVote::Healed, RenewVote::Held]));
        assert!(!votes.is_decided() && votes.is_healed(0) && !votes.is_healed(1));
        votes.set(2, Ok(vec![RenewVote::Renewed, RenewVote::Passed(9)]));
        assert!(votes.is_decided());
        assert_eq!(votes.verdict(1), Some(RenewVerdict::Lost));
    }
}
