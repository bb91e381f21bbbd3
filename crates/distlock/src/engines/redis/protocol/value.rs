//! What stands at a lock's key: who has it, in a form that other libraries leave alone and people can read.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::shared::record_text::read_record;
use crate::types::owner::{Holder, Record};
use crate::types::token::{AttemptId, FencingToken};

/// Returns the holder of a lock, from its value and what is left of its lease. A value that is not ours has no record.
pub(in crate::engines) fn holder(value: &[u8], ttl_left: Option<Duration>, now_us: u64) -> Holder {
    match read_value(value) {
        Some((token, record)) => {
            // A token is the server's clock at the grant, or one more than the last where the clock had not moved.
            let held_for = now_us.checked_sub(token.get()).map(Duration::from_micros);
            Holder::new(Some(Arc::new(record)), Some(token)).with_held_for(held_for).with_ttl_left(ttl_left)
        }
        None => Holder::new(None, None).with_ttl_left(ttl_left),
    }
}

/// Returns whether a value says that a group holds the lock. Its holders stand in another key.
pub(in crate::engines) fn is_group(value: &[u8]) -> bool {
    value.starts_with(b"distlock group ")
}

/// `token slot since_us wake record` of one who is inside with others.
pub(in crate::engines) fn group_holder(entry: &[u8], ttl_left: Option<Duration>, now_us: u64) -> Option<Holder> {
    let text = std::str::from_utf8(entry).ok()?;
    let mut parts = text.splitn(5, ' ');
    let token = parts.next()?.parse().ok()?;
    let since_us = parts.nth(1)?.parse().ok()?;
    let record = read_record(parts.nth(1)?)?;
    let held_for = now_us.checked_sub(since_us).map(Duration::from_micros);
    Some(Holder::new(Some(Arc::new(record)), Some(token)).with_held_for(held_for).with_ttl_left(ttl_left))
}

/// `attempt token wake record`, strictly: whatever else stands there may be anything. The byte behind the attempt is
/// `+` when the lock has waiters.
fn read_value(value: &[u8]) -> Option<(FencingToken, Record)> {
    let text = std::str::from_utf8(value).ok()?;
    let (attempt, rest) = text.split_once([' ', '+'])?;
    let _: AttemptId = attempt.parse().ok()?;
    let mut parts = rest.splitn(3, ' ');
    let token = parts.next()?.parse().ok()?;
    let wake = parts.next()?;
    if wake != "-" {
        let _: AttemptId = wake.parse().ok()?;
    }
    Some((token, read_record(parts.next()?)?))
}

/// `ttl alive_until wake delay mode record` of a waiter.
pub(in crate::engines) fn waiter(entry: &[u8]) -> Option<Record> {
    let text = std::str::from_utf8(entry).ok()?;
    // What stands before it has no brace, and is shorter where there are no modes.
    read_record(&text[text.find('{')?..])
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::engines::shared::mode_text::{mode_of, mode_text};
    use crate::engines::shared::record_text::write_record;
    use crate::types::owner::{OwnerId, Process};

    fn record() -> Record {
        Record::new(OwnerId::new("req-7").unwrap(), Process::current(), Some("\"eod\" {}".into()), SystemTime::now())
    }

    #[test]
    fn a_value_of_ours_is_read_back() {
        let record = record();
        let json = write_record(&record).unwrap();
        let value = format!("{} 1763000000000001 {} {json}", AttemptId::random(), AttemptId::random());
        let holder = holder(value.as_bytes(), Some(Duration::from_secs(1)), 1_763_000_002_000_001);
        assert_eq!(holder.token, Some(FencingToken::new(1_763_000_000_000_001)));
        assert_eq!(holder.record.as_deref(), Some(&record));
        assert_eq!(holder.held_for, Some(Duration::from_secs(2)));
        for before in ["900 1763 - 0 x", "900 1763 -"] {
            assert_eq!(waiter(format!("{before} {json}").as_bytes()).as_ref(), Some(&record));
        }
    }

    #[test]
    fn one_of_several_is_read_back() {
        let record = record();
        let json = write_record(&record).unwrap();
        let entry = format!("1763000000000001 - 1763000001000001 {} {json}", AttemptId::random());
        let holder = group_holder(entry.as_bytes(), None, 1_763_000_002_000_001).unwrap();
        assert_eq!(holder.token, Some(FencingToken::new(1_763_000_000_000_001)));
        assert_eq!((holder.record.as_deref(), holder.held_for), (Some(&record), Some(Duration::from_secs(1))));
        for wrong in ["", "1763 - 1", "x - 1 - {}", "1763 - 1 - {}"] {
            assert_eq!(group_holder(wrong.as_bytes(), None, 0), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_not_ours_names_nobody() {
        let id = AttemptId::random();
        let json = write_record(&record()).unwrap();
        let hostile = format!("{id} 7 {id} {}", json.replace("req-7", "two\\nlines"));
        let long = format!("{id} 7 {id} {}", json.replace("req-7", &"x".repeat(4000)));
        let cases = [
            String::new(),
            id.to_string(),
            format!("{id} 7"),
            format!("{id} -7 {id} {json}"),
            format!("{id} 99999999999999999999 {id} {json}"),
            format!("{} 7 {id} {json}", "g".repeat(32)),
            format!("{id} 7 nowhere {json}"),
            format!("{id} 7 {id} {json}x"),
            hostile,
            long,
        ];
        for value in cases {
            assert_eq!(holder(value.as_bytes(), None, 0), Holder::new(None, None), "{value}");
        }
        assert_eq!(holder(b"\xff\xfe", None, 0), Holder::new(None, None));
    }

    #[test]
    fn fuzz_values_of_strangers() {
        let comes_back = |record: &Record| {
            let json = write_record(record).unwrap_or_default();
            // One that only just fits may not, as it is written now.
            json.is_empty() || read_record(&json).as_ref() == Some(record)
        };
        distlock_testkit::fuzz("redis_value.txt", |input| {
            let holders = [Some(holder(input, None, u64::MAX)), group_holder(input, Some(Duration::MAX), 0)];
            let records = holders.iter().flatten().filter_map(|holder| holder.record.as_deref());
            assert!(records.chain(waiter(input).as_ref()).all(comes_back));
            distlock_testkit::assert_in_proportion(input, &holders);
            if let Some(mode) = std::str::from_utf8(input).ok().and_then(mode_of) {
                let again = mode_text(&record().with_mode(mode));
                assert_eq!(mode_of(&again), Some(mode));
            }
            let _ = is_group(input);
        });
    }
}
