//! The server-sent events for browsers, each with one JSON object.

use axum::body::Bytes;
use serde::Serialize;
use serde_json::json;

use crate::audit::Row;
use crate::failure::Failure;
use crate::lock::Lock;
use crate::locks::{Changes, List, Locks};
use crate::losses::Lost;

/// A successful listing of the engine.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ListingInfo {
    /// The listing's number.
    pub(crate) look: u64,
    /// When the listing was made.
    pub(crate) at_ms: u64,
    /// How long the engine took.
    pub(crate) took_ms: u64,
}

/// The whole state.
pub(crate) fn snapshot(look: Option<ListingInfo>, trouble: Option<&Failure>, locks: &Locks, lost: &Lost) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a, L> {
        #[serde(flatten)]
        look: Option<ListingInfo>,
        trouble: Option<&'a Failure>,
        lost: &'a Lost,
        locks: L,
    }
    encode("snapshot", &Body { look, trouble, lost, locks: List(locks.iter()) })
}

/// The changes of a listing.
pub(crate) fn changes(look: ListingInfo, changes: &Changes, locks: &Locks, lost: &Lost) -> Bytes {
    #[derive(Serialize)]
    struct Body<'a, S> {
        #[serde(flatten)]
        look: ListingInfo,
        set: S,
        renewed: Vec<(&'a str, Vec<Option<u64>>)>,
        gone: Vec<&'a str>,
        lost: &'a Lost,
    }
    let renewed = |lock: &'_ Lock| lock.expiries();
    let body = Body {
        look,
        set: List(locks.these(&changes.set)),
        renewed: locks.these(&changes.renewed).map(|lock| (lock.key.as_str(), renewed(lock))).collect(),
        gone: changes.gone.iter().map(|key| key.as_str()).collect(),
        lost,
    };
    encode("changes", &body)
}

/// A failed listing.
pub(crate) fn trouble(failure: &Failure, at_ms: u64) -> Bytes {
    encode("trouble", &json!({"at_ms": at_ms, "error": failure}))
}

/// The time: nothing has changed, but the data is older by now.
pub(crate) fn time(at_ms: u64) -> Bytes {
    encode("time", &json!({"at_ms": at_ms}))
}

/// A break, done or tried.
pub(crate) fn audit(row: &Row) -> Bytes {
    encode("audit", row)
}

/// JSON contains no raw line break, so the data is one line.
fn encode(event: &str, body: &impl Serialize) -> Bytes {
    let mut text = format!("event: {event}\ndata: ").into_bytes();
    // Cannot fail: all keys are text, and memory takes every byte.
    serde_json::to_writer(&mut text, body).unwrap_or_default();
    text.extend_from_slice(b"\n\n");
    text.into()
}
