//! Claims a lock: the same ballot to every node at once.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Busy, Claim, Claimed, Grant, Term};
use crate::engines::redis::heartbeat;
use crate::engines::redis::node::Lane;
use crate::engines::redis::script::garbled;
use crate::engines::redlock::engine::AttachedRedlock;
use crate::engines::redlock::protocol::batch::NodeRequest;
use crate::engines::redlock::protocol::claim::{NodeClaim, vote};
use crate::engines::redlock::protocol::release::NodeRelease;
use crate::engines::redlock::state::backoff::{after_contention, after_leftovers, after_quarantine};
use crate::engines::redlock::state::claim_votes::{ClaimRefusal, ClaimVote, ClaimVotes};
use crate::engines::redlock::state::node_set::NodeSet;
use crate::engines::redlock::wire::batch::Replies;
use crate::engines::redlock::wire::nodes::{LATE_REPLY_WAIT, Nodes};
use crate::engines::redlock::{quarantine, release, wait};
use crate::types::clock::deadline;
use crate::types::error::{Error, Result};
use crate::types::token::{AttemptId, FencingToken};

/// How long a claim waits for a majority to be connected.
const QUORUM_WAIT: Duration = Duration::from_secs(1);
/// The part of the lease that must be left when a majority has granted it.
const MIN_VALIDITY_PART: u32 = 4;
/// How long a process that does not know the nodes yet waits for the other votes, which may report another holder.
const YOUNG_VOTE_WAIT: Duration = Duration::from_millis(50);

/// Claims the lock, and keeps listening for notifications only if the claim waits.
pub(super) async fn claim(engine: &Arc<AttachedRedlock>, claim: &Claim) -> Result<Claimed> {
    let _permit = engine.claim_limits.acquire(&claim.key).await;
    engine.nodes.await_quorum(Lane::Main, QUORUM_WAIT).await?;
    let outcome = claim_in_rounds(engine, claim).await;
    match (&outcome, claim.queue) {
        // On nodes that were not reached, too: they wake their waiters when they are connected again.
        (Ok(Claimed::Busy(_)), true) => wait::keep_listening(&engine.nodes, claim.attempt),
        (_, true) => wait::forget(&engine.nodes, claim.attempt),
        (_, false) => {}
    }
    outcome
}

/// One round, and another if only the ballot was too low.
async fn claim_in_rounds(engine: &Arc<AttachedRedlock>, claim: &Claim) -> Result<Claimed> {
    let nodes = &engine.nodes;
    let mut attempt = engine.attempts.begin(claim, NodeSet::first(nodes.len()), nodes.clock.wall(), nodes.now());
    for is_last in [false, true] {
        let (sent, keys) = (nodes.now(), nodes.options.keys(&claim.key)?);
        let is_contended = nodes.contended.is_recent(&keys.lock, sent);
        let request = NodeClaim::new(&nodes.options, keys, claim, attempt, sent, is_contended)?;
        let (votes, late) = round(engine, claim, request).await;
        if votes.is_granted() {
            let left = deadline(sent, claim.ttl, nodes.drift).since(nodes.now());
            if left >= claim.ttl / MIN_VALIDITY_PART {
                await_late_votes(engine, claim, late, None);
                let may_be_queued = |vote: &ClaimVote| matches!(vote, ClaimVote::Held(_) | ClaimVote::Unanswered);
                let voted = votes.nodes(ClaimVote::keeps);
                let may_be_queued = claim.queue && !votes.nodes(may_be_queued).is_empty();
                engine.attempts.granted(claim.attempt, voted, may_be_queued);
                let term = Some(Term { start: sent, ttl: claim.ttl });
                return Ok(Claimed::Granted(Grant::new(FencingToken::new(attempt.ballot()), term)));
            }
        }
        let (release, late_nodes) = (release::of_round(engine, claim, attempt.ballot())?, late.missing());
        await_late_votes(engine, claim, late, Some(release.clone()));
        if votes.is_low() && !is_last {
            let (above, in_doubt) = (votes.highest_ballot(), votes.nodes(|vote| vote.may_keep(claim.queue)));
            attempt = engine.attempts.raise(claim.attempt, attempt, above, in_doubt, nodes.clock.wall());
            continue;
        }
        return refuse(engine, claim, &votes, &release, late_nodes).await;
    }
    Err(garbled())
}

/// Asks all nodes until their votes decide. Returns the votes, and the replies that have not come by then.
async fn round(engine: &Arc<AttachedRedlock>, claim: &Claim, request: NodeClaim) -> (ClaimVotes, Replies) {
    let nodes = &engine.nodes;
    let mut replies = engine.batcher.send(NodeRequest::Claim(Box::new(request)), NodeSet::first(nodes.len()));
    let mut votes = ClaimVotes::new(nodes.len());
    let take = |votes: &mut ClaimVotes, at, reply| {
        let vote = vote(reply);
        observe(nodes, at, &vote, claim);
        votes.set(at, vote);
    };
    replies
        .collect(Nodes::timeout(claim.ttl), LATE_REPLY_WAIT, |at, reply| {
            take(&mut votes, at, reply);
            votes.is_decided()
        })
        .await;
    if votes.is_provisional() {
        replies
            .collect(YOUNG_VOTE_WAIT, Duration::ZERO, |at, reply| {
                take(&mut votes, at, reply);
                !votes.is_provisional()
            })
            .await;
    }
    (votes, replies)
}

