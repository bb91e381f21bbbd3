//! Owners, and the records that others read about holders and waiters.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::types::error::{Error, Result};
use crate::types::mode::{AskedMode, Mode};
use crate::types::token::{AttemptId, FencingToken};

/// The longest owner id, label or reason in bytes.
pub const MAX_TEXT_BYTES: usize = 256;

/// The id of an owner: the same id is the same owner, in every process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct OwnerId(Arc<str>);

impl OwnerId {
    /// Returns an owner named by the application: a trace id, a request id, a business id.
    ///
    /// # Errors
    /// Kind `InvalidInput` when the text is empty, longer than 256 bytes or has control characters.
    pub fn new(id: impl AsRef<str>) -> Result<Self> {
        let id = id.as_ref();
        if id.is_empty() {
            return Err(Error::invalid("owner", "the id is empty"));
        }
        check_text("owner", id)?;
        Ok(OwnerId(id.into()))
    }

    /// Returns a new unique owner.
    #[must_use]
    pub fn random() -> Self {
        OwnerId(AttemptId::random().to_string().into())
    }

    /// Returns the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for OwnerId {
    type Error = Error;
    fn try_from(id: String) -> Result<Self> {
        OwnerId::new(id)
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Refuses text that would not fit into a record or would break a line of a log.
pub(crate) fn check_text(field: &str, text: &str) -> Result<()> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Error::invalid(field, format_args!("{} bytes, at most {MAX_TEXT_BYTES} are allowed", text.len())));
    }
    match text.find(char::is_control) {
        Some(at) => Err(Error::invalid(field, format_args!("{text:?} has a control character at byte {at}"))),
        None => Ok(()),
    }
}

/// Reads text that any client may have written. Text that [`check_text`] refuses is not a record of this library: it
/// would reach terminals and logs.
pub(crate) fn read_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    check_text("text", &text).map_err(D::Error::custom)?;
    Ok(text)
}

/// Reads an optional text likewise.
pub(crate) fn read_optional_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: From<String>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    check_text("text", text.as_deref().unwrap_or_default()).map_err(D::Error::custom)?;
    Ok(text.map(T::from))
}

/// The machine, process and user behind an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The machine's host name.
    #[serde(deserialize_with = "read_text")]
    pub host: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The login name: `USER`, else that of `/etc/passwd`, else the number.
    #[serde(deserialize_with = "read_text")]
    pub user: String,
}

impl Process {
    /// Returns this process.
    #[must_use]
    pub fn current() -> Arc<Process> {
        // The kernel accepts any bytes for a name; other clients would refuse a record with control characters.
        let host = rustix::system::uname().nodename().to_string_lossy().replace(char::is_control, "?");
        let user = std::env::var("USER").ok().filter(|user| is_name(user)).unwrap_or_else(user_of_uid);
        Arc::new(Process { host, pid: std::process::id(), user })
    }
}

/// Returns a number that no ancestor of this process has: its generation, or its id where the kernel does not tell of forks.
pub(crate) fn process_number() -> u64 {
    distlock_fork::generation().map_or_else(|| std::process::id().into(), NonZeroU64::get)
}

fn is_name(user: &str) -> bool {
    !user.is_empty() && check_text("user", user).is_ok()
}

/// Returns the name of the user that this process runs as, or its number where `/etc/passwd` has no name for it:
/// other user directories need the C library, which is unsafe code.
fn user_of_uid() -> String {
    static FOUND: OnceLock<(u32, String)> = OnceLock::new();
    let uid = rustix::process::getuid().as_raw();
    let find = || {
        let file = File::open("/etc/passwd").ok();
        file.and_then(|file| name_in(BufReader::new(file), uid)).unwrap_or_else(|| format!("uid {uid}"))
    };
    match FOUND.get_or_init(|| (uid, find())) {
        (of, user) if *of == uid => user.clone(),
        // The process has changed its user since.
        _ => find(),
    }
}

