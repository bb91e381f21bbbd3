//! Releases, of holds and of places in the queue.

use crate::types::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::contract::{Claim, Release};
use crate::engines::redis::client::{CONNECT_WAIT, Client};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::script::{Reply, garbled};
use crate::engines::redis::wire::calls::{CallKind, Request};
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::redis::wire::servers::{Moving, Servers};
use crate::types::clock::{Clock, Moment};
use crate::types::token::AttemptId;

/// How often a claim or release is sent again because of dead waiters: each time hundreds of them are dropped.
pub(super) const MOST_CALLS: u32 = 64;
/// How long closing waits for pending releases: nearly as long as they take, and less than the core waits.
const CLOSE_WAIT: Duration = Duration::from_millis(1800);
/// The pause before the second release of a late claim; doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// What the server says when it found only dead waiters and has more to look at.
const MORE: &str = "more";

/// An answered release.
struct Released {
    outcome: Release,
    /// The attempt that must claim the lock next without having been notified.
    next: Option<AttemptId>,
    /// The id of the connection that it was sent over.
    over: u64,
}

impl Client {
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        let (outcome, over) = self.end(claim).await?;
        if let Some(until) = self.late_claims.released(claim.attempt, over) {
            let (servers, clock) = (self.servers.clone(), self.clock.clone());
            let again = release_until(servers, clock, self.names(&claim.key)?, claim.attempt, until);
            let mut releases = self.late_releases.lock();
            while releases.try_join_next().is_some() {}
            // tidy-allow(spawn): goes on beside everything else, on the keeper's runtime; ends with the engine
            releases.spawn_on(again, &self.keeper_runtime);
        }
        Ok(outcome)
    }

    /// Ends the hold or the place of an attempt. Returns the outcome and the id of the connection that it went over.
    pub(super) async fn end(&self, claim: &Claim) -> Result<(Release, u64)> {
        self.waiting.forget(claim.attempt);
        let released = release(&self.servers, &self.names(&claim.key)?, claim.attempt).await?;
        // A waiter of this process that only polls need not wait for its next poll.
        if let Some(next) = released.next {
            self.waiting.wake(next);
        }
        Ok((released.outcome, released.over))
    }

    /// Ends grants that do not count. Returns `error`, unless it is unknown whether all of them are ended. In either case
    /// the releases may still be in flight, so the attempts are over.
    pub(super) async fn give_back(&self, claims: &[Claim], error: Error) -> Error {
        let mut are_ended = true;
        for claim in claims {
            are_ended &= self.end(claim).await.is_ok();
        }
        let error = match are_ended {
            true if error.kind() != ErrorKind::Unknown => error,
            true => Error::unavailable(format!("{error}; the grant was given back")).with_source(error),
            false => Error::unknown(format!("{error}; it is not known whether it is given back")).with_source(error),
        };
        error.with_attempt_over()
    }

    /// Closes the connections when no attempt that was released can get anything any more, or after [`CLOSE_WAIT`].
    pub(super) async fn close(&self) {
        let mut releases = std::mem::take(&mut *self.late_releases.lock());
        let all = async { while releases.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_WAIT, all).await.is_err() {
            tracing::debug!(target: "distlock", "closed while a claim may still come: its lease ends it");
        }
        self.servers.close();
    }
}

/// Releases an attempt again until none of its claims can arrive any more.
async fn release_until(servers: Arc<Servers>, clock: Clock, names: Names, attempt: AttemptId, until: Moment) {
    let mut pause = FIRST_PAUSE;
    let mut now = clock.now();
    while now < until {
        clock.sleep_until(now.after(pause).min(until)).await;
        pause *= 2;
        now = clock.now();
        if let Err(error) = release(&servers, &names, attempt).await {
            tracing::debug!(target: "distlock", %error, "a claim that may come late was not released again");
        }
    }
}

async fn release(servers: &Servers, names: &Names, attempt: AttemptId) -> Result<Released> {
    let (released, mut is_more) = release_once(servers, names, attempt).await?;
    let mut next = released.next;
    // The attempt is released. The next calls look for the waiter that gets the lock.
    for _ in 1..MOST_CALLS {
        if !is_more {
            break;
        }
        let Ok((again, is_still)) = release_once(servers, names, attempt).await else { break };
        (next, is_more) = (again.next, is_still);
    }
    Ok(Released { next, ..released })
}

/// Sends one release. Returns also whether there is more to pass on.
async fn release_once(servers: &Servers, names: &Names, attempt: AttemptId) -> Result<(Released, bool)> {
    let request = |server: Arc<ServerConnections>, _| async move {
        let connection = server.for_release(CONNECT_WAIT).await?;
        let mut args = redis::Cmd::with_capacity(1, 32);
        args.arg(attempt.to_string());
        let request = Request { names: names.clone(), common: None, args };
        let reply = connection.request(CallKind::Release, request).await?;
        read(reply.outcome, connection.id)
    };
    servers.routed(&names.lock, Moving::Wait, request).await
}

fn read(outcome: Value, over: u64) -> Result<(Released, bool)> {
    let mut reply = match outcome {
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
