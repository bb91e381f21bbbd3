//! Claims of one lock.

use std::sync::Arc;

use redis::Value;

use crate::contract::{Claim, Claimed, Grant, Term};
use crate::engines::redis::client::{CONNECT_WAIT, Client};
use crate::engines::redis::protocol::lean::{LeanLease, LeanLock, LeanOutcome, LeanRequest};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::outcome::{read_busy, read_queued, read_slot, refusal};
use crate::engines::redis::protocol::script::{Reply, garbled};
use crate::engines::redis::protocol::time::{heartbeat, millis};
use crate::engines::redis::release::MOST_CALLS;
use crate::engines::redis::state::sending::Sending;
use crate::engines::redis::wire::calls::{CallKind, FullRequest, Request, RequestReply};
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::redis::wire::servers::{Moving, Servers};
use crate::engines::shared::mode_text::{mode_of, mode_text};
use crate::engines::shared::record_text::append_record;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::record_json::write_number;
use crate::types::token::FencingToken;

/// Room for the arguments of a claim beside its record.
const CLAIM_ARGS: usize = 5;
const CLAIM_BYTES: usize = 96;
/// Room for a record of ordinary length.
const RECORD_BYTES: usize = 192;

/// A claim on its way to the lean script.
struct LeanClaim {
    connection: Arc<Connection>,
    request: LeanRequest,
    sent: Moment,
}

