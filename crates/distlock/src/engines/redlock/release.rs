//! Releases a lock on every node. The keeper repeats a release for the nodes that have not confirmed it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::contract::{Claim, Release};
use crate::engines::redis::node::Keys;
use crate::engines::redlock::engine::AttachedRedlock;
use crate::engines::redlock::protocol::batch::NodeRequest;
use crate::engines::redlock::protocol::release::{Ends, NodeRelease, outcome};
use crate::engines::redlock::state::attempts::BallotAttempt;
use crate::engines::redlock::state::node_set::NodeSet;
use crate::engines::redlock::state::release_votes::ReleaseVotes;
use crate::engines::redlock::wait;
use crate::engines::redlock::wire::batch::{Replies, send_one};
use crate::engines::redlock::wire::nodes::{LATE_REPLY_WAIT, Nodes};
use crate::types::clock::Moment;
use crate::types::error::Result;
use crate::types::token::{AttemptId, FencingToken};

/// The pause before a forced release is repeated on a node that does not confirm it, and how long it is repeated.
const FORCED_RELEASE_PAUSE: Duration = Duration::from_millis(500);
const FORCED_RELEASE_WAIT: Duration = Duration::from_secs(10);

/// Ends a hold, or leaves the queue. Returns when a majority of the nodes has confirmed it; the keeper repeats it for the
/// others.
pub(super) async fn release(engine: &Arc<AttachedRedlock>, claim: &Claim) -> Result<Release> {
    if claim.queue {
        wait::forget(&engine.nodes, claim.attempt);
    }
    // Before anything is sent: from now on no node is asked to set the lock again.
    let known = engine.attempts.releasing(claim.attempt);
    let release = of_attempt(engine, claim, known)?;
    if let Some((left, replies_until)) = known.and_then(|known| known.unconfirmed()) {
        release_again(engine, claim, &release, left, replies_until).await;
        return Ok(Release::NotOurs);
    }
    let (outcome, late, left) = release_everywhere(engine, &release).await?;
    let now = engine.nodes.now();
    let replies_until = if late.is_done() { now } else { now.after(release.timeout) };
    engine.attempts.over(claim.attempt, left, replies_until, now.after(claim.ttl));
    await_late_replies(engine, claim.attempt, &release, late);
    Ok(outcome)
}

/// Releases an attempt on nodes that have not confirmed it, unless their replies are awaited.
async fn release_again(
    engine: &AttachedRedlock,
    claim: &Claim,
    release: &Arc<NodeRelease>,
    left: NodeSet,
    replies_until: Moment,
) {
    let nodes = &engine.nodes;
    if !left.is_empty() && nodes.now() < replies_until {
        return;
    }
    let mut replies = send(engine, release, true, left);
    replies
        .collect(release.timeout, release.timeout, |at, reply| {
            let is_done = outcome(reply).is_ok();
            nodes.record(at, is_done);
            if is_done {
                engine.attempts.confirmed(claim.attempt, release.ballot, at);
            }
            false
        })
        .await;
    replies.missing().iter().for_each(|at| nodes.record(at, false));
    if engine.attempts.late_until(claim.attempt).is_none_or(|until| nodes.now() >= until) {
        engine.attempts.forget(claim.attempt);
    }
}

/// Ends another owner's hold with `token` on all nodes.
pub(super) async fn force(engine: &AttachedRedlock, keys: Keys, attempt: AttemptId, token: FencingToken) -> Result<()> {
    let release = NodeRelease {
        timeout: Nodes::timeout(Duration::MAX),
        ..NodeRelease::new(keys, attempt, token.get(), Ends::Forced)
    };
    let release = Arc::new(release);
    let (_, _late, left) = release_everywhere(engine, &release).await?;
    for at in left.iter() {
        // tidy-allow(spawn): the operator has its reply. The keeper repeats releases of its own attempts only.
        engine.nodes.runtime.spawn(force_again(Arc::downgrade(&engine.nodes), at, release.clone()));
    }
    Ok(())
}

/// Repeats a forced release on a node that has not confirmed it.
async fn force_again(nodes: Weak<Nodes>, at: usize, release: Arc<NodeRelease>) {
    let request = Arc::new(NodeRequest::Release { release: release.clone(), notify: true });
    for _ in 0..FORCED_RELEASE_WAIT.as_millis() / FORCED_RELEASE_PAUSE.as_millis() {
        tokio::time::sleep(FORCED_RELEASE_PAUSE).await;
        // Without the engine there are no connections, either.
        let Some(nodes) = nodes.upgrade() else { return };
        let reply = tokio::time::timeout(release.timeout, send_one(&nodes, at, &request)).await;
        if reply.is_ok_and(|reply| outcome(reply).is_ok()) {
            return;
        }
    }
}

