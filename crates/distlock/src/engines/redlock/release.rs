//! Releases a lock on every node, now or as soon as a node can be reached.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::contract::{Claim, Release};
use crate::engines::redis::node::Keys;
use crate::engines::redlock::engine::AttachedRedlock;
use crate::engines::redlock::protocol::batch::NodeRequest;
use crate::engines::redlock::protocol::release::{Ends, NodeRelease, outcome};
use crate::engines::redlock::state::node_set::NodeSet;
use crate::engines::redlock::state::release_votes::ReleaseVotes;
use crate::engines::redlock::wait;
use crate::engines::redlock::wire::batch::{Replies, send_one};
use crate::engines::redlock::wire::nodes::{LATE_REPLY_WAIT, Nodes};
use crate::types::error::Result;
use crate::types::token::{AttemptId, FencingToken};

/// The pause before a release is repeated on a node, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How long a forced release is repeated on a node that does not confirm it.
const FORCED_RELEASE_WAIT: Duration = Duration::from_secs(10);

/// Ends a hold, or leaves the queue, on all nodes. Returns when a majority has confirmed it.
pub(super) async fn release(engine: &AttachedRedlock, claim: &Claim) -> Result<Release> {
    wait::forget(&engine.nodes, claim.attempt);
    // Before anything is sent: from now on no node is asked to set the lock again.
    engine.attempts.releasing(claim.attempt);
    let outcome = release_everywhere(engine, &of_claim(engine, claim)?).await?;
    engine.attempts.forget(claim.attempt);
    Ok(outcome)
}

/// Ends another owner's hold with `token` on all nodes.
pub(super) async fn force(engine: &AttachedRedlock, keys: Keys, attempt: AttemptId, token: FencingToken) -> Result<()> {
    let release = NodeRelease {
        timeout: Nodes::timeout(Duration::MAX),
        until: engine.nodes.now().after(FORCED_RELEASE_WAIT),
        ..NodeRelease::new(keys, attempt, token.get(), Ends::Forced)
    };
    release_everywhere(engine, &Arc::new(release)).await.map(drop)
}

/// Returns the release of everything that `claim` has become.
pub(super) fn of_claim(engine: &AttachedRedlock, claim: &Claim) -> Result<Arc<NodeRelease>> {
    let known = engine.attempts.get(claim.attempt);
    let may_be_queued = known.map_or(claim.queue, |known| known.may_be_queued());
    let ends = if known.is_some_and(|known| known.was_granted()) { Ends::Hold } else { Ends::Claim };
    let lean_on = known.map(|known| known.voted_only()).unwrap_or_default();
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
        until: now.after(claim.ttl),
        ..NodeRelease::new(keys, claim.attempt, ballot, ends)
    }))
}

/// Sends `release` to all nodes. Returns when a majority has confirmed it; the others get it again later.
async fn release_everywhere(engine: &AttachedRedlock, release: &Arc<NodeRelease>) -> Result<Release> {
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
    let outcome = votes.outcome(&nodes.places())?;
    repeat_after(nodes, release.clone(), replies, votes.unconfirmed());
    Ok(outcome)
}

fn send(engine: &AttachedRedlock, release: &Arc<NodeRelease>, notify: bool, nodes: NodeSet) -> Replies {
    engine.batcher.send(NodeRequest::Release { release: release.clone(), notify }, nodes)
}

/// Takes back the votes of some nodes. Returns how many of these nodes have not confirmed it; they get it again later.
pub(super) async fn take_back(engine: &AttachedRedlock, release: &Arc<NodeRelease>, granted: NodeSet) -> usize {
    if granted.is_empty() {
        return 0;
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
    let count = unconfirmed.len();
    repeat(&engine.nodes, release, unconfirmed.iter());
    count
}

/// Waits for the late replies, and repeats the release on nodes that do not confirm it.
fn repeat_after(nodes: &Arc<Nodes>, release: Arc<NodeRelease>, mut late: Replies, mut unconfirmed: NodeSet) {
    if late.is_done() {
        return repeat(nodes, &release, unconfirmed.iter());
    }
    let (nodes, late_request) = (nodes.clone(), nodes.await_late_replies());
    // tidy-allow(spawn): the caller has its reply; a node that is late must be freed all the same
    nodes.runtime.clone().spawn(async move {
        let _late_request = late_request;
        late.collect(release.timeout, LATE_REPLY_WAIT, |at, reply| {
            let is_done = outcome(reply).is_ok();
            nodes.record(at, is_done);
            if is_done {
                unconfirmed.remove(at);
            }
            false
        })
        .await;
        late.missing().iter().for_each(|at| nodes.record(at, false));
        repeat(&nodes, &release, unconfirmed.iter());
    });
}

/// Sends `release` to each of these nodes until the node confirms it or the lease is over.
pub(super) fn repeat(nodes: &Arc<Nodes>, release: &Arc<NodeRelease>, unconfirmed: impl IntoIterator<Item = usize>) {
    for at in unconfirmed {
        // tidy-allow(spawn): one small task for a node that is out of reach, for a lease at the longest
        nodes.runtime.spawn(repeat_on(Arc::downgrade(nodes), at, release.clone()));
    }
}

async fn repeat_on(nodes: Weak<Nodes>, at: usize, release: Arc<NodeRelease>) {
    let request = Arc::new(NodeRequest::Release { release: release.clone(), notify: true });
    let mut pause = FIRST_PAUSE;
    // Without the engine there are no connections, either.
    while let Some(nodes) = nodes.upgrade() {
        let reply = tokio::time::timeout(release.timeout, send_one(&nodes, at, &request)).await;
        let is_done = reply.is_ok_and(|reply| outcome(reply).is_ok());
        if is_done || nodes.now().after(pause) >= release.until {
            return;
        }
        drop(nodes);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
