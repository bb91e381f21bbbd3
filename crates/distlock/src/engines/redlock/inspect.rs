//! Shows locks as a majority of the nodes sees them, and ends holds by force.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::LockInfo;
use crate::engines::redis::node::{Keys, Lane};
use crate::engines::redlock::engine::AttachedRedlock;
use crate::engines::redlock::error::{by_node, no_reply};
use crate::engines::redlock::protocol::force_release::{self as forced, ForcedRelease};
use crate::engines::redlock::release;
use crate::engines::redlock::wire::nodes::{LATE_REPLY_WAIT, NodeState, Nodes};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// How long a majority may take to be connected, and a node to reply.
pub(super) const INSPECT_WAIT: Duration = Duration::from_secs(2);

/// Lists the locks whose names begin with `start`.
pub(super) async fn list(nodes: &Nodes, start: &str) -> Result<Vec<LockInfo>> {
    let replies = call_all(nodes, |state| {
        let (prefix, start) = (nodes.options.prefix.clone(), start.to_owned());
        async move { state.connection(Lane::Main)?.list(&prefix, &start).await }
    })
    .await?;
    let mut locks: BTreeMap<Key, Vec<LockInfo>> = BTreeMap::new();
    for lock in majority(nodes, replies)?.into_iter().flatten() {
        locks.entry(lock.key.clone()).or_default().push(lock);
    }
    Ok(locks.into_iter().filter_map(|(key, views)| merge(nodes.quorum(), key, views)).collect())
}

/// Shows one lock.
pub(super) async fn get(nodes: &Nodes, key: &Key) -> Result<Option<LockInfo>> {
    let replies = call_all(nodes, |state| {
        let (prefix, key) = (nodes.options.prefix.clone(), key.clone());
        async move { state.connection(Lane::Main)?.get(&prefix, &key).await }
    })
    .await?;
    let views = majority(nodes, replies)?;
    Ok(merge(nodes.quorum(), key.clone(), views.into_iter().flatten().collect()))
}

/// Calls all nodes. Returns the replies that have come when a majority has replied.
pub(super) async fn call_all<T, F>(nodes: &Nodes, call: impl Fn(Arc<NodeState>) -> F) -> Result<Vec<Result<T>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    nodes.await_quorum(Lane::Main, INSPECT_WAIT).await?;
    let mut replies: Vec<Result<T>> = nodes.iter().map(|_| Err(no_reply())).collect();
    nodes
        .call_all(call)
        .collect(INSPECT_WAIT, LATE_REPLY_WAIT, |at, reply| {
            replies[at] = reply;
            replies.iter().filter(|reply| reply.is_ok()).count() >= nodes.quorum()
        })
        .await;
    Ok(replies)
}

pub(super) fn majority<T>(nodes: &Nodes, replies: Vec<Result<T>>) -> Result<Vec<T>> {
    if replies.iter().filter(|reply| reply.is_ok()).count() < nodes.quorum() {
        let states = replies.iter().map(|reply| match reply {
            Ok(_) => "answered".to_owned(),
            Err(error) => error.to_string(),
        });
        let states = by_node(&nodes.places(), states);
        return Err(Error::new(ErrorKind::Unavailable, format!("redlock: no majority answers: {states}")));
    }
    Ok(replies.into_iter().filter_map(Result::ok).collect())
}

/// Returns what a majority agrees on. A hold of a minority is a claim that is being made or taken back.
fn merge(quorum: usize, key: Key, views: Vec<LockInfo>) -> Option<LockInfo> {
    let mut holders: BTreeMap<Option<FencingToken>, Vec<Holder>> = BTreeMap::new();
    let mut waiters = Vec::new();
    for view in views {
        if view.waiters.len() > waiters.len() {
            waiters = view.waiters;
        }
        for holder in view.holders {
            holders.entry(holder.token).or_default().push(holder);
        }
    }
    let holder = holders.into_values().find(|same| same.len() >= quorum).map(|mut same| {
        // The hold ends with its majority, not on the last node.
        same.sort_by_key(|holder| Reverse(holder.ttl_left));
        same.swap_remove(quorum - 1)
    });
    (holder.is_some() || !waiters.is_empty()).then(|| LockInfo::new(key, holder, waiters))
}

/// Ends the hold with `token`. Runs to its end even if its caller is dropped: one node is enough to tell the holder that its
/// lock is lost, and the holder then leaves the lock on the other nodes until its lease ends.
pub(super) async fn force_release(engine: &Arc<AttachedRedlock>, key: &Key, token: FencingToken) -> Result<()> {
    let (keys, its_engine) = (engine.nodes.options.keys(key)?, engine.clone());
    // tidy-allow(spawn): see above; it ends when the nodes have replied, or with their timeout
    let task = engine.nodes.runtime.spawn(async move { force_release_everywhere(&its_engine, keys, token).await });
    task.await.unwrap_or_else(|_| Err(Error::unknown("redlock: the engine was closed before the nodes answered")))
}

async fn force_release_everywhere(engine: &AttachedRedlock, keys: Keys, token: FencingToken) -> Result<()> {
    let nodes = &engine.nodes;
    let replies = call_all(nodes, |state| {
        let keys = keys.clone();
        async move { forced::run(&state.connection(Lane::Main)?, &keys, token).await }
    })
    .await?;
    let released = replies.iter().find_map(|reply| match reply {
        Ok(ForcedRelease::Done(attempt)) => Some(*attempt),
        _ => None,
    });
    if let Some(attempt) = released {
        // On the other nodes as well, or the holder's next renewal would set the lock again there.
        return release::force(engine, keys, attempt, token).await;
    }
    let is_unknown = replies.iter().any(|reply| reply.as_ref().is_err_and(Error::may_be_applied));
    let replies = majority(nodes, replies).map_err(|error| match is_unknown {
        false => error,
        true => Error::new(ErrorKind::Unknown, error.to_string()),
    })?;
    let foreign = replies.into_iter().find_map(|reply| match reply {
        ForcedRelease::Foreign(kind) => Some(kind),
        _ => None,
    });
    Err(match foreign {
        Some(kind) => Error::new(ErrorKind::Foreign, format!("redlock: the key holds a {kind} that is not ours"))
            .with_help("the program that made it must remove it"),
        None => Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}")),
    })
}