/// Returns the name of `uid` in the lines `name:password:uid:…`.
fn name_in(passwd: impl BufRead, uid: u32) -> Option<String> {
    let mut names = passwd.lines().map_while(Result::ok).filter_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid) && is_name(name)).then(|| name.to_owned())
    });
    names.next()
}

/// What an engine stores about a holder or waiter of a lock. `Display` writes it for people: user, host, process, label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The owner.
    pub owner: OwnerId,
    /// Where the owner runs.
    #[serde(flatten)]
    pub process: Arc<Process>,
    /// The label: what the lock is for.
    #[serde(default, deserialize_with = "read_optional_text", skip_serializing_if = "Option::is_none")]
    pub label: Option<Arc<str>>,
    /// The mode of the claim.
    #[serde(default, skip_serializing_if = "Mode::is_exclusive")]
    pub mode: Mode,
    /// Whether the claim goes with claims for another number of slots that say the same: see
    /// [`Semaphore::or_resize`](crate::Semaphore::or_resize).
    #[serde(default, skip_serializing_if = "is_false")]
    pub resizes: bool,
    /// Whether the lease may expire while the process lives: the keeper does not renew it, or not forever.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lapses: bool,
    /// When the request was made, in milliseconds of the Unix epoch by the owner's wall clock.
    pub since_ms: u64,
}

// By reference, as serde asks.
#[allow(clippy::trivially_copy_pass_by_ref)]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

impl Record {
    /// Returns the record of `owner` in `process` at `now`, by its wall clock.
    #[must_use]
    pub fn new(owner: OwnerId, process: Arc<Process>, label: Option<Arc<str>>, now: SystemTime) -> Self {
        let since_ms = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let since_ms = u64::try_from(since_ms).unwrap_or(u64::MAX);
        Record { owner, process, label, mode: Mode::Exclusive, resizes: false, lapses: false, since_ms }
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether the claim goes with claims for another number of slots that say the same.
    #[must_use]
    pub fn with_resizes(mut self, resizes: bool) -> Self {
        self.resizes = resizes;
        self
    }

    /// Returns the mode as the claim asks for it.
    pub(crate) fn asked(&self) -> AskedMode {
        AskedMode { mode: self.mode, resizes: self.resizes }
    }

    /// Returns how long ago the request was made, as far as wall clocks agree.
    #[must_use]
    pub fn age(&self, now: SystemTime) -> Duration {
        let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(self.since_ms));
        since.and_then(|since| now.duration_since(since).ok()).unwrap_or_default()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Process { host, pid, user } = &*self.process;
        write!(f, "owner {} ({user}@{host} pid {pid}", self.owner)?;
        if let Some(label) = &self.label {
            write!(f, ", {label:?}")?;
        }
        if self.mode != Mode::Exclusive {
            write!(f, ", {}", self.mode)?;
        }
        f.write_str(")")
    }
}

/// A holder of a lock, as far as the engine knows it; in [`Error::holder`](crate::Error::holder) and in listings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct Holder {
    /// The holder's record; `None` if it is not a client of this library.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub record: Option<Arc<Record>>,
    /// Its fencing token, if it has one.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub token: Option<FencingToken>,
    /// Time until the engine frees the lock by itself; `None` when it never does.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "ttl_left_ms",
            with = "crate::types::serialize::millis",
            default,
            skip_serializing_if = "Option::is_none"
        )
    )]
    pub ttl_left: Option<Duration>,
    /// How long it has been held, where that is known.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "held_for_ms",
            with = "crate::types::serialize::millis",
            default,
            skip_serializing_if = "Option::is_none"
        )
    )]
    pub held_for: Option<Duration>,
}

impl Holder {
    /// Returns a holder with this record and token only.
    #[must_use]
    pub fn new(record: Option<Arc<Record>>, token: Option<FencingToken>) -> Self {
        Holder { record, token, ttl_left: None, held_for: None }
    }

