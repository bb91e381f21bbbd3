//! The messages of the program: on stderr for users or machines, and on `--status-fd`.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use distlock::{ClockSkew, FencingToken, Holder, LossReason, TickNote};
use serde_json::{Value, json};

use crate::child::Outcome;
use crate::once;
use crate::signal_name;
use crate::sink::Sink;
use crate::sys;

/// How long the program waits at its end for the last notes to be read.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// A message about one step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// The lock was acquired.
    Acquired {
        /// The fencing token.
        token: FencingToken,
        /// The time from the request to the grant.
        waited: Duration,
    },
    /// The engine has not answered yet.
    Connecting {
        /// The engine, without secrets.
        engine: String,
    },
    /// The lock is held by another owner, and this one waits.
    Waiting {
        /// The lock.
        name: String,
        /// Who holds it, if known.
        holder: Option<Holder>,
    },
    /// No engine is configured.
    Local {
        /// The directory of this machine's locks.
        directory: String,
    },
    /// The command was started.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// The engine does not confirm renewals; the child is ended before the lease ends.
    AtRisk {
        /// Time until the lease ends.
        left: Duration,
    },
    /// The lock was lost.
    Lost {
        /// Why.
        reason: LossReason,
    },
    /// `--at-most` is over.
    HeldTooLong {
        /// How long it was allowed to be held.
        limit: Duration,
    },
    /// The child was signalled to end.
    Stopping {
        /// The signal that was sent.
        signal: i32,
        /// The time until SIGKILL.
        grace: Duration,
    },
    /// The child and all its descendants are being killed.
    Killing,
    /// Some processes of the command cannot be killed because they run as another user.
    Refused {
        /// Their process ids.
        processes: Vec<i32>,
    },
    /// Notes were dropped because the reader of this descriptor does not read.
    LeftOut {
        /// How many.
        notes: u64,
    },
    /// The command has ended, but other processes of its group or session have not.
    Lingering {
        /// How many.
        processes: usize,
    },
    /// The command ended.
    Ended {
        /// How it ended.
        outcome: Outcome,
    },
    /// The lease was renewed.
    Renewed {
        /// The length of the lease.
        ttl: Duration,
    },
    /// The engine has not confirmed the release yet.
    Releasing {
        /// The engine, without secrets.
        engine: String,
    },
    /// The lock was released.
    Released,
    /// Another owner's lock was released by force.
    Broken {
        /// The token of the hold that was broken.
        token: FencingToken,
    },
    /// The tick is done, so the command does not run.
    TickDone {
        /// The run that succeeded.
        note: TickNote,
    },
    /// The command runs elsewhere, so it does not run here.
    TickRuns {
        /// Who runs it, if known.
        holder: Option<Holder>,
    },
    /// As many runs as allowed have failed, so the command does not run.
    TickExhausted {
        /// The last run.
        note: TickNote,
    },
    /// This run succeeded, and the tick is done.
    TickNoted {
        /// This run.
        note: TickNote,
    },
    /// This machine's clock is off.
    Skewed {
        /// How far.
        skew: ClockSkew,
    },
    /// The lock has no history.
    NoHistory {
        /// The lock.
        name: String,
    },
    /// A variable of the environment begins like a setting and is none.
    UnknownVariable {
        /// Its name.
        name: String,
    },
    /// The daemon did something for a client.
    Served {
        /// The client: its address, or its process id.
        client: String,
        /// The lock, if the note is about one.
        lock: Option<String>,
        /// What happened.
        message: String,
    },
    /// Something failed.
    Failed {
        /// The error in one line.
        message: String,
    },
}

impl Note {
    fn level(&self) -> Level {
        match self {
            Note::AtRisk { .. }
            | Note::Lost { .. }
            | Note::HeldTooLong { .. }
            | Note::Broken { .. }
            | Note::Refused { .. }
            | Note::LeftOut { .. }
            | Note::TickDone { .. }
            | Note::TickRuns { .. }
            | Note::TickExhausted { .. }
            | Note::Skewed { .. }
            | Note::NoHistory { .. }
            | Note::Connecting { .. }
            | Note::Waiting { .. }
            | Note::Releasing { .. }
            | Note::Local { .. }
            | Note::UnknownVariable { .. }
            | Note::Served { .. }
            | Note::Failed { .. } => Level::Normal,
            _ => Level::Verbose,
        }
    }

