//! Renews holds on all nodes. A node sets a lock again that it has lost, unless another claim was there since.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Lease, Renewal, Term};
use crate::engines::redis::node::Lane;
use crate::engines::redlock::engine::AttachedRedlock;
use crate::engines::redlock::heal::{self, RenewedRound};
use crate::engines::redlock::protocol::renew::NodeRenewal;
use crate::engines::redlock::state::node_set::NodeSet;
use crate::engines::redlock::state::renew_votes::{RenewVerdict, RenewVotes};
use crate::engines::redlock::wire::calls::NodeCalls;
use crate::engines::redlock::wire::nodes::{LATE_REPLY_WAIT, Nodes};
use crate::types::clock::{Moment, deadline};
use crate::types::error::Result;
use crate::types::event::LossReason;

/// How many locks one call renews: a fraction of a millisecond of the node's time.
const MAX_LOCKS: usize = 128;
/// How long renewals wait for a majority to be connected.
const QUORUM_WAIT: Duration = Duration::from_millis(400);

/// Renews. Returns the outcome of each lease, in their order.
pub(super) async fn renew(engine: &Arc<AttachedRedlock>, leases: &[Lease]) -> Vec<Result<Renewal>> {
    let now = engine.nodes.now();
    // Before anything is sent: the release of a hold that was renewed leaves a tombstone.
    let is_held = |lease: &Lease| engine.attempts.renewing(lease.claim.attempt, now, lease.claim.ttl);
    let held: Vec<_> = leases.iter().map(is_held).collect();
    let (mut outcomes, mut renewals) = (Vec::with_capacity(leases.len()), Vec::with_capacity(leases.len()));
    let some: Vec<_> = leases.iter().zip(&held).filter(|(_, held)| **held).map(|(lease, _)| lease.clone()).collect();
    for some in some.chunks(MAX_LOCKS) {
        match renew_some(engine, some).await {
            Ok(some) => renewals.extend(some),
            Err(error) => renewals.extend(some.iter().map(|_| Err(error.duplicate()))),
        }
    }
    let mut renewals = renewals.into_iter();
    for is_held in held {
        // This client has released the others, and no node may set them again.
        let released = || Some(Ok(Renewal::Lost(LossReason::Revoked)));
        outcomes.extend(if is_held { renewals.next() } else { released() });
    }
    outcomes
}

async fn renew_some(engine: &Arc<AttachedRedlock>, leases: &[Lease]) -> Result<Vec<Result<Renewal>>> {
    let nodes = &engine.nodes;
    let request = Arc::new(NodeRenewal::new(&nodes.options, leases)?);
    nodes.await_quorum(Lane::Reserved, QUORUM_WAIT).await?;
    let start = nodes.now();
    let timeout = Nodes::timeout(leases.iter().map(|lease| lease.claim.ttl).min().unwrap_or_default());
    let mut votes = RenewVotes::new(nodes.len(), leases.len());
    let connections: Vec<_> = nodes.iter().map(|state| state.connection(Lane::Reserved).ok()).collect();
    let mut calls = NodeCalls::new(connections.iter().cloned().enumerate().map(|(at, connection)| {
        let request = request.clone();
        (at, async move { request.run(connection.as_ref()).await })
    }));
    calls
        .collect(timeout, LATE_REPLY_WAIT, |at, reply| {
            nodes.record(at, reply.is_ok());
            votes.set(at, reply);
            votes.is_decided()
        })
        .await;
    let renewals = leases.iter().enumerate().map(|(lock, lease)| settle(engine, lease, &votes, lock, start)).collect();
    let is_renewed = |lock: usize| votes.verdict(lock) == Some(RenewVerdict::Renewed);
    let renewed = leases.iter().enumerate().filter(|(lock, _)| is_renewed(*lock));
    let renewed = renewed.map(|(lock, lease)| (lock, deadline(start, lease.claim.ttl, nodes.drift))).collect();
    heal::begin(engine, RenewedRound { request, connections, renewed, votes, late: calls, timeout });
    Ok(renewals)
}

fn settle(engine: &AttachedRedlock, lease: &Lease, votes: &RenewVotes, lock: usize, start: Moment) -> Result<Renewal> {
    match votes.verdict(lock) {
        Some(RenewVerdict::Renewed) => {
            if votes.is_healed(lock) {
                tracing::debug!(target: "distlock", { lock.name = %lease.claim.key }, "a node had the lock set again");
            }
            Ok(Renewal::Renewed(Some(Term { start, ttl: lease.claim.ttl })))
        }
        Some(RenewVerdict::Lost) => {
            // What a minority still keeps of the hold would block the next holder for a whole lease: the keeper releases it.
            let (all, now) = (NodeSet::first(engine.nodes.len()), engine.nodes.now());
            engine.attempts.over(lease.claim.attempt, all, now, now.after(lease.claim.ttl));
            Ok(Renewal::Lost(LossReason::Revoked))
        }
        None => Err(votes.undecided(lock, &engine.nodes.places())),
    }
}
