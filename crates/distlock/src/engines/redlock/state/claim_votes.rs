//! The votes of the nodes in one round of claims, and what follows from them.

use std::fmt;
use std::time::Duration;

use crate::engines::redlock::error::by_node;
use crate::engines::redlock::state::node_set::NodeSet;
use crate::engines::redlock::state::quorum::quorum_of;
use crate::types::error::{Error, ErrorKind};
use crate::types::owner::Holder;

/// The vote of one node on a claim.
#[derive(Debug)]
pub(crate) enum ClaimVote {
    /// The node keeps the lock for this claim.
    Granted,
    /// The node keeps the lock for this claim, but this process has known the node for a moment only: the node's clock may
    /// have leapt before and ended another holder's lease early. Where that holder still has another node, this vote does
    /// not count.
    Young,
    /// The node keeps the lock for this claim, but its clock leapt. It may have ended any holder's lease early, so the vote
    /// does not count.
    Distrusted,
    /// The lock is free for this claim, but not with this ballot.
    Low(u64),
    /// The node keeps the lock for another owner.
    Held(HeldVote),
    /// The node was restarted or flushed, or its clock leapt: it does not vote for this long.
    Quarantined(Duration),
    /// The node was restarted or flushed, and no client has told it yet for how long it must not vote.
    Fresh,
    /// The node certainly did nothing.
    Refused(Error),
    /// Unknown: the node may have granted the claim.
    Unanswered,
}

/// Another owner's hold on one node.
#[derive(Debug)]
pub(crate) struct HeldVote {
    pub(crate) holder: Holder,
    /// This attempt's place in the node's queue.
    pub(crate) place: Option<u32>,
    /// Whether the node can notify this process of the hold's end.
    pub(crate) notifies: bool,
}

impl ClaimVote {
    /// Whether the node keeps the lock for this claim, even where the vote does not count.
    pub(crate) fn keeps(&self) -> bool {
        matches!(self, ClaimVote::Granted | ClaimVote::Young | ClaimVote::Distrusted)
    }

    /// Whether the node may keep something of this claim: the lock or, if the claim `queues`, a place in the queue.
    pub(crate) fn may_keep(&self, queues: bool) -> bool {
        self.keeps() || matches!(self, ClaimVote::Unanswered) || queues && matches!(self, ClaimVote::Held(_))
    }
}

impl fmt::Display for ClaimVote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimVote::Granted | ClaimVote::Young => f.write_str("granted"),
            ClaimVote::Distrusted => f.write_str("not trusted, since its clock was set forward"),
            ClaimVote::Low(_) => f.write_str("ballot too low"),
            ClaimVote::Held(held) => write!(f, "held by {}", held.holder),
            ClaimVote::Quarantined(left) => {
                let left = left.as_secs_f64();
                write!(f, "quarantined for {left:.1} s more, since it was restarted or flushed, or its clock was set")
            }
            ClaimVote::Fresh => f.write_str("quarantined, since it is new or was restarted or flushed"),
            ClaimVote::Refused(error) => write!(f, "{error}"),
            ClaimVote::Unanswered => f.write_str("not answered in time"),
        }
    }
}

/// Why a claim was not granted.
#[derive(Debug)]
pub(crate) enum ClaimRefusal {
    /// So many nodes have not replied that the claim may be granted.
    Unknown(Error),
    /// A majority granted the claim, but too little of the lease is left.
    TooSlow,
    /// Other owners keep the claim from a majority.
    Contested,
    /// A majority votes in this time at the latest. The error is for a caller that does not wait.
    Quarantined(Duration, Error),
    /// No majority can be had now.
    Impossible(Error),
}

/// The votes of one round.
#[derive(Debug)]
pub(crate) struct ClaimVotes {
    votes: Vec<ClaimVote>,
}

impl ClaimVotes {
    /// A round that no node has answered yet.
    pub(crate) fn new(nodes: usize) -> ClaimVotes {
        ClaimVotes { votes: (0..nodes).map(|_| ClaimVote::Unanswered).collect() }
    }

    pub(crate) fn set(&mut self, node: usize, vote: ClaimVote) {
        self.votes[node] = vote;
    }

