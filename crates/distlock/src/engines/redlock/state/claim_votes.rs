//! What the nodes say to one round, and what follows from it.

use std::fmt;
use std::time::Duration;

use crate::types::error::{Error, ErrorKind};
use crate::types::owner::Holder;

/// What one node says to a claim.
#[derive(Debug)]
pub(crate) enum Vote {
    /// It keeps the lock for us.
    Granted,
    /// So it does, but this process knows the node for a moment only: its clock may have leapt just before, and have ended
    /// somebody's lease. Where that somebody still has another node, this vote does not count.
    Young,
    /// It keeps the lock for us, but its clock leapt: whose lease that has ended nobody knows, so the vote does not count.
    Distrusted,
    /// The lock is free for us, but not with this ballot.
    Low(u64),
    /// Somebody else has it there.
    Held(Held),
    /// It was restarted or flushed, or its clock leapt, and it does not vote for so long.
    Quarantined(Duration),
    /// It was restarted or flushed a moment ago, and nobody has said yet for how long it must not vote.
    Fresh,
    /// It certainly did nothing.
    Refused(Error),
    /// Nobody knows.
    Unanswered,
}

/// Somebody else's hold on one node.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) holder: Holder,
    /// Our place among those who wait there.
    pub(crate) place: Option<u32>,
    /// Whether the node can tell us of its end.
    pub(crate) tells: bool,
}

impl Vote {
    /// Whether the node keeps the lock for us, wherever that counts.
    pub(crate) fn keeps(&self) -> bool {
        matches!(self, Vote::Granted | Vote::Young | Vote::Distrusted)
    }
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Vote::Granted | Vote::Young => f.write_str("granted"),
            Vote::Distrusted => f.write_str("not trusted, since its clock was set forward"),
            Vote::Low(_) => f.write_str("ballot too low"),
            Vote::Held(held) => write!(f, "held by {}", held.holder),
            Vote::Quarantined(left) => {
                let left = left.as_secs_f64();
                write!(f, "quarantined for {left:.1} s more, since it was restarted or flushed, or its clock was set")
            }
            Vote::Fresh => f.write_str("quarantined, since it is new or was restarted or flushed"),
            Vote::Refused(error) => write!(f, "{error}"),
            Vote::Unanswered => f.write_str("not answered in time"),
        }
    }
}

/// The votes of one round.
#[derive(Debug)]
pub(crate) struct Tally {
    votes: Vec<Vote>,
}

impl Tally {
    /// A round in which nobody has answered yet.
    pub(crate) fn new(nodes: usize) -> Tally {
        Tally { votes: (0..nodes).map(|_| Vote::Unanswered).collect() }
    }

    pub(crate) fn set(&mut self, node: usize, vote: Vote) {
        self.votes[node] = vote;
    }

    /// How many nodes decide.
    pub(crate) fn quorum(&self) -> usize {
        quorum_of(self.votes.len())
    }

