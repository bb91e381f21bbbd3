//! Claims of several locks in one step.

use crate::contract::{Claim, ClaimedAll, Grant, Term};
use crate::engines::redis::client::Client;
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::outcome::refusal;
use crate::engines::redis::protocol::script::{CLAIM_ALL, garbled};
use crate::engines::redis::protocol::time::millis;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::shared::record_text::write_record;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::FencingToken;

/// How many locks one call takes: other requests wait as long as it runs.
const MOST: usize = 64;

/// The outcome of several claims in one call.
enum Outcome {
    Granted(Vec<Grant>),
    /// The lock of that claim is held, or has waiters.
    Busy(usize),
}

impl Client {
    /// Takes all locks, or none.
    pub(super) async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.note_leases(claims);
        let names = &claims.iter().map(|claim| self.names(&claim.key)).collect::<Result<Vec<_>>>()?;
        check(names, |lock| self.servers.hash_slot(lock))?;
        let Some(first) = names.first() else { return Ok(ClaimedAll::Granted(Vec::new())) };
        let sent = self.on_main(first, |server, connection| async move {
            let wake = self.wake_channel(server.hears(&connection, first));
            let request = send(&connection, names, &wake, claims, self.clock.now());
            Ok((self.follow(claims, &connection, request).await?, server))
        });
        match sent.await? {
            (Outcome::Granted(grants), server) => {
                self.confirm_all(&server, names, claims).await.map(|()| ClaimedAll::Granted(grants))
            }
            (Outcome::Busy(which), _) => {
                let key = claims[which].key.clone();
                let holder = self.get(&key).await.ok().flatten().and_then(|lock| lock.holder().cloned());
                Ok(ClaimedAll::Busy(key, holder))
            }
        }
    }

    /// Waits until the replicas have all grants; otherwise gives all of them back.
    async fn confirm_all(&self, server: &ServerConnections, names: &[Names], claims: &[Claim]) -> Result<()> {
        let Some(replicas) = &server.replicas else { return Ok(()) };
        for (names, claim) in names.iter().zip(claims) {
            if let Err(error) = replicas.confirm(names, claim).await {
                return Err(self.give_back(claims, error).await);
            }
        }
        Ok(())
    }
}

/// Refuses what one call cannot take.
fn check(names: &[Names], hash_slot: impl Fn(&str) -> u16) -> Result<()> {
    let mut slots = names.iter().map(|names| hash_slot(&names.lock));
    let first = slots.next();
    let refuse = |why: &str| Err(Error::new(ErrorKind::Unsupported, format!("redis: one call cannot take {why}")));
    match () {
        () if names.len() > MOST => refuse("that many locks"),
        () if !slots.all(|slot| Some(slot) == first) => {
            refuse("locks of different slots; a common {tag} puts them in one")
        }
        () => Ok(()),
    }
}

async fn send(connection: &Connection, names: &[Names], wake: &str, claims: &[Claim], sent: Moment) -> Result<Outcome> {
    let records = claims.iter().map(|claim| write_record(&claim.record)).collect::<Result<Vec<_>>>()?;
    let not_after = connection.not_after(sent);
    let fill = |command: &mut redis::Cmd, nonce: u64| {
        command.arg(names.len() * Names::KEYS);
        names.iter().for_each(|names| names.keys(command, &connection.fences));
        command.arg(nonce).arg(wake).arg(not_after);
        for (claim, record) in claims.iter().zip(&records) {
            command.arg(claim.attempt.to_string()).arg(millis(claim.lease())).arg(record);
        }
    };
    let mut reply = connection.run(&CLAIM_ALL, fill).await?;
    connection.saw_clock(sent, reply.unsigned()?);
    match reply.word()?.as_str() {
        "granted" => {
            let grant = |claim: &Claim| {
                let term = Term { start: sent, ttl: claim.ttl };
                Ok(Grant::new(FencingToken::new(reply.unsigned()?), Some(term)))
            };
            claims.iter().map(grant).collect::<Result<_>>().map(Outcome::Granted)
        }
        "busy" => {
            let which = reply.unsigned()?.checked_sub(1).and_then(|which| usize::try_from(which).ok());
            which.filter(|which| *which < claims.len()).map(Outcome::Busy).ok_or_else(garbled)
        }
        word => Err(refusal(word, &mut reply)?),
    }
}
