//! A node that has forgotten its locks and ballots does not vote until every lease it may have known of is over.
//!
//! Each node keeps a note of the server's life that it was written in. A restart gives the server another id, a flush
//! takes the note away: either way the next claim finds a node that cannot know what it granted. The other nodes know
//! how far the leases reach.
//!
//! A node whose clock leaps forward ends leases early, which is as bad. It knows itself how far they reached.

use crate::types::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Cmd;

use crate::engines::redis::node::{Lane, LeapForward};
use crate::engines::redlock::protocol::scripts::{BIRTH, HORIZON, LEAP};
use crate::engines::redlock::state::claim_votes::quorum_of;
use crate::engines::redlock::wire::calls::Race;
use crate::engines::redlock::wire::nodes::{Crew, Member};
use crate::types::clock::{Clock, Moment};
use crate::types::error::{ErrorKind, Result};

/// How long the other nodes may take to tell.
const PATIENCE: Duration = Duration::from_millis(500);
/// A claim that the node voted for before it forgot may be on its way to the others, who do not know of its lease yet. A
/// claim is refused a second after it was sent; this is longer.
const LAST_ROUND: Duration = Duration::from_millis(1500);
/// Leaps that are seen within this are seen together.
const TOGETHER: Duration = Duration::from_secs(5);
/// The pause before a node whose clock leapt is asked again: short, since whoever is new trusts it after two seconds.
const PAUSE: Duration = Duration::from_millis(50);
/// What the granularity of expiry may cost.
const MARGIN: Duration = Duration::from_millis(5);

/// Puts a node that knows nothing into quarantine. `ttl` is the lease that somebody asked for.
pub(super) fn begin(crew: &Arc<Crew>, at: usize, ttl: Duration) {
    let member = crew.nodes[at].clone();
    if member.birth.swap(true, Ordering::AcqRel) {
        return;
    }
    let crew = crew.clone();
    // tidy-allow(spawn): the caller goes on with the other nodes
    crew.runtime.clone().spawn(async move {
        let outcome = enter(&crew, at, ttl).await;
        member.birth.store(false, Ordering::Release);
        let place = member.node.place();
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

async fn enter(crew: &Arc<Crew>, at: usize, ttl: Duration) -> Result<Duration> {
    // Until then it does not vote, either: it is as new to everybody as to us.
    tokio::time::sleep(LAST_ROUND).await;
    let older = oldest_lease(crew, at, ttl).await;
    let connection = crew.nodes[at].connection(Lane::Main)?;
    let quarantine = older.mul_f64(1.0 + crew.drift) + MARGIN;
    let key = crew.options.node_key();
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1).arg(&key).arg(nonce).arg(u64::try_from(quarantine.as_millis()).unwrap_or(u64::MAX));
    };
    let mut reply = connection.run(&BIRTH, fill).await?;
    reply.unsigned().map(Duration::from_millis)
}

/// How long the leases that the node may have forgotten last from now on at the longest.
///
/// Each of them stands on a majority, so also on one of any such number of the other nodes, which have noted how far
/// their leases reach. When fewer of them tell, or none has a past, there is nothing better than the lease that was
/// asked for.
async fn oldest_lease(crew: &Arc<Crew>, forgetful: usize, ttl: Duration) -> Duration {
    let key: Arc<str> = crew.options.node_key().into();
    let others = crew.nodes.iter().enumerate().filter(|(at, _)| *at != forgetful);
    let mut race = Race::new(others.map(|(at, member)| {
        let (member, key) = (member.clone(), key.clone());
        (at, async move { horizon(&member, &key).await })
    }));
    let (mut answers, mut known) = (0, None);
    race.run(PATIENCE, PATIENCE, |_, answer| {
        if let Ok(horizon) = answer {
            answers += 1;
            known = known.max(horizon);
        }
        false
    })
    .await;
    match known {
        Some(known) if answers >= crew.quorum() => known,
        known => known.unwrap_or_default().max(ttl),
    }
}

/// How long the leases that a node knows of last; `None` when it has no past.
async fn horizon(member: &Member, key: &str) -> Result<Option<Duration>> {
    let connection = member.connection(Lane::Main)?;
    let mut reply = connection
        .run(&HORIZON, |command, nonce| {
            command.arg(1).arg(key).arg(nonce);
        })
        .await?;
    Ok(u64::try_from(reply.int()?).ok().map(Duration::from_millis))
}

/// When this process saw the clock of each node leap last.
pub(super) struct Leaps(Mutex<Vec<Option<Moment>>>);

impl Leaps {
    pub(super) fn new(nodes: usize) -> Leaps {
        Leaps(Mutex::new(vec![None; nodes]))
    }

    /// Whether so many leapt together with this one that it is our own clock that stood still.
    fn is_ours(&self, at: usize, now: Moment) -> bool {
        let mut leaps = self.0.lock();
        leaps[at] = Some(now);
        let together = leaps.iter().flatten().filter(|leap| now.since(**leap) < TOGETHER).count();
        together >= quorum_of(leaps.len())
    }
}

/// Puts a node into quarantine whenever its clock is seen to leap forward. Until that is done, its votes do not count.
pub(super) async fn watch(at: usize, member: Arc<Member>, node_key: String, clock: Clock, leaps: Arc<Leaps>) {
    let mut known = None;
    loop {
        let leap = member.node.leapt().await;
        // One whose machine was paused sees all nodes leap. It must not stop everybody.
        if known.replace(leap) != Some(leap) && leaps.is_ours(at, clock.now()) {
            member.node.meet_again(leap);
            continue;
        }
        match after_leap(&member, &node_key, leap).await {
            Ok(now_us) => member.node.settle(leap, now_us),
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => {
                let place = member.node.place();
                tracing::debug!(target: "distlock", { node = place, error = %error }, "node not in quarantine yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Answers what the node's clock showed when it was done.
async fn after_leap(member: &Member, node_key: &str, leap: LeapForward) -> Result<u64> {
    let connection = member.node.connection(Lane::Main, TOGETHER).await?;
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1).arg(node_key).arg(nonce).arg(leap.most_us).arg(leap.after_us);
    };
    connection.run(&LEAP, fill).await?.unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_majority_leaps_together_it_was_us() {
        let (leaps, start) = (Leaps::new(5), Moment::from_nanos(1_000_000_000_000));
        let after = |seconds| start.after(Duration::from_secs(seconds));
        assert!(!leaps.is_ours(0, after(0)) && !leaps.is_ours(0, after(1)), "the same one twice is one");
        assert!(!leaps.is_ours(1, after(10)) && !leaps.is_ours(2, after(11)), "the first was long ago");
        assert!(leaps.is_ours(4, after(12)));
    }
}
