//! The outcomes of claims that are not granted.

use std::time::Duration;

use crate::contract::{Busy, Claim};
use crate::engines::redis::protocol::script::{Reply, garbled};
use crate::engines::redis::protocol::time::{CLAIMS_PER_HEARTBEAT, heartbeat};
use crate::engines::redis::protocol::value;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::DEFAULT_RETRY_INTERVAL;

/// Returns the error of a claim that the server refused because of its age.
pub(in crate::engines) fn late() -> Error {
    Error::unavailable("redis: the claim arrived after its time and was refused")
}

/// Returns why a claim was not granted although the lock is free.
pub(in crate::engines) fn refusal(word: &str, reply: &mut Reply) -> Result<Error> {
    Ok(match word {
        "late" => late(),
        "fence" => {
            let key = reply.word()?;
            let problem =
                format!("redis: the fence {key:?} is more than a day ahead of the server's clock, or no number");
            Error::new(ErrorKind::Foreign, problem)
                .with_help("it was written by hand, or the clock went back by days; delete the key")
        }
        "quarantined" => {
            let left = Duration::from_millis(reply.unsigned()?);
            Error::unavailable(format!("redis: quarantined for another {left:?}"))
                .with_help("the server was restarted, promoted, emptied or is new, and leases from before may last")
        }
        "foreign" => {
            let key = reply.word()?;
            Error::new(ErrorKind::Foreign, format!("redis: {key:?} is not a queue of ours"))
        }
        _ => garbled(),
    })
}

/// Reads the slot of a semaphore; `-` where there are none.
pub(in crate::engines) fn read_slot(reply: &mut Reply) -> Result<Option<u32>> {
    match reply.word()?.as_str() {
        "-" => Ok(None),
        slot => slot.parse().map(Some).map_err(|_| garbled()),
    }
}

/// Reads `pttl_ms, place, value, type`.
pub(in crate::engines) fn read_busy(mut reply: Reply, claim: &Claim, hears: bool, server_us: u64) -> Result<Busy> {
    let ttl_left = u64::try_from(reply.int()?).ok().map(Duration::from_millis);
    let place = reply.int()?;
    let held = reply.bytes()?;
    let is_held = reply.word()? != "none";
    let holder = is_held.then(|| value::holder(&held, ttl_left, server_us));
    let is_ours = holder.as_ref().is_some_and(|holder| holder.record.is_some());
    let beat = heartbeat(claim.ttl) / CLAIMS_PER_HEARTBEAT;
    let poll_after = match (place, ttl_left) {
        // No message will come: the caller's own retry interval. A foreign holder sends none either.
        _ if !claim.queue => None,
        (0, _) if !hears || !is_ours => None,
        // Without messages, the more rarely the further behind.
        (place, _) if !hears => Some(beat.min(DEFAULT_RETRY_INTERVAL * u32::try_from(place).unwrap_or(u32::MAX))),
        // A millisecond later than the lease, so as not to come a moment too early.
        (0, Some(left)) => Some(beat.min(left + Duration::from_millis(1))),
        _ => Some(beat),
    };
    Ok(Busy { holder, poll_after })
}
