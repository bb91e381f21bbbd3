//! The background holder's report to the `acquire` that started it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::acquire::Refusal;
use crate::exit::Exit;
use crate::hold_token::HoldToken;

/// Whether the lock was acquired.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The lock is held; the holder waits for the caller to confirm that it printed the token.
    Held(HeldReport),
    /// The lock was not acquired.
    Refused(Refusal),
}

/// A lock that is held in the background.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldReport {
    pub(crate) token: HoldToken,
    pub(crate) owner: String,
    /// The engine, without secrets.
    pub(crate) engine: String,
    /// Which slot of a semaphore it is.
    pub(crate) slot: Option<u32>,
    pub(crate) waited: Duration,
    /// The lease.
    pub(crate) ttl: Duration,
}

impl Report {
    /// Encodes the report as one line.
    pub(crate) fn encode(&self) -> String {
        let milliseconds = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let fields = match self {
            Report::Held(HeldReport { token, owner, engine, slot, waited, ttl }) => json!({
                "token": token.to_string(),
                "owner": owner,
                "engine": engine,
                "slot": slot,
                "waited_ms": milliseconds(waited),
                "ttl_ms": milliseconds(ttl),
            }),
            Report::Refused(Refusal { exit, message }) => {
                let (kind, number) = match exit {
                    Exit::Code(code) => ("code", i32::from(*code)),
                    Exit::Own(code) => ("code", *code as i32),
                    Exit::Signal(signal) | Exit::TerminalSignal(signal) => ("signal", *signal),
                };
                json!({kind: number, "message": message})
            }
        };
        format!("{fields}\n")
    }

    /// Parses a line; `None` when it is not a complete report.
    pub(crate) fn decode(line: &str) -> Option<Report> {
        let fields: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| fields[name].as_str().map(str::to_owned);
        let time = |name: &str| fields[name].as_u64().map(Duration::from_millis);
        let refused = |exit| Some(Report::Refused(Refusal { exit, message: text("message") }));
        if let Some(code) = fields["code"].as_u64() {
            return refused(Exit::Code(u8::try_from(code).ok()?));
        }
        if let Some(signal) = fields["signal"].as_i64() {
            return refused(Exit::Signal(i32::try_from(signal).ok()?));
        }
        let token = text("token")?.parse().ok()?;
        let (waited, ttl) = (time("waited_ms")?, time("ttl_ms")?);
        let slot = fields["slot"].as_u64().and_then(|slot| u32::try_from(slot).ok());
        Some(Report::Held(HeldReport { token, owner: text("owner")?, engine: text("engine")?, slot, waited, ttl }))
    }
}

#[cfg(test)]
mod tests {
    use distlock::FencingToken;

    use super::*;
    use crate::exit::ExitCode;

    #[test]
    fn reports_decode_to_what_was_encoded_with_codes_as_numbers() {
        let held = Report::Held(HeldReport {
            token: HoldToken::new(FencingToken::new(7)),
            owner: "me \"and\" you".into(),
            engine: "file:///x".into(),
            slot: Some(2),
            waited: Duration::from_millis(12),
            ttl: Duration::from_secs(30),
        });
        let refused = |exit| Report::Refused(Refusal { exit, message: Some("why\nnot".into()) });
        for report in [held, refused(Exit::Code(3)), refused(Exit::Signal(15))] {
            let line = report.encode();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Report::decode(&line), Some(report));
        }
        let own = refused(ExitCode::NotAcquired.into()).encode();
        assert_eq!(Report::decode(&own), Some(refused(Exit::Code(75))));
    }

    #[test]
    fn incomplete_reports_are_refused() {
        for line in ["", "{}", "{\"token\":\"7\"}", "{\"code\":300}", "nonsense"] {
            assert_eq!(Report::decode(line), None, "{line}");
        }
    }
}
