//! The requests of `renew` and `release` to a holder, and its answers.

use std::time::Duration;

use distlock::{Error, ErrorKind};
use serde_json::{Value, json};

use crate::hold_token::HoldToken;

/// A request to the holder of this lock with this token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ControlRequest {
    pub(crate) name: String,
    pub(crate) token: HoldToken,
    pub(crate) action: ControlAction,
}

/// What the client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlAction {
    /// A new lease from now on: as long as this, or as long as the last one.
    Renew(Option<Duration>),
    Release,
}

impl ControlRequest {
    /// Encodes the request as one line.
    pub(crate) fn encode(&self) -> String {
        let (action, ttl) = match self.action {
            ControlAction::Renew(ttl) => ("renew", ttl),
            ControlAction::Release => ("release", None),
        };
        // In nanoseconds: the duration is not rounded.
        let ttl = ttl.map(|ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX));
        format!("{}\n", json!({"do": action, "name": self.name, "token": self.token.to_string(), "ttl_ns": ttl}))
    }

    /// Parses a line; `None` when it is not a complete request.
    pub(crate) fn decode(line: &str) -> Option<ControlRequest> {
        let fields: Value = serde_json::from_str(line).ok()?;
        let action = match fields["do"].as_str()? {
            "renew" => ControlAction::Renew(fields["ttl_ns"].as_u64().map(Duration::from_nanos)),
            "release" => ControlAction::Release,
            _ => return None,
        };
        let token = fields["token"].as_str()?.parse().ok()?;
        Some(ControlRequest { name: fields["name"].as_str()?.into(), token, action })
    }
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlAnswer {
    /// Done. The lease has this length from now on; zero after a release.
    Done(Duration),
    /// The lock is no longer held, or not with the client's token.
    NotHeld(String),
    /// The engine did not answer: the action may have been done.
    Unknown(String),
}

impl ControlAnswer {
    /// Returns the answer for an engine error.
    pub(crate) fn from_error(error: &Error) -> ControlAnswer {
        match error.kind() {
            ErrorKind::Lost | ErrorKind::NotHeld => ControlAnswer::NotHeld(error.to_string()),
            _ => ControlAnswer::Unknown(error.to_string()),
        }
    }

    /// Encodes the answer as one line.
    pub(crate) fn encode(&self) -> String {
        let fields = match self {
            ControlAnswer::Done(ttl) => json!({"done": u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)}),
            ControlAnswer::NotHeld(why) => json!({"not_held": why}),
            ControlAnswer::Unknown(why) => json!({"unknown": why}),
        };
        format!("{fields}\n")
    }

    /// Parses a line; `None` when it is not a complete answer.
    pub(crate) fn decode(line: &str) -> Option<ControlAnswer> {
        let fields: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| fields[name].as_str().map(str::to_owned);
        let done = fields["done"].as_u64().map(|ttl| ControlAnswer::Done(Duration::from_nanos(ttl)));
        let not_held = || text("not_held").map(ControlAnswer::NotHeld);
        done.or_else(not_held).or_else(|| text("unknown").map(ControlAnswer::Unknown))
    }
}

#[cfg(test)]
mod tests {
    use distlock::FencingToken;

    use super::*;

    #[test]
    fn requests_and_answers_decode_to_what_was_encoded() {
        let token = HoldToken::new(FencingToken::new(u64::MAX));
        let actions = [
            ControlAction::Renew(None),
            ControlAction::Renew(Some(Duration::from_micros(1_500))),
            ControlAction::Release,
        ];
        for action in actions {
            let request = ControlRequest { name: "a \"b\"/日本".into(), token, action };
            assert_eq!(ControlRequest::decode(&request.encode()), Some(request));
        }
        let done = ControlAnswer::Done(Duration::from_secs(30));
        for answer in [done, ControlAnswer::NotHeld("x\ny".into()), ControlAnswer::Unknown(String::new())] {
            assert_eq!(ControlAnswer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn malformed_lines_are_refused() {
        for line in ["", "{}", "[]", "{\"do\":\"renew\"}", "{\"do\":\"dance\",\"name\":\"a\",\"token\":\"7.\"}"] {
            assert_eq!((ControlRequest::decode(line), ControlAnswer::decode(line)), (None, None), "{line}");
        }
    }
}
