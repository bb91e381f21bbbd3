//! Several locks in one step.

use crate::contract::{Claim, Grant, Term};
use crate::engines::redis::names::Names;
use crate::engines::redis::script::{GATHER, garbled};
use crate::engines::redis::session::Session;
use crate::engines::redis::{millis, refusal, value};
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::FencingToken;

/// How many locks one call takes: others wait for it as long as it runs.
const MOST: usize = 64;

/// What became of several claims in one call.
pub(super) enum Together {
    Granted(Vec<Grant>),
    /// Somebody has that one, or waits for it.
    Busy(usize),
}

/// Refuses what one call cannot take.
pub(super) fn check(names: &[Names], slot: impl Fn(&str) -> u16) -> Result<()> {
    let mut slots = names.iter().map(|names| slot(&names.lock));
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

/// Takes all of them, or none.
pub(super) async fn claim(
    session: &Session,
    names: &[Names],
    wake: &str,
    claims: &[Claim],
    sent: Moment,
) -> Result<Together> {
    let records = claims.iter().map(|claim| value::write_record(&claim.record)).collect::<Result<Vec<_>>>()?;
    let not_after = session.not_after(sent);
    let fill = |command: &mut redis::Cmd, nonce: u64| {
        command.arg(names.len() * Names::KEYS);
        names.iter().for_each(|names| names.keys(command));
        command.arg(nonce).arg(wake).arg(not_after);
        for (claim, record) in claims.iter().zip(&records) {
            command.arg(claim.attempt.to_string()).arg(millis(claim.lease())).arg(record);
        }
    };
    let mut reply = session.run(&GATHER, fill).await?;
    session.saw_clock(sent, reply.unsigned()?);
    match reply.word()?.as_str() {
        "granted" => {
            let grant = |claim: &Claim| {
                let term = Term { start: sent, ttl: claim.ttl };
                Ok(Grant::new(FencingToken::new(reply.unsigned()?), Some(term)))
            };
            claims.iter().map(grant).collect::<Result<_>>().map(Together::Granted)
        }
        "busy" => {
            let which = reply.unsigned()?.checked_sub(1).and_then(|which| usize::try_from(which).ok());
            which.filter(|which| *which < claims.len()).map(Together::Busy).ok_or_else(garbled)
        }
        word => Err(refusal(word, &mut reply)?),
    }
}
