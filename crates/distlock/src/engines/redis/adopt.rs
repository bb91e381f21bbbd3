//! Changes of a hold besides renewing and releasing it: its record and its owner.

use std::sync::Arc;

use crate::contract::{Claim, Grant, Term};
use crate::engines::redis::client::Client;
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::outcome::read_slot;
use crate::engines::redis::protocol::script::{ADOPT, AMEND, garbled};
use crate::engines::redis::protocol::time::millis;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::shared::mode_text::mode_text;
use crate::engines::shared::record_text::write_record;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::{AttemptId, FencingToken};

impl Client {
    /// Replaces the record of the hold that `claim` became. Returns false when it has none.
    pub(super) async fn amend(&self, claim: &Claim) -> Result<bool> {
        let names = &self.names(&claim.key)?;
        let record = &write_record(&claim.record)?;
        let amend = |_, connection: Arc<Connection>| async move {
            let fill = |command: &mut redis::Cmd, nonce| {
                names.fill(command, &connection.fences);
                command.arg(nonce).arg(claim.attempt.to_string()).arg(record);
            };
            match connection.run(&AMEND, fill).await?.int()? {
                1 => Ok(true),
                0 => Ok(false),
                _ => Err(garbled()),
            }
        };
        self.on_main(names, amend).await
    }

    /// Gives the hold that the attempt `from` has with a token to `claim`.
    pub(super) async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        self.note_leases([claim]);
        let names = &self.names(&claim.key)?;
        let adopt = |server: Arc<ServerConnections>, connection: Arc<Connection>| async move {
            let wake = self.wake_channel(server.hears(&connection, names));
            let request = send(&connection, names, &wake, (from, token), claim, self.clock.now());
            self.follow(std::slice::from_ref(claim), &connection, request).await
        };
        self.on_main(names, adopt).await
    }
}

async fn send(
    connection: &Connection,
    names: &Names,
    wake: &str,
    (from, token): (AttemptId, FencingToken),
    claim: &Claim,
    sent: Moment,
) -> Result<Grant> {
    let record = write_record(&claim.record)?;
    let not_after = connection.not_after(sent);
    let mode = mode_text(&claim.record);
    let fill = |command: &mut redis::Cmd, nonce| {
        names.fill(command, &connection.fences);
        command.arg(nonce).arg(claim.attempt.to_string()).arg(millis(claim.lease())).arg(&record).arg(wake);
        command.arg(not_after).arg(&mode).arg(from.to_string()).arg(token.get());
    };
    let mut reply = connection.run(&ADOPT, fill).await?;
    connection.saw_clock(sent, reply.unsigned()?);
    match reply.word()?.as_str() {
        "adopted" => {
            let slot = read_slot(&mut reply)?;
            Ok(Grant { token, term: Some(Term { start: sent, ttl: claim.ttl }), slot })
        }
        "not held" => Err(Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}"))),
        "late" => Err(Error::unavailable("redis: the request arrived after its time and was refused")),
        _ => Err(garbled()),
    }
}
