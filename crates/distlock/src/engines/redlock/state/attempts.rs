//! The attempts of this engine, and the ballot of each.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::contract::Claim;
use crate::engines::redlock::state::node_set::NodeSet;
use crate::types::clock::Moment;
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::AttemptId;

/// How many attempts are kept before the first sweep for those that are over.
const FIRST_SWEEP: usize = 1024;

/// No clock is a day ahead of another. The nodes refuse ballots that are.
const FAR_AHEAD_US: u64 = 24 * 60 * 60 * 1_000_000;

/// How far the end of an attempt has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// Its release was sent.
    Begun,
    /// The attempt is over. The nodes `left` have not confirmed that yet.
    Over {
        left: NodeSet,
        /// When nothing of it can be left on any node.
        until: Moment,
        /// Until when the replies to requests are awaited that were sent.
        replies_until: Moment,
    },
}

impl Ending {
    /// A node has nothing left of the attempt.
    fn remove(&mut self, node: usize) {
        if let Ending::Over { left, .. } = self {
            left.remove(node);
        }
    }
}

/// What this engine knows of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BallotAttempt {
    ballot: u64,
    ticket: u64,
    is_queued: bool,
    may_be_queued: bool,
    /// How often in a row the votes were split.
    splits: u32,
    was_granted: bool,
    /// The nodes that told their votes for the grant.
    voted: NodeSet,
    was_renewed: bool,
    /// The nodes that may keep something of the last claim: its vote, or the end of what it left, is not known.
    in_doubt: NodeSet,
    /// The nodes that may keep something of an earlier claim.
    in_doubt_before: NodeSet,
    ending: Ending,
    /// The ballot was given up: the next claim needs another.
    is_spent: bool,
    /// The attempt is over by then unless another event comes.
    until: Moment,
}

impl BallotAttempt {
    /// Returns the ballot, which is the fencing token of a grant.
    pub(crate) fn ballot(&self) -> u64 {
        self.ballot
    }

    /// Returns the score in the queue, which is the same on every node.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Whether the nodes were told to queue the attempt.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued
    }

    /// Whether a node may have queued the attempt, so that its release must leave the queue.
    pub(crate) fn may_be_queued(&self) -> bool {
        self.may_be_queued
    }

    pub(crate) fn was_granted(&self) -> bool {
        self.was_granted
    }

    /// Returns the nodes that may keep something of the attempt although it was refused.
    pub(crate) fn in_doubt(&self) -> NodeSet {
        self.in_doubt.with(self.in_doubt_before)
    }

    /// Returns the nodes that have not confirmed that the attempt is over, and until when their replies are awaited; `None`
    /// while it is not over.
    pub(crate) fn unconfirmed(&self) -> Option<(NodeSet, Moment)> {
        match self.ending {
            Ending::Over { left, replies_until, .. } => Some((left, replies_until)),
            Ending::No | Ending::Begun => None,
        }
    }

    /// Returns the nodes whose only request of the hold was a claim that they have voted for, so that no request of it can
    /// come after its release.
    pub(crate) fn voted_only(&self) -> NodeSet {
        if self.was_granted && !self.was_renewed { self.voted } else { NodeSet::default() }
    }
}

/// Every attempt that a node may know of.
#[derive(Debug, Default)]
pub(crate) struct BallotAttempts(Mutex<BallotTable>);

#[derive(Debug, Default)]
struct BallotTable {
    attempts: HashMap<AttemptId, BallotAttempt>,
    /// The highest ballot used so far.
    last_ballot: u64,
    sweep_at: usize,
}

