//! A node that has lost its locks and ballots does not vote until every lease that it may have granted is over.
//!
//! Each node keeps a note with the id of the server's run. A restart gives the server another id, and a flush deletes the
//! note: either way the next claim finds a node that cannot know what it granted. The other nodes know how long the leases
//! last.
//!
//! A node whose clock leaps forward ends leases early, which is as bad. That node knows itself how long they would have
//! lasted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::engines::redis::node::{Lane, LeapForward};
use crate::engines::redlock::protocol::note;
use crate::engines::redlock::state::leaps::Leaps;
use crate::engines::redlock::wire::calls::NodeCalls;
use crate::engines::redlock::wire::nodes::{NodeState, Nodes};
use crate::types::clock::Clock;
use crate::types::error::{ErrorKind, Result};
use crate::types::sync::Mutex;

/// How long the other nodes may take to tell when their leases end.
const LEASES_LEFT_WAIT: Duration = Duration::from_millis(500);
/// A claim that the node voted for before it lost its data may be on its way to the other nodes, which do not know of its
/// lease yet. A node refuses a claim a second after it was sent; this is longer.
const LAST_CLAIM_WAIT: Duration = Duration::from_millis(1500);
/// How long a node whose clock leapt may take to connect.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// The pause before a node whose clock leapt is asked again: short, since a client that connects trusts the node after two
/// seconds.
const LEAP_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// What the granularity of expiry may cost.
const EXPIRY_MARGIN: Duration = Duration::from_millis(5);

/// Puts a node that has lost its data into quarantine. `ttl` is the lease of the claim that found the node so.
pub(super) fn begin(nodes: &Arc<Nodes>, at: usize, ttl: Duration) {
    let state = nodes[at].clone();
    if state.is_entering_quarantine.swap(true, Ordering::AcqRel) {
        return;
    }
    let nodes = nodes.clone();
    // tidy-allow(spawn): the caller goes on with the other nodes
    nodes.runtime.clone().spawn(async move {
        let outcome = enter(&nodes, at, ttl).await;
        state.is_entering_quarantine.store(false, Ordering::Release);
        let place = state.node.place();
        match outcome {
            Ok(left) => tracing::warn!(
                target: "distlock",
                { lock.backend = "redlock", node = place, left_s = left.as_secs_f64() },
                "node is new, or was restarted or flushed: it does not vote until older leases are over"
            ),
            Err(error) => {
                tracing::debug!(target: "distlock", { node = place, error = %error }, "node not in quarantine yet");
            }
        }
    });
}

async fn enter(nodes: &Nodes, at: usize, ttl: Duration) -> Result<Duration> {
    // The node does not vote in this time, either: every client finds it without a note.
    tokio::time::sleep(LAST_CLAIM_WAIT).await;
    let lost = lost_leases_left(nodes, at, ttl).await;
    let connection = nodes[at].connection(Lane::Main)?;
    let length = lost.mul_f64(1.0 + nodes.drift) + EXPIRY_MARGIN;
    note::start_quarantine(&connection, &nodes.note_key, length).await
}

/// Returns how long the leases that the node may have lost last from now on at the longest.
///
/// Each of them stands on a majority, so any majority's worth of the other nodes includes one that has noted how long its
/// leases last. When fewer of the other nodes reply, or none has a note, the best estimate is the lease of the claim.
async fn lost_leases_left(nodes: &Nodes, forgetful: usize, ttl: Duration) -> Duration {
    let note_key: Arc<str> = nodes.note_key.as_str().into();
    let others = nodes.iter().enumerate().filter(|(at, _)| *at != forgetful);
    let mut calls = NodeCalls::new(others.map(|(at, state)| {
        let (state, note_key) = (state.clone(), note_key.clone());
        (at, async move { note::leases_left(&state.connection(Lane::Main)?, &note_key).await })
    }));
    let (mut replies, mut longest) = (0, None);
    calls
        .collect(LEASES_LEFT_WAIT, LEASES_LEFT_WAIT, |_, reply: Result<_>| {
            if let Ok(left) = reply {
                replies += 1;
                longest = longest.max(left);
            }
            false
        })
        .await;
    match longest {
        Some(longest) if replies >= nodes.quorum() => longest,
        longest => longest.unwrap_or_default().max(ttl),
    }
}

/// Starts a task for each node that waits for its clock to leap.
pub(super) fn watch_clocks(nodes: &Nodes) -> JoinSet<()> {
    let (mut watches, leaps) = (JoinSet::new(), Arc::new(Mutex::new(Leaps::new(nodes.len()))));
    for (at, state) in nodes.iter().enumerate() {
        let (state, note_key, clock) = (state.clone(), nodes.note_key.clone(), nodes.clock.clone());
        let watch = watch_clock(at, state, note_key, clock, leaps.clone());
        // tidy-allow(spawn): sleeps until a clock leaps
        watches.spawn_on(watch, &nodes.runtime);
    }
    watches
}

/// Puts a node into quarantine whenever its clock is seen to leap forward. Until that is done, its votes do not count.
async fn watch_clock(at: usize, state: Arc<NodeState>, note_key: String, clock: Clock, leaps: Arc<Mutex<Leaps>>) {
    let mut handled = None;
    loop {
        let leap = state.node.leapt().await;
        // A process whose machine was paused sees all nodes leap. It must not put all of them into quarantine.
        if handled.replace(leap) != Some(leap) && leaps.lock().is_own_pause(at, clock.now()) {
            state.node.meet_again(leap);
            continue;
        }
        match quarantine_after_leap(&state, &note_key, leap).await {
            Ok(now_us) => state.node.settle(leap, now_us),
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => {
                let place = state.node.place();
                tracing::debug!(target: "distlock", { node = place, error = %error }, "node not in quarantine yet");
                tokio::time::sleep(LEAP_RETRY_PAUSE).await;
            }
        }
    }
}

/// Returns the node's clock at the time of the quarantine.
async fn quarantine_after_leap(state: &NodeState, note_key: &str, leap: LeapForward) -> Result<u64> {
    let connection = state.node.connection(Lane::Main, CONNECT_WAIT).await?;
    note::quarantine_after_leap(&connection, note_key, leap).await
}
