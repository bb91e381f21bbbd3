//! The requests of the lean scripts, and their replies.
//!
//! A lean script serves a lock that is free and has no waiters, or that its holder releases while it has none. It leaves
//! every other request to the full script. Its arguments and its reply are as few and as short as they can be.

use std::ops::Range;

use redis::{Cmd, Value};

use crate::engines::redis::protocol::names::{self, Fences};
use crate::engines::redis::protocol::script::{Dialect, LEAN_CLAIM, LEAN_RELEASE};
use crate::engines::shared::record_text::append_record;
use crate::types::key::Key;
use crate::types::owner::Record;
use crate::types::record_json::write_number;
use crate::types::token::{AttemptId, FencingToken};

/// The times in microseconds that have 16 digits, of the years 2001 to 2286: the scripts compare them as text.
const TIMES: Range<u64> = 1_000_000_000_000_000..10_000_000_000_000_000;
/// Room for what a request has beside the lock's name: two ids, and a record of ordinary length.
const OTHER_BYTES: usize = 256;

/// A claim or a release for a lean script: its keys and arguments, one behind the other.
#[derive(Debug)]
pub(in crate::engines) struct LeanRequest {
    text: Vec<u8>,
    /// Where the lock's key ends in the text, the queue's key, and the attempt with a space behind it. What is left is the
    /// part of the lock's value behind the token. A release has no queue and no such part.
    lock_end: usize,
    queue_end: usize,
    attempt_end: usize,
    /// `None` for a release.
    lease: Option<LeanLease>,
}

/// The lease that a claim asks for, in milliseconds, and until when the server may grant it, by its clock.
#[derive(Debug, Clone, Copy)]
pub(in crate::engines) struct LeanLease {
    pub(in crate::engines) lease_ms: u64,
    pub(in crate::engines) not_after_us: u64,
}

/// What a grant wrote behind the attempt into the lock's value, as far as its holder knows.
#[derive(Debug, Clone, Copy)]
pub(in crate::engines) struct Written<'a> {
    pub(in crate::engines) token: FencingToken,
    /// The channel for messages to this process.
    pub(in crate::engines) wake: Option<AttemptId>,
    pub(in crate::engines) record: &'a Record,
}

/// The lock of a request that is being made.
#[derive(Debug)]
pub(in crate::engines) struct LeanLock {
    /// The lock's key, with room for what follows.
    text: String,
    attempt: AttemptId,
}

impl LeanLock {
    /// Returns the lock of a request; `None` when no lock may have this name here.
    pub(in crate::engines) fn new(prefix: &str, key: &Key, attempt: AttemptId) -> Option<LeanLock> {
        let key = key.as_str();
        let mut text = String::with_capacity(2 * (prefix.len() + key.len()) + OTHER_BYTES);
        text.push_str(prefix);
        text.push_str(key);
        names::may_be_lock(&text).then_some(LeanLock { text, attempt })
    }

    /// Returns the key of the lock.
    pub(in crate::engines) fn key(&self) -> &str {
        &self.text
    }

    /// Returns the key of the lock's own fence.
    pub(in crate::engines) fn own_fence(&self) -> String {
        own_fence(self.text.clone())
    }

    /// Returns a claim of the lock, with the channel for messages and the record; `None` when only the full script can
    /// tell what is wrong with it.
    pub(in crate::engines) fn claim(
        self,
        lease: LeanLease,
        wake: Option<AttemptId>,
        record: &Record,
    ) -> Option<LeanRequest> {
        let LeanLock { mut text, attempt } = self;
        let lock_end = text.len();
        names::push_companion(&mut text, lock_end, names::QUEUE_SUFFIX);
        let (queue_end, mut text) = (text.len(), text.into_bytes());
        push_attempt(&mut text, attempt);
        let attempt_end = text.len();
        let is_fit = TIMES.contains(&lease.not_after_us) && push_rest(&mut text, wake, record);
        is_fit.then_some(LeanRequest { text, lock_end, queue_end, attempt_end, lease: Some(lease) })
    }