impl BallotAttempts {
    /// A claim to the nodes `all` begins. Returns its attempt, with the ballot of an earlier claim that may have been granted,
    /// or a new one.
    pub(crate) fn begin(&self, claim: &Claim, all: NodeSet, wall: SystemTime, now: Moment) -> BallotAttempt {
        let mut table = self.table();
        table.sweep(now);
        let until = over_at(now, claim.ttl);
        let known = table.attempts.get(&claim.attempt).copied();
        let mut attempt = match known {
            // Any node may keep something of that earlier claim.
            Some(attempt) if !attempt.is_spent => BallotAttempt { in_doubt_before: all, ..attempt },
            // The new claim reaches the nodes that have not confirmed the end of the old one.
            Some(attempt) => BallotAttempt {
                ballot: table.next_ballot(wall),
                is_spent: false,
                in_doubt: NodeSet::default(),
                in_doubt_before: attempt.in_doubt(),
                ending: Ending::No,
                ..attempt
            },
            None => {
                let ballot = table.next_ballot(wall);
                BallotAttempt {
                    ballot,
                    ticket: ballot,
                    is_queued: false,
                    may_be_queued: false,
                    splits: 0,
                    was_granted: false,
                    voted: NodeSet::default(),
                    was_renewed: false,
                    in_doubt: NodeSet::default(),
                    in_doubt_before: NodeSet::default(),
                    ending: Ending::No,
                    is_spent: false,
                    until,
                }
            }
        };
        attempt.may_be_queued |= claim.queue;
        attempt.until = until;
        table.attempts.insert(claim.attempt, attempt);
        attempt
    }

    /// The claim was granted by the nodes `voted`; `may_be_queued` if a node may have queued it all the same.
    pub(crate) fn granted(&self, id: AttemptId, voted: NodeSet, may_be_queued: bool) {
        self.change(id, |attempt| {
            attempt.voted = voted;
            attempt.may_be_queued = may_be_queued;
            attempt.is_queued = false;
            attempt.splits = 0;
            attempt.was_granted = true;
        });
    }

    /// A node told a ballot that is not below the claim's. Returns the attempt with a higher ballot. The nodes `in_doubt` may
    /// keep something of the claim with the lower one.
    pub(crate) fn raise(
        &self,
        id: AttemptId,
        attempt: BallotAttempt,
        above: u64,
        in_doubt: NodeSet,
        wall: SystemTime,
    ) -> BallotAttempt {
        let ballot = above.saturating_add(1);
        let mut table = self.table();
        // Another client's clock is ahead: the next claim begins there. A ballot further ahead was written by hand into one
        // lock's fence, and does not concern other locks.
        if ballot < micros(wall).saturating_add(FAR_AHEAD_US) {
            table.last_ballot = table.last_ballot.max(ballot);
        }
        let Some(known) = table.attempts.get_mut(&id) else { return BallotAttempt { ballot, ..attempt } };
        known.ballot = known.ballot.max(ballot);
        known.in_doubt_before = known.in_doubt_before.with(in_doubt);
        BallotAttempt { ballot: known.ballot, ..attempt }
    }

    pub(crate) fn get(&self, id: AttemptId) -> Option<BallotAttempt> {
        self.table().attempts.get(&id).copied()
    }

    /// The claim was not granted and is taken back: its ballot is spent, and the nodes `in_doubt` may keep something of it.
    /// Returns how often in a row the votes were split.
    pub(crate) fn refused(&self, id: AttemptId, in_doubt: NodeSet, is_queued: bool, is_split: bool) -> u32 {
        self.change(id, |attempt| {
            attempt.is_spent = true;
            attempt.in_doubt = in_doubt;
            attempt.is_queued |= is_queued;
            attempt.splits = if is_split { attempt.splits + 1 } else { 0 };
            attempt.splits
        })
        .unwrap_or(0)
    }

    /// A renewal is about to be sent. Returns whether it may be: not once the release has begun, after which it might set
    /// the lock again.
    pub(crate) fn renewing(&self, id: AttemptId, now: Moment, ttl: Duration) -> bool {
        let renewing = self.change(id, |attempt| {
            let may_renew = attempt.ending == Ending::No;
            attempt.until = over_at(now, ttl);
            attempt.was_renewed |= may_renew;
            may_renew
        });
        renewing.unwrap_or(false)
    }

    /// The release begins. Returns what is known of the attempt.
    pub(crate) fn releasing(&self, id: AttemptId) -> Option<BallotAttempt> {
        self.change(id, |attempt| {
            if attempt.ending == Ending::No {
                attempt.ending = Ending::Begun;
            }
            *attempt
        })
    }

