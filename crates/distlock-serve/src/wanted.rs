//! What a client asks for: the body of a request for a lock, validated.

use std::fmt;
use std::time::Duration;

use distlock::{Key, LockRequest, Locker};
use distlock_http::Peer;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use crate::failure::Failure;
use crate::liveness::Proof;

/// How long a client may take to open its event stream, or to open it again, unless it chose a silence.
pub(crate) const STREAM_SILENCE: Duration = Duration::from_secs(5);
/// The shortest and the longest silence that a client may choose.
const SHORTEST_SILENCE: Duration = Duration::from_millis(100);
const LONGEST_SILENCE: Duration = Duration::from_secs(60 * 60);
/// The longest wait for a lock, and the default.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration as text: `3s`, `250ms`, `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        deserializer.deserialize_str(SpanText)
    }
}

/// Reads a [`Span`] without a copy of its text.
struct SpanText;

impl Visitor<'_> for SpanText {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string such as \"3s\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
        let parsed = humantime::parse_duration(text);
        parsed
            .map(Span)
            .map_err(|problem| E::custom(format_args!("{text:?} is not a duration such as 3s or 250ms: {problem}")))
    }
}

/// Who may hold the lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LockMode {
    Write,
    Read,
    Slots,
}

/// The body of `POST /v1/locks/{name}`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LockBody {
    ttl: Option<Span>,
    wait: Option<Span>,
    r#try: bool,
    owner: Option<String>,
    label: Option<String>,
    mode: Option<LockMode>,
    slots: Option<u32>,
    reentrant: bool,
    silence: Option<Span>,
}

/// A validated request for a lock.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    body: LockBody,
}

impl Wanted {
    pub(crate) fn new(name: &str, body: LockBody) -> Result<Wanted, Failure> {
        let key = Key::new(name).map_err(|error| Failure::from(&error))?;
        let refuse = |problem: String| Err(Failure::invalid(format!("lock {name:?}: {problem}")));
        match (body.mode, body.slots) {
            (Some(LockMode::Slots), None) => return refuse("slots: say how many".into()),
            (Some(LockMode::Write | LockMode::Read), Some(_)) => {
                return refuse("slots: only for mode \"slots\"".into());
            }
            _ => {}
        }
        if body.reentrant && body.owner.is_none() {
            return refuse("reentrant: name the owner that may enter again".into());
        }
        if body.r#try && body.wait.is_some() {
            return refuse("try: does not wait, so leave wait out".into());
        }
        if body.wait.is_some_and(|Span(wait)| wait > LONGEST_WAIT) {
            return refuse(format!("wait: longer than {LONGEST_WAIT:?}"));
        }
        if let Some(Span(silence)) = body.silence
            && !(SHORTEST_SILENCE..=LONGEST_SILENCE).contains(&silence)
        {
            return refuse(format!("silence: {silence:?} is not from {SHORTEST_SILENCE:?} to {LONGEST_SILENCE:?}"));
        }
        Ok(Wanted { key, body })
    }

    /// Returns how the client shows that it lives, and how long it may be silent.
    pub(crate) fn proof(&self) -> (Proof, Duration) {
        self.body.silence.map_or((Proof::Stream, STREAM_SILENCE), |Span(silence)| (Proof::Calls, silence))
    }

    /// Returns the lease.
    pub(crate) fn ttl(&self, default: Duration) -> Duration {
        self.body.ttl.map_or(default, |Span(ttl)| ttl)
    }

    /// Returns the request for the library. Without an owner of its own each request is one: clients contend with each other.
    pub(crate) fn request(&self, locker: &Locker, default_ttl: Duration, peer: &Peer) -> LockRequest {
        let (key, body) = (self.key.clone(), &self.body);
        let request = match (body.mode, body.slots) {
            (_, Some(slots)) => locker.semaphore(key, slots).acquire(),
            (Some(LockMode::Read), _) => locker.read(key),
            _ => locker.lock(key),
        };
        let request = match &body.owner {
            Some(owner) => request.owner(owner),
            None => request.as_new_owner(),
        };
        let label = body.label.clone().unwrap_or_else(|| format!("for {peer}"));
        let wait = if body.r#try { Duration::ZERO } else { body.wait.map_or(LONGEST_WAIT, |Span(wait)| wait) };
        let request = request.ttl(self.ttl(default_ttl)).wait(wait).label(label);
        if body.reentrant { request.reentrant() } else { request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Result<Wanted, String> {
        let body = serde_json::from_str(text).map_err(|problem| problem.to_string())?;
        Wanted::new("a", body).map_err(|failure| failure.message)
    }

    #[test]
    fn times_are_text_and_silence_chooses_the_proof() {
        let plain = wanted("{}").unwrap();
        assert_eq!((plain.proof(), plain.ttl(STREAM_SILENCE)), ((Proof::Stream, STREAM_SILENCE), STREAM_SILENCE));
        let calls = wanted(r#"{"silence": "2s", "ttl": "250ms"}"#).unwrap();
        assert_eq!(calls.proof(), (Proof::Calls, Duration::from_secs(2)));
        assert_eq!(calls.ttl(STREAM_SILENCE), Duration::from_millis(250));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let rows = [
            (r#"{"tll": "3s"}"#, "tll"),
            (r#"{"ttl": 3}"#, "string"),
            (r#"{"ttl": "3 parsecs"}"#, "parsecs"),
            (r#"{"ttl": "-3s"}"#, "-3s"),
            (r#"{"wait": "99999999999999999999y"}"#, "99999999999999999999y"),
            (r#"{"wait": "99999999999y"}"#, "wait"),
            (r#"{"wait": "25h"}"#, "wait"),
            (r#"{"try": true, "wait": "1s"}"#, "try"),
            (r#"{"mode": "slots"}"#, "slots"),
            (r#"{"mode": "read", "slots": 2}"#, "slots"),
            (r#"{"mode": "shared"}"#, "shared"),
            (r#"{"reentrant": true}"#, "owner"),
            (r#"{"silence": "1ms"}"#, "silence"),
            (r#"{"silence": "2h"}"#, "silence"),
        ];
        for (text, hint) in rows {
            let problem = wanted(text).expect_err(text);
            assert!(problem.contains(hint), "{text}: {problem}");
        }
    }
}