    pub(crate) fn quorum(&self) -> usize {
        quorum_of(self.votes.len())
    }

    fn count(&self, is: impl Fn(&ClaimVote) -> bool) -> usize {
        self.votes.iter().filter(|vote| is(vote)).count()
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.is_sure()
            || self.no_other_holder()
                && self.count(|vote| matches!(vote, ClaimVote::Granted | ClaimVote::Young)) >= self.quorum()
    }

    /// Whether no node has reported another holder.
    fn no_other_holder(&self) -> bool {
        self.held().next().is_none()
    }

    /// Whether the claim is granted, whatever the other nodes vote.
    fn is_sure(&self) -> bool {
        self.count(|vote| matches!(vote, ClaimVote::Granted)) >= self.quorum()
    }

    /// Whether the claim is granted unless another node reports another holder.
    pub(crate) fn is_provisional(&self) -> bool {
        self.is_granted() && !self.is_sure()
    }

    /// Whether a higher ballot would be granted.
    pub(crate) fn is_low(&self) -> bool {
        let is_low = |vote: &ClaimVote| matches!(vote, ClaimVote::Low(_));
        let may_grant = |vote: &ClaimVote| match vote {
            ClaimVote::Young => self.no_other_holder(),
            vote => matches!(vote, ClaimVote::Granted) || is_low(vote),
        };
        !self.is_granted() && self.count(is_low) > 0 && self.count(may_grant) >= self.quorum()
    }

    /// Whether no further vote changes the outcome.
    pub(crate) fn is_decided(&self) -> bool {
        let open = self.count(|vote| match vote {
            ClaimVote::Granted | ClaimVote::Low(_) | ClaimVote::Unanswered => true,
            ClaimVote::Young => self.no_other_holder(),
            _ => false,
        });
        self.is_granted() || self.is_low() || open < self.quorum()
    }

    /// Whether only other owners keep the claim from a majority.
    pub(crate) fn is_contested(&self) -> bool {
        let may_vote = |vote: &ClaimVote| {
            matches!(
                vote,
                ClaimVote::Granted | ClaimVote::Young | ClaimVote::Low(_) | ClaimVote::Held(_) | ClaimVote::Unanswered
            )
        };
        self.held().next().is_some() && self.count(may_vote) >= self.quorum()
    }

    /// Whether the claim with this ballot was the first among those that split the votes.
    pub(crate) fn is_first(&self, ballot: u64) -> bool {
        self.held().filter_map(|held| held.holder.token).all(|rival| ballot < rival.get())
    }

    /// Whether one other owner has a majority, so that only the end of its hold helps.
    pub(crate) fn is_held(&self) -> bool {
        let same = |one: &HeldVote| self.held().filter(|other| other.holder.token == one.holder.token).count();
        self.held().any(|held| same(held) >= self.quorum())
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &HeldVote> {
        self.votes.iter().filter_map(|vote| match vote {
            ClaimVote::Held(held) => Some(held),
            _ => None,
        })
    }

    /// Returns the highest ballot that a node has told.
    pub(crate) fn highest_ballot(&self) -> u64 {
        self.votes.iter().map(|vote| if let ClaimVote::Low(ballot) = vote { *ballot } else { 0 }).max().unwrap_or(0)
    }

    pub(crate) fn nodes(&self, is: impl Fn(&ClaimVote) -> bool) -> NodeSet {
        self.votes.iter().enumerate().filter(|(_, vote)| is(vote)).map(|(node, _)| node).collect()
    }

    /// Returns the longest time until leases that end leave a majority free; `None` when a hold without a lease is in the way.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let mut left: Vec<_> = self
            .votes
            .iter()
            .map(|vote| match vote {
                ClaimVote::Held(held) => held.holder.ttl_left.unwrap_or(Duration::MAX),
                _ => Duration::ZERO,
            })
            .collect();
        left.sort_unstable();
        Some(left[self.quorum() - 1]).filter(|left| *left != Duration::MAX)
    }