    /// The note as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let seconds = |time: &Duration| time.as_secs_f64();
        match self {
            Note::Acquired { token, waited } => {
                json!({"event": "acquired", "token": token.get(), "waited_s": seconds(waited)})
            }
            Note::Connecting { engine } => json!({"event": "connecting", "engine": engine}),
            Note::Waiting { name, holder } => {
                let holder = holder.as_ref().map(crate::lock_view::holder_json);
                json!({"event": "waiting", "name": name, "holder": holder})
            }
            Note::Local { directory } => json!({"event": "local", "directory": directory}),
            Note::Started { pid } => json!({"event": "started", "pid": pid}),
            Note::AtRisk { left } => json!({"event": "at_risk", "left_s": seconds(left)}),
            Note::Lost { reason } => json!({"event": "lost", "reason": reason.describe()}),
            Note::HeldTooLong { limit } => json!({"event": "held_too_long", "limit_s": seconds(limit)}),
            Note::Stopping { signal, grace } => {
                json!({"event": "stopping", "signal": signal, "grace_s": seconds(grace)})
            }
            Note::Killing => json!({"event": "killing"}),
            Note::Refused { processes } => json!({"event": "refused", "processes": processes}),
            Note::LeftOut { notes } => json!({"event": "left_out", "notes": notes}),
            Note::Lingering { processes } => json!({"event": "lingering", "processes": processes}),
            Note::Ended { outcome: Outcome::Exited(code) } => json!({"event": "ended", "code": code}),
            Note::Ended { outcome: Outcome::Killed(signal) } => json!({"event": "ended", "signal": signal}),
            Note::Renewed { ttl } => json!({"event": "renewed", "ttl_s": seconds(ttl)}),
            Note::Releasing { engine } => json!({"event": "releasing", "engine": engine}),
            Note::Released => json!({"event": "released"}),
            Note::Broken { token } => json!({"event": "broken", "token": token.get()}),
            Note::TickDone { note } => json!({"event": "tick_done", "note": once::to_json(note)}),
            Note::TickRuns { holder } => {
                json!({"event": "tick_runs", "holder": holder.as_ref().map(crate::lock_view::holder_json)})
            }
            Note::TickExhausted { note } => json!({"event": "tick_exhausted", "note": once::to_json(note)}),
            Note::TickNoted { note } => json!({"event": "tick_noted", "note": once::to_json(note)}),
            Note::Skewed { skew } => json!({"event": "skewed", "message": skew.to_string()}),
            Note::NoHistory { name } => json!({"event": "no_history", "name": name}),
            Note::UnknownVariable { name } => json!({"event": "unknown_variable", "name": name}),
            Note::Served { client, lock, message } => {
                json!({"event": "served", "client": client, "lock": lock, "message": message})
            }
            Note::Failed { message } => json!({"event": "failed", "message": message}),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Acquired { token, waited } => {
                write!(f, "lock acquired after {:.3} s, token {token}", waited.as_secs_f64())
            }
            Note::Connecting { engine } => write!(f, "waiting for an answer of {engine} …"),
            Note::Waiting { name, holder: Some(holder) } => write!(f, "waiting for lock {name:?}, held by {holder} …"),
            Note::Waiting { name, holder: None } => write!(f, "waiting for lock {name:?} …"),
            Note::Local { directory } => write!(
                f,
                "no engine is configured, so locks are files in {directory} and exclude the processes of this machine; \
                 for several machines set --url or DISTLOCK_URL, for example redis://HOST, and run this again"
            ),
            Note::Started { pid } => write!(f, "command started, pid {pid}"),
            Note::AtRisk { left } => {
                write!(f, "lock renewals get no answer, the lease ends in {:.1} s", left.as_secs_f64())
            }
            Note::Lost { reason } => write!(f, "lock lost: {}", reason.describe()),
            Note::HeldTooLong { limit } => {
                write!(f, "the lock was held for {:.1} s, as --at-most allows", limit.as_secs_f64())
            }
            Note::Stopping { signal, grace } => {
                write!(
                    f,
                    "sent {} to the command, SIGKILL follows in {:.1} s",
                    signal_name::show(*signal),
                    grace.as_secs_f64()
                )
            }
            Note::Killing => f.write_str("killing the command and everything it started"),
            Note::Refused { processes } => write!(
                f,
                "not allowed to kill {}: it runs as another user and continues; the lock is kept as long as possible",
                processes.iter().map(|pid| format!("process {pid}")).collect::<Vec<_>>().join(", ")
            ),
            Note::LeftOut { notes } => write!(f, "{notes} message(s) were dropped here because they were not read"),
            Note::Lingering { processes } => {
                write!(f, "the command has ended, waiting for {processes} process(es) it left")
            }
            Note::Ended { outcome: Outcome::Exited(code) } => write!(f, "command exited with {code}"),
            Note::Ended { outcome: Outcome::Killed(signal) } => {
                write!(f, "command killed by {}", signal_name::show(*signal))
            }
            Note::Renewed { ttl } => write!(f, "lock renewed for {:.1} s", ttl.as_secs_f64()),
            Note::Releasing { engine } => write!(f, "waiting for {engine} to confirm the release …"),
            Note::Released => f.write_str("lock released"),
            Note::Broken { token } => {
                write!(f, "released the hold with token {token}; its holder may still be running until it notices")
            }
            Note::TickDone { note } | Note::TickNoted { note } => f.write_str(&once::describe(note)),
            Note::TickRuns { holder: Some(holder) } => write!(f, "runs already: held by {holder}"),
            Note::TickRuns { holder: None } => f.write_str("runs already, or is about to"),
            Note::TickExhausted { note } => {
                write!(f, "no run is left of those that --attempts allows: {}", once::describe(note))
            }
            Note::Skewed { skew } => write!(f, "{skew}"),
            Note::NoHistory { name } => write!(
                f,
                "{name:?} has no history; clients write one with history=N in their URL, or with DISTLOCK_HISTORY=N"
            ),
            Note::UnknownVariable { name } => {
                write!(f, "the variable {name} is no setting and is ignored; `distlock help` lists the settings")
            }
            Note::Served { client, lock: Some(lock), message } => write!(f, "{client}: lock {lock:?}: {message}"),
            Note::Served { client, lock: None, message } => write!(f, "{client}: {message}"),
            Note::Failed { message } => f.write_str(message),
        }
    }
}

