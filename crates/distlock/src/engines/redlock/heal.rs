//! Sets a lock again on a node that has lost it, or never had it, and where other claims were made since.
//!
//! By itself a node sets a lock again only if it knows of no higher ballot: it cannot tell another claim's vote that was
//! taken back from the end of the hold. The holder can: a majority has just renewed the lock, so no other claim was granted
//! since, nor can be while the lease lasts. The holder asks the node again by the higher ballot that the node told. The node
//! sets the lock only if that ballot is still its last: a vote there, or the release of this hold, takes precedence. The
//! node keeps the higher ballot, and the holder its token.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::redis::node::Connection;
use crate::engines::redlock::engine::AttachedRedlock;
use crate::engines::redlock::protocol::renew::NodeRenewal;
use crate::engines::redlock::state::renew_votes::{RenewVote, RenewVotes};
use crate::engines::redlock::wire::calls::NodeCalls;
use crate::types::clock::Moment;
use crate::types::error::Result;

/// How often a node is asked after one renewal, if other claims come in between each time.
const MAX_TRIES: usize = 8;
/// Instead of a ballot, where the node has told none.
const NO_BALLOT: u64 = 0;

/// Which locks a node lacks, and the ballot that it told for each.
type LackedLocks = Vec<(usize, u64)>;

/// A round of renewals that is decided.
pub(super) struct RenewedRound {
    pub(super) request: Arc<NodeRenewal>,
    /// The connection that each node was asked by, of the same run of the node as the ballots that it told.
    pub(super) connections: Vec<Option<Connection>>,
    /// Which locks a majority has renewed, and when each of these leases ends.
    pub(super) renewed: Vec<(usize, Moment)>,
    pub(super) votes: RenewVotes,
    /// The calls to nodes that have not replied yet.
    pub(super) late: NodeCalls<Result<Vec<RenewVote>>>,
    pub(super) timeout: Duration,
}

struct Healing {
    engine: Arc<AttachedRedlock>,
    request: Arc<NodeRenewal>,
    connections: Vec<Option<Connection>>,
    renewed: Vec<(usize, Moment)>,
    timeout: Duration,
}

/// Starts to ask those nodes again that lack locks which `round` has renewed, late nodes included.
pub(super) fn begin(engine: &Arc<AttachedRedlock>, round: RenewedRound) {
    let RenewedRound { request, connections, renewed, votes, mut late, timeout } = round;
    let healing = Healing { engine: engine.clone(), request, connections, renewed, timeout };
    let lacking = healing.lacking(votes.answered());
    if lacking.is_empty() && late.is_done() || healing.renewed.is_empty() {
        return;
    }
    let healing = Arc::new(healing);
    // tidy-allow(spawn): the keeper has its reply; this ends when the nodes have replied, or with their timeouts
    engine.nodes.runtime.spawn(async move {
        healing.clone().heal_all(lacking).await;
        let mut replies = Vec::new();
        late.collect(timeout, timeout, |at, reply| {
            replies.extend(reply.ok().map(|votes| (at, votes)));
            false
        })
        .await;
        drop(late);
        let lacking = healing.lacking(replies.iter().map(|(at, votes)| (*at, &**votes)));
        healing.heal_all(lacking).await;
    });
}

/// Returns the ballot by which a node with this vote is asked again; `None` if it is not asked.
fn known_ballot(vote: RenewVote) -> Option<u64> {
    match vote {
        RenewVote::Passed(ballot) => Some(ballot),
        // The vote is for a claim that no majority grants: it is taken back soon.
        RenewVote::Held => Some(NO_BALLOT),
        RenewVote::Renewed | RenewVote::Healed | RenewVote::Ended | RenewVote::NoMemory => None,
    }
}

impl Healing {
    /// Returns the nodes that lack a lock which a majority has renewed.
    fn lacking<'a>(&self, replies: impl Iterator<Item = (usize, &'a [RenewVote])>) -> Vec<(usize, LackedLocks)> {
        let lacked = |votes: &[RenewVote]| -> LackedLocks {
            let known_ballot = |(lock, _): &(usize, Moment)| Some((*lock, known_ballot(*votes.get(*lock)?)?));
            self.renewed.iter().filter_map(known_ballot).collect()
        };
        replies.map(|(at, votes)| (at, lacked(votes))).filter(|(_, lacked)| !lacked.is_empty()).collect()
    }

    async fn heal_all(self: Arc<Healing>, lacking: Vec<(usize, LackedLocks)>) {
        let mut calls = NodeCalls::new(lacking.into_iter().map(|(at, lacked)| {
            let healing = self.clone();
            (at, async move { healing.heal(at, lacked).await })
        }));
        while calls.next().await.is_some() {}
    }

    async fn heal(&self, at: usize, mut lacked: LackedLocks) {
        for _ in 0..MAX_TRIES {
            // A ballot that a node told after the lease, or after the release began, may be another holder's.
            lacked.retain(|(lock, _)| self.is_held(*lock));
            if lacked.is_empty() {
                return;
            }
            let request = self.request.by_known_ballots(&lacked);
            let reply = tokio::time::timeout(self.timeout, request.run(self.connections[at].as_ref())).await;
            let Ok(Ok(votes)) = reply else { return };
            let mut again = LackedLocks::new();
            for ((lock, _), vote) in lacked.into_iter().zip(votes) {
                again.extend(known_ballot(vote).map(|ballot| (lock, ballot)));
                if vote == RenewVote::Healed {
                    let (lock, node) = (self.request.name(lock), self.engine.nodes[at].node.place());
                    tracing::debug!(target: "distlock", { lock.name = lock, node }, "a node had the lock set again");
                }
            }
            lacked = again;
        }
    }

    fn is_held(&self, lock: usize) -> bool {
        let until = self.renewed.iter().find(|(renewed, _)| *renewed == lock).map(|(_, until)| *until);
        let lasts = until.is_some_and(|until| self.engine.nodes.now() < until);
        lasts && self.engine.attempts.is_held(self.request.attempt(lock))
    }
}
