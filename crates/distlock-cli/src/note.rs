//! What the program says, and where: stderr for people or machines, and `--status-fd`.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use distlock::{FencingToken, LossReason};
use serde_json::{Value, json};

use crate::child::Outcome;
use crate::signal_name;
use crate::sink::Sink;
use crate::sys;

/// How long the end of the program waits for its last notes to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Something worth saying.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// The lock is ours.
    Acquired {
        /// The fencing token.
        token: FencingToken,
        /// Time since it was asked for.
        waited: Duration,
    },
    /// The command runs.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// Renewals are not answered; the child is ended before the lease is.
    AtRisk {
        /// Time until the lease ends.
        left: Duration,
    },
    /// The lock is not ours any more.
    Lost {
        /// Why.
        reason: LossReason,
    },
    /// `--at-most` is over.
    HeldTooLong {
        /// How long it was allowed to be held.
        limit: Duration,
    },
    /// The child was asked to end.
    Stopping {
        /// By which signal.
        signal: i32,
        /// When it is killed.
        grace: Duration,
    },
    /// The child and everything below it is being killed.
    Killing,
    /// Some of what the command started may not be killed, because it became another user.
    Refused {
        /// Which processes.
        processes: Vec<i32>,
    },
    /// Notes were left out because the reader of this descriptor does not read.
    LeftOut {
        /// How many.
        notes: u64,
    },
    /// The command has ended, others in its group or session have not.
    Lingering {
        /// How many.
        processes: usize,
    },
    /// The command ended.
    Ended {
        /// How.
        outcome: Outcome,
    },
    /// The lease begins anew.
    Renewed {
        /// How long it is.
        ttl: Duration,
    },
    /// The lock was released.
    Released,
    /// Somebody else's lock was released by force.
    Broken {
        /// The token of the hold that was ended.
        token: FencingToken,
    },
    /// There is no history of a lock.
    NoHistory {
        /// The lock.
        name: String,
    },
    /// Something failed.
    Failed {
        /// What, in one line.
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
            | Note::NoHistory { .. }
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
            Note::Started { pid } => json!({"event": "started", "pid": pid}),
            Note::AtRisk { left } => json!({"event": "at_risk", "left_s": seconds(left)}),
            Note::Lost { reason } => json!({"event": "lost", "reason": reason.to_string()}),
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
            Note::Released => json!({"event": "released"}),
            Note::Broken { token } => json!({"event": "broken", "token": token.get()}),
            Note::NoHistory { name } => json!({"event": "no_history", "name": name}),
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
            Note::Started { pid } => write!(f, "command started, pid {pid}"),
            Note::AtRisk { left } => {
                write!(f, "lock renewals are not answered, the lease ends in {:.1} s", left.as_secs_f64())
            }
            Note::Lost { reason } => write!(f, "lock lost: {reason}"),
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
                "not allowed to kill {}: it became another user, and runs on; the lock is kept for it as long as possible",
                processes.iter().map(|pid| format!("process {pid}")).collect::<Vec<_>>().join(", ")
            ),
            Note::LeftOut { notes } => write!(f, "{notes} message(s) were left out here, since they were not read"),
            Note::Lingering { processes } => {
                write!(f, "the command has ended, waiting for {processes} process(es) it left")
            }
            Note::Ended { outcome: Outcome::Exited(code) } => write!(f, "command exited with {code}"),
            Note::Ended { outcome: Outcome::Killed(signal) } => {
                write!(f, "command killed by {}", signal_name::show(*signal))
            }
            Note::Renewed { ttl } => write!(f, "lock renewed for {:.1} s", ttl.as_secs_f64()),
            Note::Released => f.write_str("lock released"),
            Note::Broken { token } => {
                write!(f, "released the hold with token {token}; its holder may still be running until it notices")
            }
            Note::NoHistory { name } => write!(
                f,
                "nothing is written down about {name:?}; a history is kept by those who lock it with history=N in their URL, \
                 or with DISTLOCK_HISTORY=N"
            ),
            Note::Failed { message } => f.write_str(message),
        }
    }
}

/// How much is said on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Nothing at all.
    Quiet,
    /// What went wrong.
    #[default]
    Normal,
    /// Every step.
    Verbose,
}

/// Writes notes. A reader that went away, or does not read, is no reason to end the command or to let it run on: failures
/// to write are ignored, and what is not read in time is left out.
#[derive(Debug, Default)]
pub struct Notes {
    level: Level,
    json: bool,
    stderr: Option<Sink>,
    status: Option<Sink>,
}

impl Notes {
    /// Says as much as `level` on stderr; as JSON if asked to.
    #[must_use]
    pub fn new(level: Level, json: bool) -> Notes {
        Notes { level, json, stderr: None, status: None }
    }

    /// Writes every note to the descriptor `number` too, which the caller of the program opened; the child does not
    /// inherit it.
    ///
    /// # Errors
    /// When it is not open.
    pub fn with_status(mut self, number: i32) -> io::Result<Notes> {
        self.status = Some(Sink::new(sys::inherited(number)?));
        Ok(self)
    }

    /// Says it, without waiting for it to be read.
    pub fn say(&mut self, note: &Note) {
        let as_json = |note: &Note| format!("{}\n", note.to_json());
        if let Some(status) = &mut self.status {
            status.write(as_json(note), |notes| as_json(&Note::LeftOut { notes }));
        }
        if note.level() > self.level {
            return;
        }
        // Not before there is something to say: success is silent.
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
        let until = Instant::now() + LAST_WORDS;
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