fn observe(nodes: &Arc<Nodes>, at: usize, vote: &ClaimVote, claim: &Claim) {
    nodes.record(at, !matches!(vote, ClaimVote::Unanswered | ClaimVote::Refused(_)));
    if matches!(vote, ClaimVote::Fresh) {
        quarantine::begin(nodes, at, claim.ttl);
    }
}

/// Waits for late votes in the background. With `release`, for a claim that was not granted, late votes are taken back.
/// Without, a late node that queued the claim after it was granted and released leaves the queue.
fn await_late_votes(
    engine: &Arc<AttachedRedlock>,
    claim: &Claim,
    mut late: Replies,
    release: Option<Arc<NodeRelease>>,
) {
    if late.is_done() {
        return;
    }
    let (engine, claim, late_request) = (engine.clone(), claim.clone(), engine.nodes.await_late_replies());
    // tidy-allow(spawn): the caller has its reply; requests that are still in flight end with the node's timeout
    engine.nodes.runtime.clone().spawn(async move {
        let _late_request = late_request;
        let nodes = &engine.nodes;
        let (timeout, mut may_keep, mut queued) = (Nodes::timeout(claim.ttl), late.missing(), NodeSet::default());
        late.collect(timeout, timeout, |at, reply| {
            let vote = vote(reply);
            observe(nodes, at, &vote, &claim);
            if !vote.may_keep(false) {
                may_keep.remove(at);
            }
            if let (Some(release), false) = (&release, vote.may_keep(claim.queue)) {
                engine.attempts.did_nothing(claim.attempt, release.ballot, at);
            }
            if matches!(vote, ClaimVote::Held(_)) {
                queued.add(at);
            }
            false
        })
        .await;
        late.missing().iter().for_each(|at| nodes.record(at, false));
        if let Some(release) = &release {
            take_back(&engine, claim.attempt, release, may_keep).await;
        } else if claim.queue
            && engine.attempts.is_over(claim.attempt)
            && let Ok(release) = release::of_claim(&engine, &claim)
        {
            release::take_back(&engine, &release, queued).await;
        }
    });
}

/// Takes back votes for the ballot of `release`. Returns the nodes that have not confirmed it.
async fn take_back(
    engine: &AttachedRedlock,
    attempt: AttemptId,
    release: &Arc<NodeRelease>,
    voted: NodeSet,
) -> NodeSet {
    let unconfirmed = release::take_back(engine, release, voted).await;
    let confirmed = voted.iter().filter(|at| !unconfirmed.has(*at));
    confirmed.for_each(|at| engine.attempts.confirmed(attempt, release.ballot, at));
    unconfirmed
}

/// The claim was not granted: takes back the votes of a minority, and returns why. `late` are the nodes whose votes are
/// awaited in the background.
async fn refuse(
    engine: &AttachedRedlock,
    claim: &Claim,
    votes: &ClaimVotes,
    release: &Arc<NodeRelease>,
    late: NodeSet,
) -> Result<Claimed> {
    let is_split = votes.is_contested() && !votes.is_held();
    let in_doubt = votes.nodes(|vote| vote.may_keep(claim.queue));
    let is_queued = claim.queue && votes.held().next().is_some();
    let splits = engine.attempts.refused(claim.attempt, in_doubt, is_queued, is_split);
    let unconfirmed = take_back(engine, claim.attempt, release, votes.nodes(ClaimVote::keeps)).await;
    tracing::debug!(target: "distlock", { lock.name = %claim.key, votes = ?votes }, "a redlock round was not granted");
    let refused = match votes.refusal(unconfirmed.len(), &engine.nodes.places()) {
        ClaimRefusal::Unknown(error) => Err(error),
        ClaimRefusal::TooSlow => {
            let slow = format!("redlock: the votes took longer than a lease of {:?} allows", claim.ttl);
            Err(Error::unavailable(slow).with_help("ask for a longer ttl"))
        }
        ClaimRefusal::Contested => Ok(busy(claim, votes, release.ballot, splits)),
        // The quarantine ends by itself, so a waiter waits for that.
        ClaimRefusal::Quarantined(left, _) if claim.queue => {
            Ok(Busy { holder: None, poll_after: Some(after_quarantine(left)) })
        }
        ClaimRefusal::Quarantined(_, error) | ClaimRefusal::Impossible(error) => Err(error),
    };
    if let (Ok(busy), true) = (&refused, claim.queue) {
        let left = unconfirmed.with(votes.nodes(|vote| matches!(vote, ClaimVote::Unanswered)));
        let poll_after = if left.is_empty() { busy.poll_after } else { Some(after_leftovers(busy.poll_after)) };
        return Ok(Claimed::Busy(Busy { poll_after, holder: busy.holder.clone() }));
    }
    // The attempt is over unless the caller claims again. The keeper releases it on the nodes that may keep something of it.
    let left = engine.attempts.get(claim.attempt).map(|attempt| attempt.in_doubt()).unwrap_or_default();
    let now = engine.nodes.now();
    let replies_until = if late.is_empty() { now } else { now.after(release.timeout) };
    engine.attempts.over(claim.attempt, left, replies_until, now.after(claim.ttl));
    refused.map(Claimed::Busy)
}

fn busy(claim: &Claim, votes: &ClaimVotes, ballot: u64, splits: u32) -> Busy {
    let newest = votes.held().max_by_key(|held| held.holder.token.map(FencingToken::get));
    let jitter = AttemptId::random().fraction();
    let pause = || after_contention(votes, ballot, splits, heartbeat(claim.ttl), jitter);
    Busy { holder: newest.map(|held| held.holder.clone()), poll_after: if claim.queue { pause() } else { None } }
}
