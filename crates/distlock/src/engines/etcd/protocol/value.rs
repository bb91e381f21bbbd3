//! The value of an attempt's key: a small JSON object that describes its owner.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::contract::Claim;
use crate::types::owner::{Holder, MAX_TEXT_BYTES, Record};
use crate::types::record_json::{write_json, write_number, write_text};
use crate::types::token::{AttemptId, FencingToken};

/// Longer values are not ours: owner, label, host and user are short.
const MAX_BYTES: usize = 4096;

/// Room for a value of ordinary length.
const VALUE_BYTES: usize = 320;

/// The field of a hold that is ended by force. Its old holder finds it in the history.
const BROKEN: &str = "broken";

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    #[serde(flatten)]
    pub(crate) record: Record,
    attempt: String,
    ttl_ms: u64,
    /// In hex, as `etcdctl lease` prints it.
    lease: String,
    /// Which slot of a semaphore it has, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u32>,
}

impl Value {
    /// What is written about the attempt of `claim`, whose key hangs on `lease`.
    pub(crate) fn new(claim: &Claim, lease: i64) -> Self {
        Value {
            record: claim.record.as_ref().clone(),
            attempt: claim.attempt.to_string(),
            ttl_ms: u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX),
            lease: format!("{lease:x}"),
            slot: None,
        }
    }

    pub(crate) fn with_slot(mut self, slot: Option<u32>) -> Self {
        self.slot = slot;
        self
    }

    /// Whether it was written by `attempt`.
    pub(crate) fn is_of(&self, attempt: AttemptId) -> bool {
        self.attempt == attempt.to_string()
    }

    pub(crate) fn to_value(&self) -> Vec<u8> {
        self.to_value_with(self.slot)
    }

    /// Returns the same with another slot, byte by byte as serde writes it.
    pub(crate) fn to_value_with(&self, slot: Option<u32>) -> Vec<u8> {
        let mut out = Vec::with_capacity(VALUE_BYTES);
        write_json(&self.record, &mut out);
        // The record's closing brace.
        out.pop();
        out.extend_from_slice(b",\"attempt\":");
        write_text(&self.attempt, &mut out);
        out.extend_from_slice(b",\"ttl_ms\":");
        write_number(self.ttl_ms, &mut out);
        out.extend_from_slice(b",\"lease\":");
        write_text(&self.lease, &mut out);
        if let Some(slot) = slot {
            out.extend_from_slice(b",\"slot\":");
            write_number(slot.into(), &mut out);
        }
        out.push(b'}');
        out
    }
}

/// The same value with a mark that the hold is ended by force, and why; `None` when it is not one of ours.
pub(crate) fn mark_broken(value: &[u8], reason: &str) -> Option<Vec<u8>> {
    read(value)?;
    let mut entry: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(value).ok()?;
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(MAX_TEXT_BYTES / 4).collect();
    entry.insert(BROKEN.into(), reason.into());
    serde_json::to_vec(&entry).ok()
}

/// Returns the holder that a key's value and create revision show.
pub(crate) fn holder_of(value: &[u8], created: i64) -> Holder {
    let record = read(value).map(|value| Arc::new(value.record));
    Holder::new(record, Some(FencingToken::new(created.max(0).unsigned_abs())))
}

/// Whether a value has that mark.
pub(crate) fn is_broken(value: &[u8]) -> bool {
    let entry: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_slice(value).ok();
    entry.is_some_and(|entry| entry.contains_key(BROKEN))
}

/// Reads a value; `None` when it is not one of ours. Any client may have written it, so nothing in it is believed but
/// text to be shown, and of that only as much as we would write.
pub(crate) fn read(value: &[u8]) -> Option<Value> {
    if value.len() > MAX_BYTES {
        return None;
    }
    let entry: Value = serde_json::from_slice(value).ok()?;
    entry.attempt.parse::<AttemptId>().ok()?;
    Some(entry)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::types::key::Key;
    use crate::types::owner::OwnerId;

    #[test]
    fn a_value_that_was_written_can_be_read() {
        let record = Record::new(
            OwnerId::new("req-7").unwrap(),
            crate::types::owner::Process::current(),
            Some("eod".into()),
            SystemTime::UNIX_EPOCH,
        );
        let claim = Claim::new(Key::new("a").unwrap(), Duration::from_secs(10), true, Arc::new(record));
        let entry = Value::new(&claim, 0x2a).with_slot(Some(3));
        let value = entry.to_value();
        assert_eq!(read(&value).unwrap(), entry);
        for entry in [entry.clone().with_slot(None), entry.clone()] {
            assert_eq!(entry.to_value(), serde_json::to_vec(&entry).unwrap());
        }
        assert!(entry.is_of(claim.attempt) && !entry.is_of(AttemptId::random()));
        let broken = mark_broken(&value, "stuck\n").unwrap();
        assert_eq!(read(&broken).unwrap(), entry, "it is still readable");
        assert!(is_broken(&broken) && !is_broken(&value));
        assert_eq!(mark_broken(b"", "stuck"), None);
        assert!(String::from_utf8(value).unwrap().contains(r#""lease":"2a""#));
    }

    #[test]
    fn what_others_wrote_is_not_believed() {
        let record = |owner: &str| {
            format!(
                r#"{{"owner":"{owner}","host":"h","pid":1,"user":"u","since_ms":0,"ttl_ms":1,"lease":"1",
                "attempt":"000102030405060708090a0b0c0d0e0f"}}"#
            )
        };
        assert!(read(record("good").as_bytes()).is_some());
        let long = "x".repeat(300);
        for value in ["", "{}", "null", &record(&long), &record(r"a\u001b[2J"), &" ".repeat(5000)] {
            assert!(read(value.as_bytes()).is_none(), "{value}");
        }
    }

    #[test]
    fn fuzz_values_of_strangers() {
        distlock_testkit::fuzz("etcd_value.txt", |input| {
            if let Some(entry) = read(input) {
                distlock_testkit::assert_in_proportion(input, &entry);
                assert_eq!(read(&entry.to_value()), Some(entry.clone()), "it comes back");
                let broken = mark_broken(input, "stuck").expect("it can be marked");
                assert!(is_broken(&broken) && read(&broken).is_none_or(|again| again == entry));
            }
            let _ = is_broken(input);
        });
    }
}