    /// Sets the time until the engine frees the lock by itself.
    #[must_use]
    pub fn with_ttl_left(mut self, left: Option<Duration>) -> Self {
        self.ttl_left = left;
        self
    }

    /// Sets how long the lock has been held.
    #[must_use]
    pub fn with_held_for(mut self, held: Option<Duration>) -> Self {
        self.held_for = held;
        self
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.record {
            Some(record) => write!(f, "{record}")?,
            None => f.write_str("a client that is not distlock")?,
        }
        if let Some(held) = self.held_for {
            write!(f, " for {:.1} s", held.as_secs_f64())?;
        }
        if let Some(left) = self.ttl_left {
            write!(f, ", lease ends in {:.1} s", left.as_secs_f64())?;
        }
        if let Some(token) = self.token {
            write!(f, ", token {token}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_id_is_short_text_on_one_line() {
        assert_eq!(OwnerId::new("req-7").unwrap().as_str(), "req-7");
        for bad in ["", "a\nb", &"x".repeat(257)] {
            let error = OwnerId::new(bad).unwrap_err();
            assert!(error.to_string().starts_with("owner: "), "{error}");
        }
        assert_ne!(OwnerId::random(), OwnerId::random());
    }

    #[test]
    fn a_record_with_text_that_we_would_not_write_is_none() {
        let record = |owner: &str, host: &str, user: &str, label: &str| {
            let text = serde_json::json!({"owner": owner, "host": host, "pid": 1, "user": user, "since_ms": 1, "label": label});
            serde_json::from_str::<Record>(&text.to_string()).ok()
        };
        assert_eq!(record("o", "", "", "\"\\é").unwrap().label.as_deref(), Some("\"\\é"));
        assert_eq!(record("", "h", "u", "l"), None, "an owner has a name");
        for bad in ["\u{1b}[2J", "a\nb", "\u{9b}2J", &"x".repeat(257)] {
            let places = [record(bad, "h", "u", "l"), record("o", bad, "u", "l"), record("o", "h", bad, "l")];
            assert_eq!((places, record("o", "h", "u", bad)), ([None, None, None], None), "{bad:?}");
        }
    }

    #[test]
    fn a_user_has_the_first_name_that_the_system_gives_its_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# comment\n\nshort:x\nodd\u{1b}:x:7::/:\neve:x:7:7::/:/bin/sh\n\
                      toor:x:0:0::/:\nbig:x:4294967295::/:\n:x:9::/:\nneg:x:-1::/:\n";
        let rows = [(0, Some("root")), (7, Some("eve")), (u32::MAX, Some("big")), (9, None), (1, None)];
        for (uid, name) in rows {
            assert_eq!(name_in(passwd.as_bytes(), uid).as_deref(), name, "{uid}");
        }
    }

    #[test]
    fn a_holder_says_who_where_and_for_how_long() {
        let record =
            Record::new(OwnerId::new("req-7").unwrap(), Process::current(), Some("eod".into()), SystemTime::now());
        let pid = std::process::id();
        let holder = Holder::new(Some(Arc::new(record)), Some(FencingToken::new(9)))
            .with_ttl_left(Some(Duration::from_millis(2_500)))
            .with_held_for(Some(Duration::from_secs(3)));
        let text = holder.to_string();
        assert!(text.contains("owner req-7"), "{text}");
        assert!(text.contains(&format!("pid {pid}, \"eod\")")), "{text}");
        assert!(text.ends_with("for 3.0 s, lease ends in 2.5 s, token 9"), "{text}");
        let record = Record::new(OwnerId::random(), Process::current(), None, SystemTime::now());
        let text = record.with_mode(Mode::Slot { of: 3 }).to_string();
        assert!(text.ends_with(&format!("pid {pid}, a semaphore of 3)")), "{text}");
    }
}
