//! A lock as it is shown, with times that stay the same from one listing to the next.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distlock::backend::LockInfo;
use distlock::{FencingToken, Holder, Key, Mode, Record};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::frame::ListingInfo;

/// Two listings show the same moment if they differ by less than this plus the time that both listings took: when
/// during a listing the engine read this lock is unknown.
pub(crate) const TOLERANCE_MS: u64 = 400;

/// Returns the time in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    millis(since)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A lock.
#[derive(Debug, Clone)]
pub(crate) struct Lock {
    pub(crate) key: Key,
    /// The holds, the oldest first.
    pub(crate) holds: Vec<Hold>,
    /// The waiters, the next one first.
    pub(crate) waiters: Vec<Arc<Record>>,
    /// The number of the listing in which holders or waiters last changed.
    pub(crate) revision: u64,
}

/// One hold of a lock. Times are milliseconds since the Unix epoch by this machine's clock.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) token: Option<FencingToken>,
    pub(crate) record: Option<Arc<Record>>,
    pub(crate) since_ms: Option<u64>,
    pub(crate) expires_ms: Option<u64>,
    /// The longest remaining lease ever seen: about the whole lease.
    pub(crate) longest_ms: u64,
    /// How long the listing took that `expires_ms` is from: the error of that time.
    pub(crate) error_ms: u64,
}

impl Lock {
    /// Converts what the engine listed.
    pub(crate) fn new(info: LockInfo, look: ListingInfo) -> Lock {
        let holds = info.holders.into_iter().map(|holder| Hold::new(holder, look)).collect();
        Lock { key: info.key, holds, waiters: info.waiters, revision: look.look }
    }

    /// Whether the holders and waiters are the same.
    pub(crate) fn is_like(&self, other: &Lock) -> bool {
        self.waiters == other.waiters
            && self.holds.len() == other.holds.len()
            && self.holds.iter().zip(&other.holds).all(|(a, b)| a.is_same(b) && a.record == b.record)
    }

    /// Returns when each hold expires.
    pub(crate) fn expiries(&self) -> Vec<Option<u64>> {
        self.holds.iter().map(|hold| hold.expires_ms).collect()
    }

    /// Returns when the longest wait began, by the waiter's own clock.
    fn waiting_since_ms(&self) -> Option<u64> {
        self.waiters.iter().map(|waiter| waiter.since_ms).min()
    }
}

impl Hold {
    fn new(holder: Holder, look: ListingInfo) -> Hold {
        let Holder { record, token, ttl_left, held_for, .. } = holder;
        let since_ms = held_for.map(|held| look.at_ms.saturating_sub(millis(held)));
        let expires_ms = ttl_left.map(|left| look.at_ms.saturating_add(millis(left)));
        let longest_ms = ttl_left.map_or(0, millis);
        Hold { token, record, since_ms, expires_ms, longest_ms, error_ms: look.took_ms }
    }

    /// Returns a hold of which only the token is known.
    pub(crate) fn unseen(token: FencingToken) -> Hold {
        Hold { token: Some(token), record: None, since_ms: None, expires_ms: None, longest_ms: 0, error_ms: 0 }
    }

    /// Whether it is the same hold in another listing.
    pub(crate) fn is_same(&self, other: &Hold) -> bool {
        match (self.token, other.token) {
            (None, None) => self.record == other.record,
            (one, other) => one == other,
        }
    }

    /// Keeps the earlier expiry if the difference is within the error of both listings.
    pub(crate) fn keep_earlier_expiry(&mut self, earlier: &Hold) {
        let tolerance_ms = TOLERANCE_MS + self.error_ms + earlier.error_ms;
        if let (Some(now), Some(then)) = (self.expires_ms, earlier.expires_ms)
            && now.abs_diff(then) < tolerance_ms
        {
            // With the earlier error, or many small steps would go unseen.
            (self.expires_ms, self.error_ms) = (Some(then), earlier.error_ms);
        }
        self.since_ms = earlier.since_ms.or(self.since_ms);
        self.longest_ms = self.longest_ms.max(earlier.longest_ms);
    }
}

impl Serialize for Lock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Lock", 5)?;
        fields.serialize_field("name", self.key.as_str())?;
        fields.serialize_field("holders", &self.holds)?;
        fields.serialize_field("waiters", &self.waiters.len())?;
        fields.serialize_field("waiting_since_ms", &self.waiting_since_ms())?;
        fields.serialize_field("revision", &self.revision)?;
        fields.end()
    }
}

impl Serialize for Hold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            /// As text: readers of JSON round numbers of this size.
            token: Option<String>,
            since_ms: Option<u64>,
            expires_ms: Option<u64>,
            #[serde(flatten)]
            who: Option<Who<'a>>,
        }
        let who = self.record.as_deref().map(Who::from);
        let token = self.token.map(|token| token.to_string());
        Fields { token, since_ms: self.since_ms, expires_ms: self.expires_ms, who }.serialize(serializer)
    }
}

/// The owner of a hold or a wait, as its record says.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Who<'a> {
    owner: &'a str,
    user: &'a str,
    host: &'a str,
    pid: u32,
    label: Option<&'a str>,
    mode: Mode,
    asked_ms: u64,
}

impl<'a> From<&'a Record> for Who<'a> {
    fn from(record: &'a Record) -> Who<'a> {
        Who {
            owner: record.owner.as_str(),
            user: &record.process.user,
            host: &record.process.host,
            pid: record.process.pid,
            label: record.label.as_deref(),
            mode: record.mode,
            asked_ms: record.since_ms,
        }
    }
}
