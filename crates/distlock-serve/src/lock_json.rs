//! Locks as JSON, as `distlock ls --json` and `distlock show --json` print them.

use std::time::Duration;

use distlock::backend::LockInfo;
use distlock::{Holder, Record};
use serde_json::{Value, json};

/// Returns a lock as one JSON object.
#[must_use]
pub fn lock_json(lock: &LockInfo) -> Value {
    json!({
        "name": lock.key.as_str(),
        "holder": lock.holder().map(holder_json),
        "holders": lock.holders.iter().map(holder_json).collect::<Vec<_>>(),
        "waiters": lock.waiters.iter().map(|waiter| record_json(waiter)).collect::<Vec<_>>(),
    })
}

/// Returns a holder as one JSON object.
#[must_use]
pub fn holder_json(holder: &Holder) -> Value {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let mut fields = holder.record.as_ref().map_or_else(|| json!({"foreign": true}), |record| record_json(record));
    // As text: JSON readers round numbers of this size.
    fields["token"] = json!(holder.token.map(|token| token.to_string()));
    fields["held_for_s"] = json!(seconds(holder.held_for));
    fields["ttl_left_s"] = json!(seconds(holder.ttl_left));
    fields
}

/// Returns what others read about a holder or waiter as one JSON object.
#[must_use]
pub fn record_json(record: &Record) -> Value {
    json!({
        "owner": record.owner.as_str(),
        "host": record.process.host,
        "pid": record.process.pid,
        "user": record.process.user,
        "label": record.label,
        "mode": record.mode,
        "since_ms": record.since_ms,
    })
}