    fn count(&self, is: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| is(vote)).count()
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.is_sure()
            || self.is_alone() && self.count(|vote| matches!(vote, Vote::Granted | Vote::Young)) >= self.quorum()
    }

    /// Nobody else has it anywhere, as far as the nodes tell.
    fn is_alone(&self) -> bool {
        self.held().next().is_none()
    }

    /// It is granted whatever the others say.
    fn is_sure(&self) -> bool {
        self.count(|vote| matches!(vote, Vote::Granted)) >= self.quorum()
    }

    /// It is granted unless somebody else turns out to have it on another node.
    pub(crate) fn is_provisional(&self) -> bool {
        self.is_granted() && !self.is_sure()
    }

    /// A higher ballot would do.
    pub(crate) fn is_low(&self) -> bool {
        let is_low = |vote: &Vote| matches!(vote, Vote::Low(_));
        let may_grant = |vote: &Vote| match vote {
            Vote::Young => self.is_alone(),
            vote => matches!(vote, Vote::Granted) || is_low(vote),
        };
        !self.is_granted() && self.count(is_low) > 0 && self.count(may_grant) >= self.quorum()
    }

    /// Whether no further answer changes the outcome.
    pub(crate) fn is_decided(&self) -> bool {
        let open = self.count(|vote| match vote {
            Vote::Granted | Vote::Low(_) | Vote::Unanswered => true,
            Vote::Young => self.is_alone(),
            _ => false,
        });
        self.is_granted() || self.is_low() || open < self.quorum()
    }

    /// A majority could have been had, if somebody else were not there.
    pub(crate) fn is_contested(&self) -> bool {
        let may_vote =
            |vote: &Vote| matches!(vote, Vote::Granted | Vote::Young | Vote::Low(_) | Vote::Held(_) | Vote::Unanswered);
        self.held().next().is_some() && self.count(may_vote) >= self.quorum()
    }

    /// Among those who split the votes, whether the claim with this ballot was the first.
    pub(crate) fn is_first(&self, ballot: u64) -> bool {
        self.held().filter_map(|held| held.holder.token).all(|rival| ballot < rival.get())
    }

    /// Whether one other has a majority, so that nothing but its end helps.
    pub(crate) fn is_held(&self) -> bool {
        let same = |one: &Held| self.held().filter(|other| other.holder.token == one.holder.token).count();
        self.held().any(|held| same(held) >= self.quorum())
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &Held> {
        self.votes.iter().filter_map(|vote| match vote {
            Vote::Held(held) => Some(held),
            _ => None,
        })
    }

    /// The highest ballot that a node has told.
    pub(crate) fn highest_ballot(&self) -> u64 {
        self.votes.iter().map(|vote| if let Vote::Low(ballot) = vote { *ballot } else { 0 }).max().unwrap_or(0)
    }

    pub(crate) fn nodes(&self, is: impl Fn(&Vote) -> bool) -> Vec<usize> {
        self.votes.iter().enumerate().filter(|(_, vote)| is(vote)).map(|(node, _)| node).collect()
    }

    /// When a majority is free by itself at the latest, as far as the nodes tell.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let mut left: Vec<_> = self
            .votes
            .iter()
            .map(|vote| match vote {
                Vote::Held(held) => held.holder.ttl_left.unwrap_or(Duration::MAX),
                _ => Duration::ZERO,
            })
            .collect();
        left.sort_unstable();
        Some(left[self.quorum() - 1]).filter(|left| *left != Duration::MAX)
    }

    /// When the last node that a majority needs is out of its quarantine.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        let longest = |vote: &Vote| match vote {
            Vote::Quarantined(left) => Some(*left),
            Vote::Fresh | Vote::Distrusted => Some(Duration::ZERO),
            _ => None,
        };
        let mut left: Vec<_> = self.votes.iter().filter_map(longest).collect();
        let voting = self.count(|vote| matches!(vote, Vote::Granted | Vote::Young | Vote::Low(_) | Vote::Held(_)));
        left.sort_unstable();
        left.get(self.quorum().checked_sub(voting + 1)?).copied()
    }

    /// The error when a majority cannot be had, for which nobody else's hold is the reason: names each node and its vote.
    pub(crate) fn error(&self, kind: ErrorKind, places: &[&str]) -> Error {
        let granted = self.count(|vote| matches!(vote, Vote::Granted | Vote::Young));
        let votes = list(places, self.votes.iter());
        Error::new(
            kind,
            format!("redlock: {granted} of {} nodes granted, {} must: {votes}", places.len(), self.quorum()),
        )
    }

    /// The kind of error when a majority certainly has nothing of ours.
    pub(crate) fn kind(&self) -> ErrorKind {
        let mut kinds = self.votes.iter().filter_map(|vote| match vote {
            Vote::Refused(error) if !error.is_retryable() => Some(error.kind()),
            _ => None,
        });
        // What only the user can change is said as such if it is the reason: without these nodes there is no majority.
        let first = kinds.next();
        match first {
            Some(kind) if kinds.filter(|other| *other == kind).count() + 1 >= self.quorum() => kind,
            _ => ErrorKind::Unavailable,
        }
    }
}