    /// Returns a release of the lock.
    pub(in crate::engines) fn release(self) -> LeanRequest {
        let LeanLock { text, attempt } = self;
        let (lock_end, mut text) = (text.len(), text.into_bytes());
        push_attempt(&mut text, attempt);
        let attempt_end = text.len();
        LeanRequest { text, lock_end, queue_end: lock_end, attempt_end, lease: None }
    }
}

impl LeanRequest {
    /// Returns the lease that a claim asks for: all claims of a call ask for the same.
    pub(in crate::engines) fn lease_ms(&self) -> Option<u64> {
        self.lease.map(|lease| lease.lease_ms)
    }

    /// Returns the key of the lock of a release, and the value that the lock has if `written` is true and it has no
    /// waiters; `None` when no claim can have written that.
    pub(in crate::engines) fn lock_and_value(&mut self, written: &Written<'_>) -> Option<(&[u8], &[u8])> {
        self.text.truncate(self.attempt_end);
        write_number(written.token.get(), &mut self.text);
        let is_fit = push_rest(&mut self.text, written.wake, written.record);
        is_fit.then(|| self.text.split_at(self.lock_end))
    }

    fn lock(&self) -> &[u8] {
        &self.text[..self.lock_end]
    }

    fn queue(&self) -> &[u8] {
        &self.text[self.lock_end..self.queue_end]
    }

    fn attempt(&self) -> &[u8] {
        &self.text[self.queue_end..self.attempt_end]
    }

    fn value_rest(&self) -> &[u8] {
        &self.text[self.attempt_end..]
    }
}

/// Adds how a lock's value begins when it has no waiters.
fn push_attempt(text: &mut Vec<u8>, attempt: AttemptId) {
    text.extend_from_slice(&attempt.hex());
    text.push(b' ');
}

/// Adds the part of a lock's value behind the token. Returns whether the record is short enough.
fn push_rest(text: &mut Vec<u8>, wake: Option<AttemptId>, record: &Record) -> bool {
    text.push(b' ');
    match wake {
        Some(wake) => text.extend_from_slice(&wake.hex()),
        None => text.push(b'-'),
    }
    text.push(b' ');
    append_record(record, text).is_ok()
}

/// Returns the key of a lock's own fence, given the lock's key.
fn own_fence(lock: String) -> String {
    let (lock_end, mut text) = (lock.len(), lock);
    names::push_companion(&mut text, lock_end, names::FENCE_SUFFIX);
    text.split_off(lock_end)
}

/// Returns the call for `requests`: claims for one lease, or releases. Empty when there are none.
pub(in crate::engines) fn call<'a>(
    requests: impl Iterator<Item = &'a LeanRequest> + Clone,
    fences: &Fences,
    nonce: u64,
    by_text: bool,
) -> Cmd {
    let Some(first) = requests.clone().next() else { return Cmd::new() };
    let (count, bytes) =
        requests.clone().fold((0, 0), |(count, bytes), request| (count + 1, bytes + request.text.len()));
    let script = if first.lease.is_some() { &LEAN_CLAIM } else { &LEAN_RELEASE };
    let mut command = Cmd::with_capacity(4 * count + 8, bytes + OTHER_BYTES);
    script.begin(&mut command, Dialect::Plain, by_text);
    let all = |command: &mut Cmd, part: fn(&'a LeanRequest) -> &'a [u8]| {
        for request in requests.clone() {
            command.arg(part(request));
        }
    };
    let Some(lease) = first.lease else {
        command.arg(count);
        all(&mut command, LeanRequest::lock);
        command.arg(nonce);
        all(&mut command, LeanRequest::attempt);
        return command;
    };
    command.arg(2 * count + 1);
    all(&mut command, LeanRequest::lock);
    all(&mut command, LeanRequest::queue);
    match fences {
        Fences::OfPrefix(fence) => command.arg(fence),
        // In a cluster every request is a call of its own.
        Fences::OfLock => command.arg(own_fence(String::from_utf8_lossy(first.lock()).into_owned())),
    };
    // None of them is carried out after its time.
    let times = requests.clone().filter_map(|request| request.lease).map(|lease| lease.not_after_us);
    command.arg(nonce).arg(times.min().unwrap_or(lease.not_after_us)).arg(lease.lease_ms);
    for request in requests {
        command.arg(request.attempt()).arg(request.value_rest());
    }
    command
}

/// The reply of a lean script to a call.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engines) struct LeanReply<'a> {
    /// The server's clock, from a call of claims.
    pub(in crate::engines) server_us: Option<u64>,
    /// The token of the claims; 0 for releases.
    token: u64,
    /// The requests that the full script decides, as the script lists them.
    odd: &'a str,
}

