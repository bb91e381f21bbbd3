//! Which tick `distlock run` runs a command for, and what it says about ticks.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use distlock::{Locker, MAX_PERIOD, MIN_PERIOD, OnceRequest, Tick, TickNote};
use serde_json::{Value, json};

use crate::flags;
use crate::lock_view;
use crate::plan::Wait;

/// A job that runs once per tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Once {
    tick: WhichTick,
    attempts: Option<u32>,
    keep: Option<Duration>,
    wait: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum WhichTick {
    Every(Duration),
    Named(String),
}

impl Once {
    /// Validates the flags; `None` when the command runs each time.
    ///
    /// # Errors
    /// What is wrong with the flags, for the user.
    pub fn new(flags: &flags::Once, lock: &flags::Lock) -> Result<Option<Once>, String> {
        let tick = match (flags.once_per, &flags.tick) {
            (Some(_), Some(_)) => return Err("--once-per and --tick cannot be used together".into()),
            (Some(period), None) => {
                check_length("--once-per", period)?;
                WhichTick::Every(period)
            }
            (None, Some(name)) => {
                Tick::named(name).map_err(|error| format!("--tick: {error}"))?;
                WhichTick::Named(name.clone())
            }
            (None, None) if flags.attempts.is_some() => return Err("--attempts needs --once-per or --tick".into()),
            (None, None) if flags.keep.is_some() => return Err("--keep needs --tick".into()),
            (None, None) => return Ok(None),
        };
        if let Some(keep) = flags.keep {
            check_length("--keep", keep)?;
            if matches!(tick, WhichTick::Every(_)) {
                return Err("--keep needs --tick: a period is kept until the next one has ended".into());
            }
        }
        if lock.shared || lock.slots.is_some() {
            return Err("a job that runs once has its lock alone: -s and -j cannot be used with it".into());
        }
        let wait = match Wait::from(lock) {
            Wait::AtMost(most) => Some(most),
            // Who comes second has nothing to do.
            Wait::No | Wait::Forever => None,
        };
        Ok(Some(Once { tick, attempts: flags.attempts, keep: flags.keep, wait }))
    }

    /// Returns the request for the lock `name`.
    pub(crate) fn request(&self, locker: &Locker, name: &distlock::Key) -> OnceRequest {
        let request = match &self.tick {
            WhichTick::Every(period) => locker.once(name).every(*period),
            WhichTick::Named(tick) => locker.once(name).tick(tick),
        };
        let request = self.attempts.into_iter().fold(request, OnceRequest::attempts);
        let request = self.keep.into_iter().fold(request, OnceRequest::keep);
        self.wait.into_iter().fold(request, OnceRequest::wait)
    }
}

fn check_length(flag: &str, length: Duration) -> Result<(), String> {
    if (MIN_PERIOD..=MAX_PERIOD).contains(&length) {
        return Ok(());
    }
    let text = |length| humantime::format_duration(length).to_string();
    Err(format!("{flag} {} is not from {} to {} days", text(length), text(MIN_PERIOD), MAX_PERIOD.as_secs() / 86_400))
}

/// Returns what a note says, in one line: `done until 2026-11-18T15:00:00Z by me@vm/7, took 3m`.
#[must_use]
pub fn describe(note: &TickNote) -> String {
    let mut text = match &note.tick {
        Tick::Named(name) => format!("tick {name:?} "),
        _ => String::new(),
    };
    let (until, who) = (time(note.until_ms), lock_view::place(&note.record));
    let _ = match note.took_ms {
        Some(took) => write!(text, "done until {until} by {who}, took {}", length(took)),
        None => write!(text, "not done, run {} was started at {} by {who}", note.starts, time(note.started_ms)),
    };
    text
}

/// Returns a note as one JSON object.
#[must_use]
pub fn to_json(note: &TickNote) -> Value {
    let mut fields = lock_view::record_json(&note.record);
    fields["tick"] = json!(note.tick.to_string());
    fields["done"] = json!(note.is_done());
    fields["until_ms"] = json!(note.until_ms);
    fields["started_ms"] = json!(note.started_ms);
    fields["starts"] = json!(note.starts);
    fields["took_s"] = json!(note.took_ms.map(|took| Duration::from_millis(took).as_secs_f64()));
    // As text: JSON readers round numbers of this size.
    fields["token"] = json!(note.token.to_string());
    fields
}

fn time(ms: u64) -> String {
    // The last second that can be printed.
    let ms = ms.min(253_402_300_799_000);
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

fn length(ms: u64) -> String {
    let whole = if ms < 1_000 { Duration::from_millis(ms) } else { Duration::from_secs(ms / 1_000) };
    humantime::format_duration(whole).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser;
    use distlock::{FencingToken, OwnerId, Process, Record};

    use super::*;

    fn once(words: &[&str]) -> Result<Option<Once>, String> {
        let line = ["distlock", "run"].iter().chain(words).chain(&["job", "true"]);
        let flags = flags::Flags::try_parse_from(line).map_err(|error| error.to_string())?;
        let flags::Command::Run(run) = flags.command else { panic!("not run") };
        Once::new(&run.once, &run.lock)
    }

    #[test]
    fn flags_that_make_no_tick_are_refused() {
        let cases: [(&[&str], &str); 11] = [
            (&["--once-per", "0"], "--once-per 0s is not from 1s to 366 days"),
            (&["--once-per", "999ms"], "--once-per"),
            (&["--once-per", "367d"], "--once-per"),
            (&["--once-per", "1h", "--tick", "a"], "cannot be used together"),
            (&["--tick", ""], "empty"),
            (&["--tick", &"x".repeat(257)], "257 bytes"),
            (&["--attempts", "2"], "--attempts needs --once-per or --tick"),
            (&["--tick", "a", "--attempts", "0"], "--attempts"),
            (&["--once-per", "1h", "--keep", "1h"], "--keep needs --tick"),
            (&["--once-per", "1h", "-s"], "-s and -j"),
            (&["--tick", "a", "-j", "3"], "-s and -j"),
        ];
        for (words, problem) in cases {
            let error = once(words).expect_err(problem);
            assert!(error.contains(problem), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_tick_is_waited_for_only_when_asked() {
        assert_eq!(once(&[]), Ok(None));
        let wait = |words: &[&str]| once(words).unwrap().unwrap().wait;
        assert_eq!(wait(&["--once-per", "1h"]), None);
        assert_eq!(wait(&["--once-per", "1h", "-n"]), None);
        assert_eq!(wait(&["--tick", "a", "--wait", "5m"]), Some(Duration::from_secs(300)));
    }

    #[test]
    fn a_note_says_who_until_when_and_how_long() {
        let process = Arc::new(Process { host: "vm".into(), pid: 7, user: "me".into() });
        let record = Record::new(OwnerId::new("o").unwrap(), process, None, SystemTime::UNIX_EPOCH);
        let hour = Duration::from_secs(3600);
        let started = TickNote::start(Tick::at(1_000, hour), 1_000, hour, FencingToken::new(u64::MAX), record);
        assert_eq!(describe(&started), "not done, run 1 was started at 1970-01-01T00:00:01Z by me@vm/7");
        let done = started.done(Duration::from_millis(180_400), 181_400, hour);
        assert_eq!(describe(&done), "done until 1970-01-01T01:00:00Z by me@vm/7, took 3m");
        let json = to_json(&done);
        assert_eq!((&json["token"], &json["done"]), (&json!("18446744073709551615"), &json!(true)));
        assert_eq!((&json["took_s"], &json["tick"]), (&json!(180.4), &json!("period:0+3600000")));
    }
}