impl Client {
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        if let Some(lean) = self.lean_claim(claim)
            && let Some(outcome) = self.claim_lean(claim, lean).await
        {
            return outcome;
        }
        // Boxed: the future of a claim that is granted at once stays small.
        Box::pin(self.claim_fully(claim)).await
    }

    /// Returns what sends a claim to the lean script; `None` when that script cannot serve it, or is not likely to.
    fn lean_claim(&self, claim: &Claim) -> Option<LeanClaim> {
        let is_first = self.late_claims.until(claim.attempt).is_none() && !self.waiting.is_enlisted(claim.attempt);
        if !is_first || !claim.mode().is_exclusive() {
            return None;
        }
        let lock = LeanLock::new(&self.options.prefix, &claim.key, claim.attempt)?;
        let (connection, hears) = self.servers.at_once(lock.key(), |server| {
            let connection = server.main.now().filter(|connection| connection.claims_lean)?;
            let hears = server.hears_at(&connection, || lock.own_fence());
            Some((connection, hears))
        })?;
        let sent = self.clock.now();
        if self.contention.is_recent(lock.key(), sent) {
            return None;
        }
        let lease = LeanLease { lease_ms: millis(claim.lease()), not_after_us: connection.not_after(sent) };
        let request = lock.claim(lease, hears.then_some(self.options.wake), &claim.record)?;
        Some(LeanClaim { connection, request, sent })
    }

    /// Claims by the lean script. Returns `None` when it has certainly not granted the lock, and the full script is next.
    async fn claim_lean(&self, claim: &Claim, lean: LeanClaim) -> Option<Result<Claimed>> {
        let LeanClaim { connection, request, sent } = lean;
        let sending = Sending::new(&self.late_claims, std::slice::from_ref(claim), sent, connection.id);
        let outcome = connection.request(CallKind::LeanClaim, Request::Lean(request)).await;
        match outcome {
            Err(error) if error.may_be_applied() => return Some(Err(error)),
            _ => sending.answered(),
        }
        match outcome {
            Ok(RequestReply::Lean(LeanOutcome::Done(token))) => {
                let term = Term { start: sent, ttl: claim.ttl };
                Some(Ok(Claimed::Granted(Grant::new(FencingToken::new(token), Some(term)))))
            }
            // Late is late for all claims of a call: the full script decides about each by itself, by a time of its own.
            _ => None,
        }
    }

    /// Claims by the full script.
    pub(super) async fn claim_fully(&self, claim: &Claim) -> Result<Claimed> {
        let outcome = match self.try_claim(claim).await {
            Ok((claimed, server)) if server.replicas.is_some() => Box::pin(self.confirm(&server, claimed, claim)).await,
            Ok((claimed, _)) => Ok(claimed),
            Err(error) => Err(error),
        };
        if !matches!(outcome, Ok(Claimed::Busy(_))) {
            self.waiting.forget(claim.attempt);
        }
        // A right that is missing in the middle of a script leaves behind what the script did before.
        if claim.queue && outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Auth) {
            drop(Box::pin(self.end(claim)).await);
        }
        outcome
    }

    /// Claims the lock. Replicas need not have the grant yet.
    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<(Claimed, Arc<ServerConnections>)> {
        self.note_leases([claim]);
        let names = self.names(&claim.key)?;
        if let Servers::One(server) = &*self.servers {
            return Ok((self.claim_from(server, &names, claim).await?, server.clone()));
        }
        let names = &names;
        let request = |server: Arc<ServerConnections>, _| async move {
            let claimed = self.claim_from(&server, names, claim).await?;
            Ok((claimed, server))
        };
        // Boxed: the future of a claim from one server stays small.
        Box::pin(self.servers.routed(&names.lock, Moving::Wait, request)).await
    }

    async fn claim_from(&self, server: &ServerConnections, names: &Names, claim: &Claim) -> Result<Claimed> {
        let connection = server.main.connection(CONNECT_WAIT).await?;
        let hears = server.hears(&connection, names);
        let claimed = self.claim_over(&connection, names, claim, hears).await?;
        // A claim that is granted at once needs no subscription.
        if hears || !claim.queue || !matches!(claimed, Claimed::Busy(_)) {
            return Ok(claimed);
        }
        // Boxed: most claims hear.
        Box::pin(async move {
            match server.begin_to_hear(names).await {
                true => self.claim_over(&connection, names, claim, true).await,
                false => Ok(claimed),
            }
        })
        .await
    }

    async fn claim_over(&self, connection: &Connection, names: &Names, claim: &Claim, hears: bool) -> Result<Claimed> {
        for _ in 0..MOST_CALLS {
            if let Some(claimed) = self.claim_once(connection, names, claim, hears).await? {
                return Ok(claimed);
            }
        }
        Err(Error::unavailable("redis: too many dead waiters are before it"))
    }

    /// Claims; `None` when the server found only dead waiters, dropped them, and has more to look at.
    async fn claim_once(
        &self,
        connection: &Connection,
        names: &Names,
        claim: &Claim,
        hears: bool,
    ) -> Result<Option<Claimed>> {
        if claim.queue {
            self.waiting.enlist(claim.attempt);
        }
        let sent = self.clock.now();
        let request = self.full_claim(connection, names, claim, sent, hears)?;
        let sending = Sending::new(&self.late_claims, std::slice::from_ref(claim), sent, connection.id);
        let reply = connection.request(CallKind::Claim, request).await;
        sending.ended(&reply);
        let RequestReply::Full { server_us, outcome } = reply? else { return Err(garbled()) };
        connection.saw_clock(sent, server_us);
        let granted = |token, slot| {
            let (token, term) = (FencingToken::new(token), Term { start: sent, ttl: claim.ttl });
            Ok(Some(Claimed::Granted(Grant { token, term: Some(term), slot })))
        };
        let is_busy = || {
            self.contention.note(&names.lock, sent);
            self.waiting.answered(claim.attempt, sent, server_us);
        };
        let mut reply = match outcome {
            Value::BulkString(text) => {
                is_busy();
                return read_queued(&text, claim, hears, server_us).map(|busy| Some(Claimed::Busy(busy)));
            }
            Value::Int(token) => return granted(u64::try_from(token).map_err(|_| garbled())?, None),
            Value::Array(parts) => Reply::of(parts),
            _ => return Err(garbled()),
        };
        match reply.word()?.as_str() {
            "granted" => {
                let token = reply.unsigned()?;
                let slot = if reply.is_empty() { None } else { read_slot(&mut reply)? };
                granted(token, slot)
            }
            "busy" => {
                is_busy();
                read_busy(reply, claim, hears, server_us).map(|busy| Some(Claimed::Busy(busy)))
            }
            "more" => Ok(None),
            "disagrees" => Err(claim.mode().disagrees(mode_of(&reply.word()?).ok_or_else(garbled)?)),
            word => Err(refusal(word, &mut reply)?),
        }
    }

    /// Returns a claim for the full script, to be sent at `sent`.
    fn full_claim(
        &self,
        connection: &Connection,
        names: &Names,
        claim: &Claim,
        sent: Moment,
        hears: bool,
    ) -> Result<Request> {
        let mut record = Vec::with_capacity(RECORD_BYTES);
        append_record(&claim.record, &mut record)?;
        let bytes = record.len() + CLAIM_BYTES;
        let mut args = redis::Cmd::with_capacity(CLAIM_ARGS, bytes);
        args.arg(&claim.attempt.hex()[..])
            .arg(millis(claim.lease()))
            .arg(connection.not_after(sent))
            .arg(flags(claim))
            .arg(record);
        let common = Some(self.wake_channel(hears));
        Ok(Request::Full(Box::new(FullRequest { names: names.clone(), common, args, bytes })))
    }

    /// Returns `claimed`; a grant only when enough replicas have it, otherwise it is given back.
    async fn confirm(&self, server: &ServerConnections, claimed: Claimed, claim: &Claim) -> Result<Claimed> {
        if let (Claimed::Granted(_), Some(replicas)) = (&claimed, &server.replicas)
            && let Err(error) = replicas.confirm(&self.names(&claim.key)?, claim).await
        {
            return Err(self.give_back(std::slice::from_ref(claim), error).await);
        }
        Ok(claimed)
    }
}

/// Returns the mode, the heartbeat and the delay of a claim, as the script reads them.
fn flags(claim: &Claim) -> Vec<u8> {
    let mut flags = mode_text(&claim.record).into_bytes();
    let heartbeat = if claim.queue { millis(heartbeat(claim.ttl)) } else { 0 };
    for number in [heartbeat, millis(claim.delay)] {
        flags.push(b' ');
        write_number(number, &mut flags);
    }
    flags
}