/// The outcome of one request of a lean script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum LeanOutcome {
    /// It was released, or granted with this token.
    Done(u64),
    /// It was left to the full script.
    Odd,
    /// It came after its time, and nothing was done.
    Late,
}

/// What a script lists instead of numbers: the call came too late; the full script decides on all requests.
const LATE: &str = "late";
const ALL: &str = "*";

impl<'a> LeanReply<'a> {
    /// Parses the reply to the call with `nonce` and `count` requests; `None` when it is not one, so that the connection
    /// cannot be trusted.
    pub(in crate::engines) fn read(
        reply: &'a Value,
        nonce: u64,
        count: usize,
        of_claims: bool,
    ) -> Option<LeanReply<'a>> {
        let Value::BulkString(bytes) = reply else { return None };
        let text = std::str::from_utf8(bytes).ok()?;
        let (echoed, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (server_us, token, odd) = match of_claims {
            false => (None, 0, rest),
            true => {
                let (times, odd) = rest.split_once(' ').unwrap_or((rest, ""));
                let (now, token) = times.split_once('/').unwrap_or((times, times));
                (Some(now.parse().ok()?), token.parse().ok()?, odd)
            }
        };
        let is_request = |number: &str| number.parse().is_ok_and(|number| (1..=count).contains(&number));
        let is_list = matches!(odd, "" | LATE | ALL) || odd.split(' ').all(is_request);
        (echoed.parse() == Ok(nonce) && is_list).then_some(LeanReply { server_us, token, odd })
    }