    /// Returns the time until the last node that a majority needs leaves its quarantine.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        let longest = |vote: &ClaimVote| match vote {
            ClaimVote::Quarantined(left) => Some(*left),
            ClaimVote::Fresh | ClaimVote::Distrusted => Some(Duration::ZERO),
            _ => None,
        };
        let mut left: Vec<_> = self.votes.iter().filter_map(longest).collect();
        let voting = self.count(|vote| {
            matches!(vote, ClaimVote::Granted | ClaimVote::Young | ClaimVote::Low(_) | ClaimVote::Held(_))
        });
        left.sort_unstable();
        left.get(self.quorum().checked_sub(voting + 1)?).copied()
    }

    /// Returns why the claim was not granted, once its votes are taken back; `unconfirmed` nodes have not confirmed that.
    pub(crate) fn refusal(&self, unconfirmed: usize, places: &[&str]) -> ClaimRefusal {
        let unknown = self.count(|vote| matches!(vote, ClaimVote::Unanswered)) + unconfirmed;
        if unknown >= self.votes.len() + 1 - self.quorum() && !self.is_held() {
            ClaimRefusal::Unknown(self.error(ErrorKind::Unknown, places))
        } else if self.is_granted() {
            ClaimRefusal::TooSlow
        } else if self.is_contested() {
            ClaimRefusal::Contested
        } else {
            let error = self.error(self.kind(), places);
            match self.quarantine() {
                Some(left) => ClaimRefusal::Quarantined(left, error),
                None => ClaimRefusal::Impossible(error),
            }
        }
    }

    /// The error of a claim without a majority that no other hold explains. It names each node and its vote.
    fn error(&self, kind: ErrorKind, places: &[&str]) -> Error {
        let granted = self.count(|vote| matches!(vote, ClaimVote::Granted | ClaimVote::Young));
        let votes = by_node(places, self.votes.iter());
        Error::new(
            kind,
            format!("redlock: {granted} of {} nodes granted, {} must: {votes}", places.len(), self.quorum()),
        )
    }

    /// The kind of error when a majority certainly did nothing.
    fn kind(&self) -> ErrorKind {
        let mut kinds = self.votes.iter().filter_map(|vote| match vote {
            ClaimVote::Refused(error) if !error.is_retryable() => Some(error.kind()),
            _ => None,
        });
        // A problem that only the user can solve is reported as such if without these nodes there is no majority.
        let first = kinds.next();
        match first {
            Some(kind) if kinds.filter(|other| *other == kind).count() + 1 >= self.quorum() => kind,
            _ => ErrorKind::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(votes: Vec<ClaimVote>) -> ClaimVotes {
        ClaimVotes { votes }
    }

    fn held(left_ms: u64) -> ClaimVote {
        let holder = Holder::new(None, None).with_ttl_left(Some(Duration::from_millis(left_ms)));
        ClaimVote::Held(HeldVote { holder, place: None, notifies: true })
    }

    #[test]
    fn a_majority_of_one_round_decides() {
        use ClaimVote::{Granted, Low, Unanswered};
        assert!(votes(vec![Granted, Granted, Unanswered]).is_granted());
        assert!(!votes(vec![Granted, Granted, Unanswered, Unanswered, Unanswered]).is_decided());
        assert!(votes(vec![Granted, Low(7), Unanswered]).is_low(), "a higher ballot would do");
        assert!(!votes(vec![Granted, held(1), Low(7), held(1), held(1)]).is_low(), "it would not");
        assert!(votes(vec![held(1), held(1), Unanswered]).is_decided(), "the third vote changes nothing");
        assert!(!votes(vec![held(1), Granted, Unanswered]).is_decided());
        assert_eq!(votes(vec![Low(7), Low(9), Granted]).highest_ballot(), 9);
    }

    #[test]
    fn a_node_known_for_a_moment_does_not_decide_against_a_holder_of_another_node() {
        use ClaimVote::{Distrusted, Granted, Low, Unanswered, Young};
        assert!(votes(vec![Young, Granted, Unanswered]).is_provisional(), "the third node may report a holder");
        assert!(!votes(vec![Granted, Granted, Young]).is_provisional());
        let rival = votes(vec![Young, Granted, held(1)]);
        assert!(!rival.is_granted() && !rival.is_low() && rival.is_contested());
        assert!(
            votes(vec![Young, Young, held(1), Unanswered, Unanswered]).is_decided(),
            "no two of them are a majority"
        );
        assert!(
            votes(vec![Granted, Granted, Young, held(1), Granted]).is_granted(),
            "a majority without the young one"
        );
        assert!(votes(vec![Young, Low(7), Unanswered]).is_low());
        let leapt = votes(vec![Distrusted, Granted, held(1)]);
        assert!(!leapt.is_granted() && leapt.is_decided() && leapt.is_contested());
        assert_eq!(votes(vec![Distrusted, Granted, Distrusted]).quarantine(), Some(Duration::ZERO), "it is over soon");
    }

    #[test]
    fn votes_for_several_other_owners_are_split_and_not_held() {
        let by = |token| {
            let holder = Holder::new(None, Some(crate::types::token::FencingToken::new(token)));
            ClaimVote::Held(HeldVote { holder, place: None, notifies: true })
        };
        let split = votes(vec![by(7), by(8), ClaimVote::Granted]);
        assert!(split.is_contested() && !split.is_held());
        assert!(split.is_first(6) && !split.is_first(8));
        assert!(votes(vec![by(7), by(7), ClaimVote::Granted]).is_held());
        assert!(votes(vec![by(7), ClaimVote::Unanswered, ClaimVote::Refused(Error::unavailable("no"))]).is_contested());
    }

    #[test]
    fn the_lock_is_free_when_a_majority_is() {
        let free = votes(vec![held(50), held(900), held(100), ClaimVote::Unanswered, held(70)]).free_in();
        assert_eq!(free, Some(Duration::from_millis(70)));
        let seconds = Duration::from_secs;
        let new = vec![ClaimVote::Quarantined(seconds(3)), ClaimVote::Granted, ClaimVote::Quarantined(seconds(9))];
        assert_eq!(votes(new).quarantine(), Some(seconds(3)), "one more node is needed");
        assert_eq!(
            votes(vec![ClaimVote::Granted, ClaimVote::Granted, ClaimVote::Quarantined(seconds(9))]).quarantine(),
            None
        );
    }

    #[test]
    fn an_error_names_each_node_and_its_vote() {
        let refused = ClaimVote::Refused(Error::unavailable("no connection"));
        let error = votes(vec![ClaimVote::Granted, refused, ClaimVote::Unanswered])
            .error(ErrorKind::Unknown, &["a:1", "b:2", "c:3"]);
        let text = error.to_string();
        assert!(text.starts_with("redlock: 1 of 3 nodes granted, 2 must: "), "{text}");
        for part in ["a:1: granted", "b:2: no connection", "c:3: not answered in time"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_refusal_is_contested_only_if_the_claim_is_certainly_not_granted() {
        use ClaimVote::{Granted, Quarantined, Unanswered};
        let places = ["a:1", "b:2", "c:3"];
        let refusal = |each, unconfirmed| votes(each).refusal(unconfirmed, &places);
        let one = Duration::from_secs(1);
        assert!(matches!(refusal(vec![Granted, held(1), Unanswered], 0), ClaimRefusal::Contested));
        assert!(matches!(refusal(vec![Granted, held(1), Unanswered], 1), ClaimRefusal::Unknown(error)
            if error.kind() == ErrorKind::Unknown));
        assert!(matches!(refusal(vec![held(1), held(1), Unanswered], 2), ClaimRefusal::Contested), "one owner has it");
        assert!(matches!(refusal(vec![Granted, Granted, Granted], 0), ClaimRefusal::TooSlow));
        assert!(matches!(refusal(vec![Granted, Quarantined(one), Quarantined(one)], 0),
            ClaimRefusal::Quarantined(left, _) if left == one));
        let refused = || ClaimVote::Refused(Error::new(ErrorKind::Auth, "no"));
        assert!(matches!(refusal(vec![Granted, refused(), refused()], 0), ClaimRefusal::Impossible(error)
            if error.kind() == ErrorKind::Auth));
    }
}
