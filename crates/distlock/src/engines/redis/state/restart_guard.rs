//! What keeps a server that has forgotten leases from granting too early.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::engines::redis::protocol::names;
use crate::engines::redis::protocol::time::millis;
use crate::types::clock::Moment;

/// The client's part of the guard: the canary's key, and the leases that may be alive as far as this client knows.
#[derive(Debug)]
pub(in crate::engines) struct RestartGuard {
    canary: String,
    known: Mutex<Known>,
}

/// Whose canary an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum Look {
    /// Of a server that was just connected to: perhaps another than before, with an older copy.
    First,
    /// Of a server that this connection has looked at before.
    Again,
}

#[derive(Debug, Default)]
struct Known {
    /// Our own leases.
    own: Leases,
    /// What canaries said that the server of now may lack: when it was connected to, and before it began anew.
    seen: Leases,
    /// What the canary says now.
    longest_ms: u64,
    /// Its identity and since when it counts; `None` when it is not there.
    epoch: Option<String>,
}

/// By class of length: the longest of them, in milliseconds, and when the last one is over.
#[derive(Debug, Default)]
struct Leases(BTreeMap<u32, (u64, Moment)>);

impl Leases {
    fn note(&mut self, length_ms: u64, now: Moment) {
        let ends = now.after(Duration::from_millis(length_ms));
        let class = self.0.entry(length_ms.max(1).ilog2()).or_insert((0, ends));
        *class = (class.0.max(length_ms), class.1.max(ends));
    }

    /// Those that may be alive: length and what is left.
    fn alive(&mut self, now: Moment) -> impl Iterator<Item = (u64, Duration)> + '_ {
        self.0.retain(|_, (_, ends)| *ends > now);
        self.0.values().map(move |(length_ms, ends)| (*length_ms, ends.since(now)))
    }
}

impl RestartGuard {
    pub(in crate::engines) fn new(prefix: &str) -> RestartGuard {
        RestartGuard { canary: names::canary(prefix), known: Mutex::default() }
    }

    /// A lease of this length is about to be asked for.
    pub(in crate::engines) fn note(&self, lease: Duration, now: Moment) {
        self.known().own.note(millis(lease), now);
    }

    /// Adds what the guarded scripts need behind their own arguments.
    pub(in crate::engines) fn fill(&self, command: &mut Cmd, now: Moment) {
        command.arg(&self.canary).arg(self.known().describe(now));
    }

    /// Asks for the canary, to know of it when it is gone.
    pub(in crate::engines) fn ask(&self) -> Cmd {
        let mut command = redis::cmd("GET");
        command.arg(&self.canary);
        command
    }

    /// Takes the answer to [`ask`](RestartGuard::ask): others may have longer leases than we.
    pub(in crate::engines) fn learn(&self, answer: &Value, look: Look, now: Moment) {
        let mut known = self.known();
        let Some((epoch, longest)) = read_canary(answer) else {
            // The next one is of a server that was emptied.
            known.epoch = None;
            return;
        };
        // Where only the longest is another, it has been forgotten in the right way. Else the server may never have known what we
        // do: it was promoted with an older copy, or emptied, and the canary is from a client that knew less.
        if look == Look::First || known.epoch.as_deref() != Some(epoch) {
            let before = known.longest_ms;
            known.seen.note(before, now);
            known.seen.note(longest, now);
            known.epoch = Some(epoch.to_owned());
        }
        known.longest_ms = longest;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

impl Known {
    /// `longest[:length:left]…`, as guard.lua reads it.
    fn describe(&mut self, now: Moment) -> String {
        let seen = self.seen.alive(now).map(|(length_ms, _)| length_ms).max();
        let mut text = self.longest_ms.max(seen.unwrap_or(0)).to_string();
        for (length_ms, left) in self.own.alive(now) {
            // Writing into a string cannot fail.
            let _ = write!(text, ":{length_ms}:{}", millis(left));
        }
        text
    }
}

/// What stands before the longest lease in a canary, and that, in milliseconds.
fn read_canary(answer: &Value) -> Option<(&str, u64)> {
    let Value::BulkString(canary) = answer else { return None };
    let (epoch, longest) = std::str::from_utf8(canary).ok()?.rsplit_once(' ')?;
    Some((epoch, longest.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::from_nanos(1_000_000_000);

    fn canary(longest: u64) -> Value {
        canary_since(17, longest)
    }

    fn canary_since(since: u64, longest: u64) -> Value {
        Value::BulkString(format!("abc:def {since} {longest}").into_bytes())
    }

    fn described(guard: &RestartGuard, after_ms: u64) -> String {
        guard.known().describe(START.after(Duration::from_millis(after_ms)))
    }

    #[test]
    fn a_lease_counts_until_it_is_over() {
        let guard = RestartGuard::new("app:");
        guard.note(Duration::from_secs(86_400), START);
        guard.note(Duration::from_secs(30), START);
        guard.note(Duration::from_secs(20), START);
        assert_eq!(described(&guard, 1000), "0:30000:29000:86400000:86399000");
        assert_eq!(described(&guard, 30_000), "0:86400000:86370000");
        assert_eq!(described(&guard, 86_400_000), "0");
    }

    #[test]
    fn what_others_have_is_as_the_server_says_unless_it_is_another_one() {
        let guard = RestartGuard::new("app:");
        guard.learn(&canary(60_000), Look::First, START);
        guard.learn(&canary(2_000_000), Look::Again, START);
        assert_eq!(described(&guard, 1), "2000000");
        guard.learn(&canary(30_000), Look::Again, START);
        assert_eq!(described(&guard, 1), "60000");
        assert_eq!(described(&guard, 60_000), "30000");
        // Gone, or of another type: what is known stays.
        guard.learn(&Value::Nil, Look::First, START);
        assert_eq!(described(&guard, 60_000), "30000");
        // A promoted replica with a copy from before.
        guard.learn(&canary(10_000), Look::First, START);
        assert_eq!((described(&guard, 29_999), described(&guard, 60_000)), ("30000".into(), "10000".into()));
    }

    #[test]
    fn what_was_known_counts_on_when_the_canary_begins_anew_or_is_gone() {
        let (day, new) = (86_400_000, canary_since(18, 10_000));
        for is_gone in [false, true] {
            let guard = RestartGuard::new("app:");
            guard.learn(&canary(10_000), Look::First, START);
            guard.learn(&canary(day), Look::Again, START);
            if is_gone {
                guard.learn(&Value::Nil, Look::Again, START);
            }
            // Also as a copy from before would be.
            let again = if is_gone { canary(10_000) } else { new.clone() };
            guard.learn(&again, Look::Again, START);
            assert_eq!(described(&guard, day - 1), day.to_string());
            assert_eq!(described(&guard, day), "10000");
        }
    }
}