    /// Returns the outcome of a request, counted from 0.
    pub(in crate::engines) fn outcome(&self, at: usize) -> LeanOutcome {
        match self.odd {
            "" => LeanOutcome::Done(self.token),
            LATE => LeanOutcome::Late,
            ALL => LeanOutcome::Odd,
            odd if odd.split(' ').any(|number| number.parse() == Ok(at + 1)) => LeanOutcome::Odd,
            _ => LeanOutcome::Done(self.token),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use redis::Arg;

    use super::*;
    use crate::engines::shared::record_text::write_record;
    use crate::types::owner::{OwnerId, Process};

    const LEASE: LeanLease = LeanLease { lease_ms: 10_000, not_after_us: 1_763_000_000_000_000 };

    fn args(command: &Cmd) -> Vec<String> {
        let text = |arg: Arg<&[u8]>| match arg {
            Arg::Simple(arg) => String::from_utf8(arg.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        command.args_iter().map(text).collect()
    }

    const ATTEMPT: &str = "00000000000000000000000000000001";

    fn record(label: Option<String>) -> Record {
        Record::new(OwnerId::new("req-7").unwrap(), Process::current(), label.map(Into::into), SystemTime::UNIX_EPOCH)
    }

    fn claim_of(record: &Record, key: &str, not_after_us: u64) -> Option<LeanRequest> {
        let lock = LeanLock::new("app:", &Key::new(key).unwrap(), ATTEMPT.parse().unwrap())?;
        lock.claim(LeanLease { not_after_us, ..LEASE }, None, record)
    }

    fn claim(key: &str, not_after_us: u64) -> Option<LeanRequest> {
        claim_of(&record(None), key, not_after_us)
    }

    #[test]
    fn a_call_has_the_keys_and_arguments_that_the_script_reads() {
        let claims = [claim("a", LEASE.not_after_us + 1).unwrap(), claim("b{t}", LEASE.not_after_us).unwrap()];
        let words = args(&call(claims.iter(), &Fences::of_prefix("app:"), 7, false));
        let (attempt, rest) = (&format!("{ATTEMPT} "), &format!(" - {}", write_record(&record(None)).unwrap()));
        let keys = ["app:a", "app:b{t}", "{app:a}:q", "app:b{t}:q", "{app:distlock}:f"];
        assert_eq!((words[0].as_str(), words[1].len(), words[2].as_str()), ("EVALSHA", 40, "5"));
        assert_eq!(words[3..8], keys);
        // The first to be late.
        assert_eq!(words[8..], ["7", "1763000000000000", "10000", attempt, rest, attempt, rest]);
        let words = args(&call(claims[..1].iter(), &Fences::OfLock, 7, true));
        assert_eq!((words[0].as_str(), words[1].as_str()), ("EVAL", LEAN_CLAIM.text));
        assert_eq!(words[2..6], ["3", "app:a", "{app:a}:q", "{app:a}:f"]);
        let release = || LeanLock::new("", &Key::new("a").unwrap(), ATTEMPT.parse().unwrap()).unwrap().release();
        let words = args(&call([release(), release()].iter(), &Fences::OfLock, 8, false));
        assert_eq!(words[2..], ["2", "a", "a", "8", attempt, attempt]);
    }

    #[test]
    fn the_value_that_a_release_knows_is_the_one_that_its_claim_wrote() {
        let (label, token) = (Some("\"eod\" {}".to_owned()), 1_763_000_000_000_000);
        for (record, wake) in [(record(None), None), (record(label), Some(AttemptId::random()))] {
            let lock = || LeanLock::new("app:", &Key::new("b{t}").unwrap(), ATTEMPT.parse().unwrap()).unwrap();
            let claim = lock().claim(LEASE, wake, &record).unwrap();
            // As the script puts it together.
            let stored = [claim.attempt(), token.to_string().as_bytes(), claim.value_rest()].concat();
            let mut release = lock().release();
            let written = Written { token: FencingToken::new(token), wake, record: &record };
            for _ in 0..2 {
                assert_eq!(release.lock_and_value(&written), Some((&b"app:b{t}"[..], stored.as_slice())));
            }
        }
    }

    #[test]
    fn what_the_script_cannot_serve_is_not_sent_to_it() {
        assert!(claim("a", 999_999_999_999_999).is_none(), "its digits could not be compared as text");
        assert!(claim("a", 10_000_000_000_000_000).is_none());
        assert!(claim("{a}:q", LEASE.not_after_us).is_none(), "no lock has this name");
        assert!(claim_of(&record(Some("x".repeat(4000))), "a", LEASE.not_after_us).is_none(), "its record is too long");
    }

    #[test]
    fn a_reply_names_the_requests_that_go_the_long_way() {
        use LeanOutcome::{Done, Late, Odd};
        let read = |text: &str, of_claims, count| {
            let reply = Value::BulkString(text.into());
            let reply = LeanReply::read(&reply, 7, count, of_claims)?;
            Some((reply.server_us, (0..count).map(|at| reply.outcome(at)).collect::<Vec<_>>()))
        };
        assert_eq!(read("7 15", true, 2), Some((Some(15), vec![Done(15); 2])));
        assert_eq!(read("7 15/16 2", true, 2), Some((Some(15), vec![Done(16), Odd])));
        assert_eq!(read("7 15 *", true, 2), Some((Some(15), vec![Odd; 2])));
        assert_eq!(read("7 15 late", true, 1), Some((Some(15), vec![Late])));
        assert_eq!(read("7", false, 1), Some((None, vec![Done(0)])));
        assert_eq!(read("7 1 3", false, 3), Some((None, vec![Odd, Done(0), Odd])));
        for wrong in ["", "8 15", "7 x", "7", "7 15 3", "7 15 0", "7 15 1 x", "7 15/ 1"] {
            assert_eq!(read(wrong, true, 2), None, "{wrong}");
        }
        assert_eq!(LeanReply::read(&Value::Int(7), 7, 1, false), None);
    }
}