/// How many of so many nodes decide.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Each node and what it said.
pub(crate) fn list<T: fmt::Display>(places: &[&str], said: impl Iterator<Item = T>) -> String {
    let each: Vec<_> = places.iter().zip(said).map(|(place, said)| format!("{place}: {said}")).collect();
    each.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(votes: Vec<Vote>) -> Tally {
        Tally { votes }
    }

    fn held(left_ms: u64) -> Vote {
        let holder = Holder::new(None, None).with_ttl_left(Some(Duration::from_millis(left_ms)));
        Vote::Held(Held { holder, place: None, tells: true })
    }

    #[test]
    fn a_majority_of_one_round_decides() {
        use Vote::{Granted, Low, Unanswered};
        assert!(tally(vec![Granted, Granted, Unanswered]).is_granted());
        assert!(!tally(vec![Granted, Granted, Unanswered, Unanswered, Unanswered]).is_decided());
        assert!(tally(vec![Granted, Low(7), Unanswered]).is_low(), "a higher ballot would do");
        assert!(!tally(vec![Granted, held(1), Low(7), held(1), held(1)]).is_low(), "it would not");
        assert!(tally(vec![held(1), held(1), Unanswered]).is_decided(), "nobody waits for the third");
        assert!(!tally(vec![held(1), Granted, Unanswered]).is_decided());
        assert_eq!(tally(vec![Low(7), Low(9), Granted]).highest_ballot(), 9);
    }

    #[test]
    fn a_node_that_is_hardly_known_does_not_decide_against_somebody_who_has_another() {
        use Vote::{Distrusted, Granted, Low, Unanswered, Young};
        assert!(tally(vec![Young, Granted, Unanswered]).is_provisional(), "the third may say that somebody has it");
        assert!(!tally(vec![Granted, Granted, Young]).is_provisional());
        let rival = tally(vec![Young, Granted, held(1)]);
        assert!(!rival.is_granted() && !rival.is_low() && rival.is_contested());
        assert!(tally(vec![Young, Young, held(1), Unanswered, Unanswered]).is_decided(), "no two of them help");
        assert!(tally(vec![Granted, Granted, Young, held(1), Granted]).is_granted(), "these need it not");
        assert!(tally(vec![Young, Low(7), Unanswered]).is_low());
        let leapt = tally(vec![Distrusted, Granted, held(1)]);
        assert!(!leapt.is_granted() && leapt.is_decided() && leapt.is_contested());
        assert_eq!(tally(vec![Distrusted, Granted, Distrusted]).quarantine(), Some(Duration::ZERO), "it is over soon");
    }

    #[test]
    fn votes_that_several_others_have_are_split_and_not_held() {
        let by = |token| {
            let holder = Holder::new(None, Some(crate::types::token::FencingToken::new(token)));
            Vote::Held(Held { holder, place: None, tells: true })
        };
        let split = tally(vec![by(7), by(8), Vote::Granted]);
        assert!(split.is_contested() && !split.is_held());
        assert!(split.is_first(6) && !split.is_first(8));
        assert!(tally(vec![by(7), by(7), Vote::Granted]).is_held());
        assert!(tally(vec![by(7), Vote::Unanswered, Vote::Refused(Error::unavailable("no"))]).is_contested());
    }

    #[test]
    fn the_lock_is_free_when_a_majority_is() {
        let free = tally(vec![held(50), held(900), held(100), Vote::Unanswered, held(70)]).free_in();
        assert_eq!(free, Some(Duration::from_millis(70)));
        let seconds = Duration::from_secs;
        let new = vec![Vote::Quarantined(seconds(3)), Vote::Granted, Vote::Quarantined(seconds(9))];
        assert_eq!(tally(new).quarantine(), Some(seconds(3)), "one more is needed");
        assert_eq!(tally(vec![Vote::Granted, Vote::Granted, Vote::Quarantined(seconds(9))]).quarantine(), None);
    }

    #[test]
    fn an_error_names_each_node_and_its_vote() {
        let refused = Vote::Refused(Error::unavailable("no connection"));
        let error =
            tally(vec![Vote::Granted, refused, Vote::Unanswered]).error(ErrorKind::Unknown, &["a:1", "b:2", "c:3"]);
        let text = error.to_string();
        assert!(text.starts_with("redlock: 1 of 3 nodes granted, 2 must: "), "{text}");
        for part in ["a:1: granted", "b:2: no connection", "c:3: not answered in time"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
