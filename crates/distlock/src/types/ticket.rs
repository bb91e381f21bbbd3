//! Tickets, with which a process takes over a hold of another process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::owner::{OwnerId, is_false, read_optional_text};
use crate::types::token::{AttemptId, FencingToken};

/// A ticket with which another process can take over a hold; made by [`LockGuard::export`](crate::LockGuard::export).
///
/// Store it where only its owner can read it: every process that has it can [take over the
/// hold](crate::Locker::adopt). It is written and read by serde, with or without the feature `serde`.
///
/// ```
/// # use distlock::{HoldTicket, Locker};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locker = Locker::connect("mem://ticket").await?;
/// let guard = locker.lock("import").await?;
/// let stored = serde_json::to_string(&guard.export())?; // into a file that only this user can read
/// let ticket: HoldTicket = serde_json::from_str(&stored)?;
/// assert_eq!(ticket.token, guard.fencing_token());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HoldTicket {
    /// The lock.
    #[serde(with = "as_text")]
    pub key: Key,
    /// The owner of the hold.
    pub owner: OwnerId,
    /// The fencing token, which stays the same.
    #[serde(with = "as_text")]
    pub token: FencingToken,
    #[serde(with = "as_text")]
    pub(crate) attempt: AttemptId,
    pub(crate) ttl: Duration,
    pub(crate) delay: Duration,
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) resizes: bool,
    #[serde(default, deserialize_with = "read_optional_text", skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<Arc<str>>,
}

impl fmt::Debug for HoldTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HoldTicket { key, owner, token, .. } = self;
        f.debug_struct("HoldTicket")
            .field("key", key)
            .field("owner", owner)
            .field("token", token)
            .finish_non_exhaustive()
    }
}

/// As text: some readers of JSON round numbers of this size.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: Display>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_json_and_does_not_print_its_secret() {
        let ticket = HoldTicket {
            key: Key::new("a\u{e9}/b").unwrap(),
            owner: OwnerId::new("order-7").unwrap(),
            token: FencingToken::new(u64::MAX),
            attempt: AttemptId::random(),
            ttl: Duration::from_millis(1_500),
            delay: Duration::from_secs(3),
            mode: Mode::Slot { of: 3 },
            resizes: true,
            label: Some("eod".into()),
        };
        let text = serde_json::to_string(&ticket).unwrap();
        assert_eq!(serde_json::from_str::<HoldTicket>(&text).unwrap(), ticket);
        assert!(!format!("{ticket:?}").contains(&ticket.attempt.to_string()));
    }

    #[test]
    fn fuzz_tickets_of_strangers() {
        distlock_testkit::fuzz("texts.txt", |input| {
            if let Ok(ticket) = serde_json::from_slice::<HoldTicket>(input) {
                let text = serde_json::to_vec(&ticket).expect("JSON");
                assert_eq!(serde_json::from_slice::<HoldTicket>(&text).expect("it comes back"), ticket);
            }
        });
    }
}