/// Returns the release of everything that `claim` has become.
pub(super) fn of_claim(engine: &AttachedRedlock, claim: &Claim) -> Result<Arc<NodeRelease>> {
    of_attempt(engine, claim, engine.attempts.get(claim.attempt))
}

fn of_attempt(engine: &AttachedRedlock, claim: &Claim, known: Option<BallotAttempt>) -> Result<Arc<NodeRelease>> {
    let may_be_queued = known.map_or(claim.queue, |known| known.may_be_queued());
    let ends = if known.is_some_and(|known| known.was_granted()) { Ends::Hold } else { Ends::Claim };
    // A release that is repeated goes to nodes that may have carried it out, or get the claim behind it.
    let first = known.filter(|known| known.unconfirmed().is_none());
    let lean_on = first.map(|known| known.voted_only()).unwrap_or_default();
    new_release(&engine.nodes, claim, known.map_or(0, |known| known.ballot()), may_be_queued, ends, lean_on)
}

/// Returns the release of one round of `claim`, which goes on with another ballot and stays queued.
pub(super) fn of_round(engine: &AttachedRedlock, claim: &Claim, ballot: u64) -> Result<Arc<NodeRelease>> {
    new_release(&engine.nodes, claim, ballot, false, Ends::Claim, NodeSet::default())
}

fn new_release(
    nodes: &Nodes,
    claim: &Claim,
    ballot: u64,
    may_be_queued: bool,
    ends: Ends,
    lean_on: NodeSet,
) -> Result<Arc<NodeRelease>> {
    let (keys, now) = (nodes.options.keys(&claim.key)?, nodes.now());
    let lean_on = if nodes.contended.is_recent(&keys.lock, now) { NodeSet::default() } else { lean_on };
    Ok(Arc::new(NodeRelease {
        may_be_queued,
        lean_on,
        timeout: Nodes::timeout(claim.ttl),
        ..NodeRelease::new(keys, claim.attempt, ballot, ends)
    }))
}

/// Sends `release` to all nodes. Returns when a majority has confirmed it, with the replies that are late and the nodes that
/// have not confirmed it.
async fn release_everywhere(
    engine: &AttachedRedlock,
    release: &Arc<NodeRelease>,
) -> Result<(Release, Replies, NodeSet)> {
    let nodes = &engine.nodes;
    let mut votes = ReleaseVotes::new(nodes.len());
    let mut replies = send(engine, release, true, NodeSet::first(nodes.len()));
    replies
        .collect(release.timeout, LATE_REPLY_WAIT, |at, reply| {
            let outcome = outcome(reply);
            nodes.record(at, outcome.is_ok());
            votes.set(at, outcome);
            votes.is_confirmed()
        })
        .await;
    let outcome = votes.outcome(|| nodes.places())?;
    Ok((outcome, replies, votes.unconfirmed()))
}

fn send(engine: &AttachedRedlock, release: &Arc<NodeRelease>, notify: bool, nodes: NodeSet) -> Replies {
    engine.batcher.send(NodeRequest::Release { release: release.clone(), notify }, nodes)
}

/// Takes back the votes of some nodes. Returns the nodes that have not confirmed it.
pub(super) async fn take_back(engine: &AttachedRedlock, release: &Arc<NodeRelease>, granted: NodeSet) -> NodeSet {
    if granted.is_empty() {
        return granted;
    }
    let mut unconfirmed = granted;
    // Notified waiters would claim in vain, unless this claim looked like a holder to them.
    let mut replies = send(engine, release, granted.len() >= engine.nodes.quorum(), granted);
    replies
        .collect(release.timeout, LATE_REPLY_WAIT, |at, reply| {
            if outcome(reply).is_ok() {
                unconfirmed.remove(at);
            }
            false
        })
        .await;
    unconfirmed
}

/// Records late replies to a release, so that it is not repeated where it was carried out.
fn await_late_replies(engine: &Arc<AttachedRedlock>, attempt: AttemptId, release: &NodeRelease, mut late: Replies) {
    if late.is_done() {
        return;
    }
    let (engine, timeout, ballot) = (engine.clone(), release.timeout, release.ballot);
    // tidy-allow(spawn): the caller has its reply; this ends with the nodes' replies, or with their timeout
    engine.nodes.runtime.clone().spawn(async move {
        late.collect(timeout, timeout, |at, reply| {
            let is_done = outcome(reply).is_ok();
            engine.nodes.record(at, is_done);
            if is_done {
                engine.attempts.confirmed(attempt, ballot, at);
            }
            false
        })
        .await;
        late.missing().iter().for_each(|at| engine.nodes.record(at, false));
    });
}
