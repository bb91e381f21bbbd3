//! Releases, of holds and of places in the queue.

use crate::types::error::{Error, ErrorKind, Result};
use std::sync::Arc;

use redis::Value;

use crate::contract::{Claim, Release};
use crate::engines::redis::client::{CONNECT_WAIT, Client};
use crate::engines::redis::protocol::lean::{LeanLock, LeanOutcome, LeanRequest, Written};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::outcome::HANDED_OVER;
use crate::engines::redis::protocol::script::{Reply, garbled};
use crate::engines::redis::wire::calls::{CallKind, FullRequest, Request, RequestReply};
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::redis::wire::servers::{Moving, Servers};
use crate::types::token::AttemptId;

/// How often a claim or release is sent again because of dead waiters: each time hundreds of them are dropped.
pub(super) const MOST_CALLS: u32 = 64;
/// What the server says when it found only dead waiters and has more to look at.
const MORE: &str = "more";

/// A release on its way to the lean script, or to the native command that does the same.
struct LeanRelease<'a> {
    connection: Arc<Connection>,
    request: LeanRequest,
    written: Option<Written<'a>>,
}

/// An answered release.
struct Released {
    outcome: Release,
    /// Whether the lock had waiters or other holders, or was not the attempt's.
    had_waiters: bool,
    /// The attempt that must claim the lock next without having been notified.
    next: Option<AttemptId>,
    /// The id of the connection that it was sent over.
    over: u64,
}

impl Client {
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        if let Some(LeanRelease { connection, request, written }) = self.lean_release(claim) {
            let over = connection.id;
            match connection.release_lean(request, written).await {
                Ok(RequestReply::Lean(LeanOutcome::Done(_))) => {
                    self.forget_late(claim.attempt, over);
                    return Ok(Release::Released);
                }
                Err(error) if error.may_be_applied() => return Err(error),
                _ => {}
            }
        }
        // Boxed: the future of a release that the lean script serves stays small.
        Box::pin(self.release_fully(claim)).await
    }

    /// Returns what sends a release to the lean script; `None` when that script is not likely to serve it.
    fn lean_release<'a>(&self, claim: &'a Claim) -> Option<LeanRelease<'a>> {
        if !claim.mode().is_exclusive() || self.waiting.is_enlisted(claim.attempt) {
            return None;
        }
        let lock = LeanLock::new(&self.options.prefix, &claim.key, claim.attempt)?;
        if self.contention.is_recent(lock.key(), self.clock.now()) {
            return None;
        }
        let (connection, written) = self.servers.at_once(lock.key(), |server| {
            let connection = server.open_for_release()?;
            let token = claim.token().filter(|_| connection.native_release().is_some());
            // As its claim was told, unless messages have come in or stopped since: then the values differ.
            let wake = || server.hears_at(&connection, || lock.own_fence()).then_some(self.options.wake);
            let written = token.map(|token| Written { token, wake: wake(), record: &claim.record });
            Some((connection, written))
        })?;
        Some(LeanRelease { connection, request: lock.release(), written })
    }

    /// Releases by the full script.
    pub(super) async fn release_fully(&self, claim: &Claim) -> Result<Release> {
        let (outcome, over) = self.end(claim).await?;
        self.forget_late(claim.attempt, over);
        Ok(outcome)
    }

    /// Records that `attempt` was released over the connection with this id.
    fn forget_late(&self, attempt: AttemptId, over: u64) {
        if !self.late_claims.is_empty() {
            self.late_claims.released(attempt, over, self.clock.now());
        }
    }

    /// Ends the hold or the place of an attempt. Returns the outcome and the id of the connection that it went over.
    pub(super) async fn end(&self, claim: &Claim) -> Result<(Release, u64)> {
        self.waiting.forget(claim.attempt);
        let names = self.names(&claim.key)?;
        let released = release(&self.servers, &names, claim.attempt).await?;
        if released.had_waiters {
            self.contention.note(&names.lock, self.clock.now());
        }
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
}

async fn release(servers: &Servers, names: &Names, attempt: AttemptId) -> Result<Released> {
    let (released, mut is_more) = release_once(servers, names, attempt).await?;
    let mut next = released.next;
    // The attempt is released. The next calls look for the waiter that gets the lock.
    for _ in 1..MOST_CALLS {
        if !is_more {
            break;
        }
        // Boxed: this is rare, and the future of a release stays small.
        let Ok((again, is_still)) = Box::pin(release_once(servers, names, attempt)).await else { break };
        (next, is_more) = (again.next, is_still);
    }
    Ok(Released { next, ..released })
}

/// Sends one release. Returns also whether there is more to pass on.
async fn release_once(servers: &Servers, names: &Names, attempt: AttemptId) -> Result<(Released, bool)> {
    let request = |server: Arc<ServerConnections>, _| async move {
        let connection = match server.for_release(CONNECT_WAIT).await {
            Ok(connection) => connection,
            // Learning the hash slots anew would take longer than the keeper waits for a release.
            Err(error) => return Ok(Err(error)),
        };
        let attempt = attempt.hex();
        let mut args = redis::Cmd::with_capacity(1, attempt.len());
        args.arg(&attempt[..]);
        let request = FullRequest { names: names.clone(), common: None, args, bytes: attempt.len() };
        match connection.request(CallKind::Release, Request::Full(Box::new(request))).await? {
            RequestReply::Full { outcome, .. } => Ok(read(outcome, connection.id)),
            RequestReply::Lean(_) => Ok(Err(garbled())),
        }
    };
    servers.routed(&names.lock, Moving::Wait, request).await?
}

fn read(outcome: Value, over: u64) -> Result<(Released, bool)> {
    let mut reply = match outcome {
        Value::Int(released) => {
            let had_waiters = released == HANDED_OVER;
            return Ok((Released { outcome: Release::Released, had_waiters, next: None, over }, false));
        }
        Value::Array(parts) => Reply::of(parts),
        _ => return Err(garbled()),
    };
    let outcome = match reply.word()?.as_str() {
        "released" => Release::Released,
        "not ours" => Release::NotOurs,
        _ => return Err(garbled()),
    };
    let next = reply.word()?;
    Ok((Released { outcome, had_waiters: true, next: next.parse().ok(), over }, next == MORE))
}