/// How much is printed on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Nothing.
    Quiet,
    /// Only problems.
    #[default]
    Normal,
    /// Every step.
    Verbose,
}

/// Writes notes. Errors are ignored and unread notes are dropped: a reader that is gone or does not read must neither
/// end the command nor let it run past the lock.
#[derive(Debug, Default)]
pub struct Notes {
    level: Level,
    json: bool,
    stderr: Option<Sink>,
    status: Option<Sink>,
}

impl Notes {
    /// Prints notes up to `level` on stderr, as JSON if `json` is set.
    #[must_use]
    pub fn new(level: Level, json: bool) -> Notes {
        Notes { level, json, stderr: None, status: None }
    }

    /// Also writes every note to the inherited descriptor `number`; the child does not inherit it.
    ///
    /// # Errors
    /// When the descriptor is not open.
    pub fn with_status(mut self, number: i32) -> io::Result<Notes> {
        self.status = Some(Sink::new(sys::inherited(number)?));
        Ok(self)
    }

    /// Whether stderr is a terminal, where a user waits for news.
    #[must_use]
    pub fn are_seen(&self) -> bool {
        self.level > Level::Quiet && !self.json && io::stderr().is_terminal()
    }

    /// Writes the note without waiting for a reader.
    pub fn say(&mut self, note: &Note) {
        let as_json = |note: &Note| format!("{}\n", note.to_json());
        if let Some(status) = &mut self.status {
            status.write(as_json(note), |notes| as_json(&Note::LeftOut { notes }));
        }
        if note.level() > self.level {
            return;
        }
        // Opened at the first note: success is silent.
        if self.stderr.is_none() {
            self.stderr = sys::inherited(2).ok().map(Sink::new);
        }
        let as_line = |note: &Note| if self.json { as_json(note) } else { format!("distlock: {note}\n") };
        if let Some(stderr) = &mut self.stderr {
            stderr.write(as_line(note), |notes| as_line(&Note::LeftOut { notes }));
        }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let until = Instant::now() + DRAIN_LIMIT;
        let mut sinks: Vec<_> = [self.stderr.take(), self.status.take()].into_iter().flatten().collect();
        sinks.iter_mut().for_each(Sink::close);
        sinks.iter().for_each(|sink| sink.await_end(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_is_silent_and_loss_is_not() {
        let ended = Note::Ended { outcome: Outcome::Exited(0) };
        assert!(Note::Released.level() > Level::Normal && ended.level() > Level::Normal);
        assert_eq!(Note::Lost { reason: LossReason::Expired }.level(), Level::Normal);
    }

    #[test]
    fn every_object_names_its_event() {
        let note = Note::Acquired { token: FencingToken::new(7), waited: Duration::from_millis(1_500) };
        assert_eq!(note.to_json(), json!({"event": "acquired", "token": 7, "waited_s": 1.5}));
        assert_eq!(note.to_string(), "lock acquired after 1.500 s, token 7");
    }
}