    /// The attempt is over, and `left` have not confirmed that. Their replies are awaited until `replies_until`; from `until`
    /// on nothing of the attempt can be left.
    pub(crate) fn over(&self, id: AttemptId, left: NodeSet, replies_until: Moment, until: Moment) {
        if left.is_empty() {
            return self.forget(id);
        }
        self.change(id, |attempt| attempt.ending = Ending::Over { left, until, replies_until });
    }

    /// A node has confirmed that nothing of the attempt with `ballot` is left there. The entry stays for the keeper's next
    /// release.
    pub(crate) fn confirmed(&self, id: AttemptId, ballot: u64, node: usize) {
        self.change(id, |attempt| {
            // A claim with a later ballot may be on its way.
            if attempt.ballot == ballot {
                attempt.in_doubt.remove(node);
                attempt.in_doubt_before.remove(node);
                attempt.ending.remove(node);
            }
        });
    }

    /// A node has told late that the claim with `ballot` did nothing there. An earlier claim of the attempt may have.
    pub(crate) fn did_nothing(&self, id: AttemptId, ballot: u64, node: usize) {
        self.change(id, |attempt| {
            if attempt.ballot == ballot {
                attempt.in_doubt.remove(node);
                if !attempt.in_doubt_before.has(node) {
                    attempt.ending.remove(node);
                }
            }
        });
    }

    /// Returns until when the release of an attempt must be repeated; `None` when all nodes have confirmed it.
    pub(crate) fn late_until(&self, id: AttemptId) -> Option<Moment> {
        match self.get(id)?.ending {
            Ending::Over { left, until, .. } if !left.is_empty() => Some(until),
            _ => None,
        }
    }

    /// Whether the attempt has ended, on a majority of the nodes at least.
    pub(crate) fn is_over(&self, id: AttemptId) -> bool {
        self.get(id).is_none_or(|attempt| matches!(attempt.ending, Ending::Over { .. }))
    }

    /// Whether the attempt was granted and its release has not begun: only then may a node be asked to set it again.
    pub(crate) fn is_held(&self, id: AttemptId) -> bool {
        self.get(id).is_some_and(|attempt| attempt.was_granted && attempt.ending == Ending::No)
    }

    pub(crate) fn forget(&self, id: AttemptId) {
        self.table().attempts.remove(&id);
    }

    fn change<T>(&self, id: AttemptId, event: impl FnOnce(&mut BallotAttempt) -> T) -> Option<T> {
        self.table().attempts.get_mut(&id).map(event)
    }

    fn table(&self) -> MutexGuard<'_, BallotTable> {
        self.0.lock()
    }
}

impl BallotTable {
    /// Returns a ballot above all that this engine has used, and not below the wall clock.
    fn next_ballot(&mut self, wall: SystemTime) -> u64 {
        self.last_ballot = (self.last_ballot + 1).max(micros(wall));
        self.last_ballot
    }

    /// Drops attempts that are over. A hold that the nodes have declared lost is never released, so its entry would stay.
    fn sweep(&mut self, now: Moment) {
        if self.attempts.len() >= self.sweep_at.max(FIRST_SWEEP) {
            self.attempts.retain(|_, attempt| attempt.until > now);
            self.sweep_at = self.attempts.len() * 2;
        }
    }
}

fn over_at(now: Moment, ttl: Duration) -> Moment {
    now.after(ttl * 4 + Duration::from_secs(60))
}

