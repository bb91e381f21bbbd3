//! One release on its way.

use std::sync::Arc;

use redis::Value;

use crate::contract::Release;
use crate::engines::redis::combiner::{Kind, Request};
use crate::engines::redis::names::Names;
use crate::engines::redis::script::{Reply, garbled};
use crate::engines::redis::servers::Servers;
use crate::engines::redis::session::Session;
use crate::engines::redis::{MOST_CALLS, PATIENCE};
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// An answered release.
pub(super) struct Released {
    pub(super) outcome: Release,
    /// Who must claim the lock next without having been told.
    pub(super) next: Option<AttemptId>,
    /// What it went by.
    pub(super) over: Arc<Session>,
}

/// What the server says when it found dead waiters alone and has more to look at.
const MORE: &str = "more";

/// Ends what `attempt` has of a lock, or gives up its place in the queue.
pub(super) async fn release(servers: &Servers, names: &Names, attempt: AttemptId) -> Result<Released> {
    let (released, mut is_more) = release_once(servers, names, attempt).await?;
    let mut next = released.next;
    // It is released; what is left is to find the waiter that gets the lock.
    for _ in 1..MOST_CALLS {
        if !is_more {
            break;
        }
        let Ok((again, is_still)) = release_once(servers, names, attempt).await else { break };
        (next, is_more) = (again.next, is_still);
    }
    Ok(Released { next, ..released })
}

/// Sends one release; whether there is more to pass on.
async fn release_once(servers: &Servers, names: &Names, attempt: AttemptId) -> Result<(Released, bool)> {
    let mut route = servers.route(&names.lock);
    loop {
        let (pair, _) = route.next().await?;
        let session = pair.for_release(PATIENCE).await?;
        let mut args = redis::Cmd::with_capacity(1, 32);
        args.arg(attempt.to_string());
        match session.gather(Kind::Release, Request { names: names.clone(), common: None, args }).await {
            Err(error) if route.again(&error, false).await => {}
            answer => return read(answer?.outcome, session),
        }
    }
}

fn read(answer: Value, over: Arc<Session>) -> Result<(Released, bool)> {
    let mut reply = match answer {
        Value::Int(_) => return Ok((Released { outcome: Release::Released, next: None, over }, false)),
        Value::Array(parts) => Reply::of(parts),
        _ => return Err(garbled()),
    };
    let outcome = match reply.word()?.as_str() {
        "released" => Release::Released,
        "not ours" => Release::NotOurs,
        _ => return Err(garbled()),
    };
    let next = reply.word()?;
    Ok((Released { outcome, next: next.parse().ok(), over }, next == MORE))
}
