//! The outcomes of claims that are not granted.

use std::time::Duration;

use redis::Value;

use crate::contract::{Busy, Claim};
use crate::engines::redis::protocol::script::{Reply, garbled};
use crate::engines::redis::protocol::time::{CLAIMS_PER_HEARTBEAT, heartbeat};
use crate::engines::redis::protocol::value;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::DEFAULT_RETRY_INTERVAL;
use crate::types::owner::Holder;

/// The reply to a release that handed the lock over.
pub(in crate::engines) const HANDED_OVER: i64 = 2;

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
    Ok(busy(ttl_left, place, holder, claim, hears))
}

/// Parses the reply of a short way to one request: `nonce now_us` and what [`read_queued`] parses to a claim, `nonce 2` to a
/// release. Returns the server's clock, 0 for a release, and the outcome; `None` when the text is no such reply, so that the
/// connection cannot be trusted.
pub(in crate::engines) fn read_short(mut text: Vec<u8>, nonce: u64, of_claim: bool) -> Option<(u64, Value)> {
    let mut words = text.splitn(3, |byte| *byte == b' ');
    let (echoed, number, rest) = (words.next()?, words.next()?, words.next());
    if read_number(echoed) != Some(nonce) {
        return None;
    }
    match (of_claim, rest) {
        (false, None) if i64::try_from(read_number(number)?) == Ok(HANDED_OVER) => Some((0, Value::Int(HANDED_OVER))),
        (true, Some(rest)) => {
            let (server_us, behind) = (read_number(number)?, text.len() - rest.len());
            text.drain(..behind);
            Some((server_us, Value::BulkString(text)))
        }
        _ => None,
    }
}

/// Parses `pttl_ms place value`, where the value is that of a lock of ours. It need not be text: a long one is cut off.
pub(in crate::engines) fn read_queued(text: &[u8], claim: &Claim, hears: bool, server_us: u64) -> Result<Busy> {
    let mut words = text.splitn(3, |byte| *byte == b' ');
    let mut next = || words.next().ok_or_else(garbled);
    let mut number = || read_number(next()?).ok_or_else(garbled);
    let (ttl_ms, place) = (number()?, number()?);
    let (ttl_left, place) = (Some(Duration::from_millis(ttl_ms)), i64::try_from(place).map_err(|_| garbled())?);
    let holder = value::holder(next()?, ttl_left, server_us);
    Ok(busy(ttl_left, place, Some(holder), claim, hears))
}

fn read_number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns what a claim that was not granted knows, and when it asks again.
fn busy(ttl_left: Option<Duration>, place: i64, holder: Option<Holder>, claim: &Claim, hears: bool) -> Busy {
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
    Busy { holder, poll_after }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::engines::shared::record_text::write_record;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};
    use crate::types::token::{AttemptId, FencingToken};

    const LEASE: Duration = Duration::from_secs(10);

    fn claim() -> Claim {
        let record = Record::new(OwnerId::new("req-7").unwrap(), Process::current(), None, SystemTime::now());
        Claim::new(Key::new("a").unwrap(), LEASE, true, Arc::new(record))
    }

    #[test]
    fn a_claim_that_waits_reads_who_holds_the_lock_and_for_how_long() {
        let claim = claim();
        let value = format!("{}+1763000000000001 - {}", AttemptId::random(), write_record(&claim.record).unwrap());
        let reply = format!("7 1763000002000001 900 0 {value}").into_bytes();
        let (server_us, Value::BulkString(rest)) = read_short(reply, 7, true).unwrap() else { panic!("no text") };
        assert_eq!(server_us, 1_763_000_002_000_001);
        let busy = read_queued(&rest, &claim, true, server_us).unwrap();
        let holder = busy.holder.unwrap();
        assert_eq!(
            (holder.token, holder.record),
            (Some(FencingToken::new(1_763_000_000_000_001)), Some(claim.record.clone()))
        );
        assert_eq!(
            (holder.held_for, holder.ttl_left),
            (Some(Duration::from_secs(2)), Some(Duration::from_millis(900)))
        );
        assert_eq!(busy.poll_after, Some(Duration::from_millis(901)), "the first waiter looks when the lease is over");
        let behind = read_queued(format!("900 1 {value}").as_bytes(), &claim, true, server_us).unwrap();
        assert!(behind.poll_after > Some(Duration::from_secs(1)), "{behind:?}");
        // The server may have cut the record off in the middle of a character: then the reply names no holder.
        let cut = [b"900 0 ".as_slice(), value.as_bytes(), b"\xc3"].concat();
        assert_eq!(read_queued(&cut, &claim, true, server_us).unwrap().holder.unwrap().record, None);
    }

    #[test]
    fn a_text_that_is_no_reply_of_a_short_way_is_refused() {
        assert_eq!(read_short(b"7 2".to_vec(), 7, false), Some((0, Value::Int(HANDED_OVER))));
        for (text, of_claim) in [
            ("", true),
            ("7", false),
            ("7 1", false),
            ("7 2 ", false),
            ("8 2", false),
            ("7 2", true),
            ("8 1763000002000001 900 0 x", true),
            ("7 x 900 0 x", true),
            ("-7 1763000002000001 900 0 x", true),
        ] {
            assert_eq!(read_short(text.into(), 7, of_claim), None, "{text}");
        }
        for text in ["", "900", "900 0", "-1 0 x", "900 -1 x", "x 0 x", "900 99999999999999999999 x"] {
            assert!(read_queued(text.as_bytes(), &claim(), true, 0).is_err(), "{text}");
        }
    }
}
