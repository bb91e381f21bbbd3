//! What is done with a hold besides renewing and releasing it.

use crate::contract::{Claim, Grant, Term};
use crate::engines::redis::names::Names;
use crate::engines::redis::script::{ADOPT, AMEND, garbled};
use crate::engines::redis::session::Session;
use crate::engines::redis::{millis, read_slot, value};
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::{AttemptId, FencingToken};

/// Replaces the record of the hold that `claim` became, if it has it.
pub(super) async fn amend(session: &Session, names: &Names, claim: &Claim) -> Result<bool> {
    let record = value::write_record(&claim.record)?;
    let fill = |command: &mut redis::Cmd, nonce| {
        names.fill(command);
        command.arg(nonce).arg(claim.attempt.to_string()).arg(&record);
    };
    match session.run(&AMEND, fill).await?.int()? {
        1 => Ok(true),
        0 => Ok(false),
        _ => Err(garbled()),
    }
}

/// Gives the hold that an attempt has with a token to `claim`, which is sent at `sent`.
pub(super) async fn adopt(
    session: &Session,
    names: &Names,
    wake: &str,
    (from, token): (AttemptId, FencingToken),
    claim: &Claim,
    sent: Moment,
) -> Result<Grant> {
    let record = value::write_record(&claim.record)?;
    let not_after = session.not_after(sent);
    let word = value::word(&claim.record);
    let fill = |command: &mut redis::Cmd, nonce| {
        names.fill(command);
        command.arg(nonce).arg(claim.attempt.to_string()).arg(millis(claim.lease())).arg(&record).arg(wake);
        command.arg(not_after).arg(&word).arg(from.to_string()).arg(token.get());
    };
    let mut reply = session.run(&ADOPT, fill).await?;
    session.saw_clock(sent, reply.unsigned()?);
    match reply.word()?.as_str() {
        "adopted" => {
            let slot = read_slot(&mut reply)?;
            Ok(Grant { token, term: Some(Term { start: sent, ttl: claim.ttl }), slot })
        }
        "not held" => Err(Error::new(ErrorKind::NotHeld, format!("nobody holds it with token {token}"))),
        "late" => Err(Error::unavailable("redis: the request arrived after its time and was refused")),
        _ => Err(garbled()),
    }
}