fn micros(wall: SystemTime) -> u64 {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    fn claim() -> Claim {
        let record = Record::new(OwnerId::random(), Process::current(), None, SystemTime::UNIX_EPOCH);
        Claim::new(Key::new("a").unwrap(), Duration::from_secs(1), true, Arc::new(record))
    }

    fn all() -> NodeSet {
        NodeSet::first(5)
    }

    fn now() -> Moment {
        Moment::from_nanos(1_000_000_000_000)
    }

    fn wall(us: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(us)
    }

    #[test]
    fn ballots_rise_when_the_wall_clock_stands_or_goes_back() {
        let attempts = BallotAttempts::default();
        let ballot = |us| attempts.begin(&claim(), all(), wall(us), now()).ballot;
        let ballots = [ballot(5_000), ballot(5_000), ballot(4_000), ballot(9_000)];
        assert_eq!(ballots, [5_000, 5_001, 5_002, 9_000]);
    }

    #[test]
    fn a_repeated_claim_goes_by_the_same_ballot_until_it_is_refused() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let id = claim.attempt;
        let first = attempts.begin(&claim, all(), wall(5_000), now());
        assert_eq!(attempts.begin(&claim, all(), wall(6_000), now()).ballot, first.ballot);
        attempts.refused(id, NodeSet::default(), true, false);
        let next = attempts.begin(&claim, all(), wall(6_000), now());
        assert!(next.ballot > first.ballot);
        assert_eq!((next.ticket, next.is_queued), (first.ticket, true), "its place stays");
        assert_eq!(attempts.raise(id, next, 90_000, NodeSet::default(), wall(6_000)).ballot(), 90_001);
    }

    #[test]
    fn a_ballot_that_another_clock_made_is_remembered_but_not_one_made_by_hand() {
        let attempts = BallotAttempts::default();
        let other = BallotAttempts::default().begin(&claim(), all(), wall(1), now());
        let begin = || attempts.begin(&claim(), all(), wall(5_000), now()).ballot;
        let raise = |above| attempts.raise(AttemptId::random(), other, above, NodeSet::default(), wall(5_000));
        raise(FAR_AHEAD_US * 2);
        assert_eq!(begin(), 5_000);
        raise(70_000);
        assert_eq!(begin(), 70_002);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let attempts = BallotAttempts::default();
        for _ in 0..FIRST_SWEEP {
            attempts.begin(&claim(), all(), wall(1), now());
        }
        let later = now().after(Duration::from_secs(3600));
        attempts.begin(&claim(), all(), wall(1), later);
        assert_eq!(attempts.table().attempts.len(), 1);
    }

    #[test]
    fn an_attempt_is_held_from_its_grant_until_its_release_begins() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let id = claim.attempt;
        attempts.begin(&claim, all(), wall(1), now());
        assert!(!attempts.is_held(id), "not granted yet");
        attempts.granted(id, NodeSet::first(3), false);
        assert!(attempts.is_held(id));
        attempts.releasing(id);
        assert!(!attempts.is_held(id));
    }

    #[test]
    fn a_grant_ends_a_row_of_splits_and_says_whether_a_node_may_have_queued_it() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let id = claim.attempt;
        assert!(attempts.begin(&claim, all(), wall(1), now()).may_be_queued());
        assert_eq!(
            [
                attempts.refused(id, NodeSet::default(), true, true),
                attempts.refused(id, NodeSet::default(), true, true)
            ],
            [1, 2]
        );
        attempts.granted(id, NodeSet::default(), false);
        let known = attempts.get(id).unwrap();
        assert!(known.was_granted() && !known.is_queued() && !known.may_be_queued());
        assert_eq!(attempts.refused(id, NodeSet::default(), true, true), 1);
    }

    #[test]
    fn only_a_hold_that_was_never_renewed_is_released_without_a_tombstone() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let (id, ttl) = (claim.attempt, claim.ttl);
        let voted_only = || attempts.get(id).unwrap().voted_only();
        attempts.begin(&claim, all(), wall(1), now());
        assert!(voted_only().is_empty(), "not granted yet");
        attempts.granted(id, NodeSet::first(2), false);
        assert_eq!(voted_only(), NodeSet::first(2));
        assert!(attempts.renewing(id, now(), ttl));
        assert!(voted_only().is_empty(), "a renewal may come after the release");
    }

    #[test]
    fn no_renewal_is_sent_once_the_release_has_begun() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let (id, ttl) = (claim.attempt, claim.ttl);
        attempts.begin(&claim, all(), wall(1), now());
        attempts.granted(id, NodeSet::first(3), false);
        let known = attempts.releasing(id).unwrap();
        assert!(!attempts.renewing(id, now(), ttl));
        assert_eq!(attempts.get(id).unwrap().voted_only(), known.voted_only(), "the release goes on as it began");
        attempts.forget(id);
        assert!(!attempts.renewing(id, now(), ttl), "nor when it is done");
    }

    #[test]
    fn a_release_is_repeated_until_every_node_has_confirmed_it() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let (id, until) = (claim.attempt, now().after(Duration::from_secs(9)));
        let ballot = attempts.begin(&claim, all(), wall(1), now()).ballot();
        attempts.releasing(id);
        assert!(!attempts.is_over(id));
        assert_eq!(attempts.late_until(id), None, "not confirmed by a majority: the caller repeats it");
        attempts.over(id, [1, 4].into_iter().collect(), now(), until);
        attempts.confirmed(id, ballot, 4);
        attempts.confirmed(id, ballot - 1, 1);
        assert_eq!(attempts.late_until(id), Some(until));
        assert!(attempts.is_over(id));
        assert_eq!(attempts.releasing(id).unwrap().unconfirmed(), Some(([1].into_iter().collect(), now())));
        attempts.confirmed(id, ballot, 1);
        assert_eq!(attempts.late_until(id), None);
        assert_eq!(
            attempts.get(id).unwrap().unconfirmed(),
            Some((NodeSet::default(), now())),
            "kept for the next release"
        );
        attempts.over(id, NodeSet::default(), now(), until);
        assert!(attempts.get(id).is_none() && attempts.is_over(id));
    }

    #[test]
    fn a_claim_that_is_repeated_after_it_was_taken_back_begins_anew() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let id = claim.attempt;
        let first = attempts.begin(&claim, all(), wall(1), now());
        attempts.refused(id, NodeSet::default(), false, false);
        attempts.over(id, NodeSet::first(1), now(), now().after(claim.ttl));
        let second = attempts.begin(&claim, all(), wall(1), now());
        assert!(second.ballot() > first.ballot());
        assert_eq!(attempts.late_until(id), None, "its release reaches all nodes");
    }

    #[test]
    fn a_node_that_an_earlier_claim_may_have_reached_is_in_doubt_until_it_confirms_a_release() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let (id, one) = (claim.attempt, |node: usize| [node].into_iter().collect::<NodeSet>());
        let in_doubt = || attempts.get(id).unwrap().in_doubt();
        let first = attempts.begin(&claim, all(), wall(1), now());
        attempts.refused(id, one(0).with(one(1)), false, false);
        attempts.confirmed(id, first.ballot(), 0);
        assert_eq!(in_doubt(), one(1));
        let second = attempts.begin(&claim, all(), wall(1), now());
        attempts.confirmed(id, first.ballot(), 1);
        assert_eq!(in_doubt(), one(1), "the second claim may have reached it since");
        attempts.refused(id, one(2), false, false);
        attempts.over(id, in_doubt(), now(), now().after(claim.ttl));
        attempts.did_nothing(id, second.ballot(), 1);
        attempts.did_nothing(id, second.ballot(), 2);
        assert_eq!(attempts.get(id).unwrap().unconfirmed().unwrap().0, one(1), "by the first claim");
        attempts.confirmed(id, second.ballot(), 1);
        assert_eq!(attempts.late_until(id), None);
    }

    #[test]
    fn a_claim_repeated_without_a_reply_or_with_a_raised_ballot_leaves_doubts() {
        let (attempts, claim) = (BallotAttempts::default(), claim());
        let id = claim.attempt;
        attempts.begin(&claim, all(), wall(1), now());
        attempts.begin(&claim, all(), wall(1), now());
        assert_eq!(attempts.get(id).unwrap().in_doubt(), all());
        attempts.forget(id);
        let low = attempts.begin(&claim, all(), wall(1), now());
        attempts.raise(id, low, 70_000, NodeSet::first(1), wall(1));
        assert_eq!(attempts.get(id).unwrap().in_doubt(), NodeSet::first(1));
    }
}
