//! The scripts: their text, their hashes, and the nonce that ties an answer to its question.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Cmd, Value};

use crate::types::error::{Error, Result};

/// A script that the server runs in one go.
#[derive(Debug)]
pub(in crate::engines) struct Script {
    pub(in crate::engines::redis) name: &'static str,
    pub(in crate::engines) text: &'static str,
    /// By dialect.
    wordings: [OnceLock<Wording>; 3],
}

/// What the servers of an engine need to be told beyond the plain scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines::redis) enum Dialect {
    Plain,
    /// With the restart guard.
    Guarded,
    /// Messages go over channels that have slots.
    Sharded,
}

/// A script in a dialect.
#[derive(Debug)]
struct Wording {
    text: Cow<'static, str>,
    /// Our own: what one server says that it is would be run by all the others.
    sha: String,
}

const FENCE: &str = include_str!("fence.lua");
const GUARD: &str = concat!(include_str!("guard_leases.lua"), include_str!("guard.lua"));
const GUARD_RENEWAL: &str = concat!(include_str!("guard_leases.lua"), include_str!("guard_renewal.lua"));

pub(in crate::engines::redis) static CLAIM: Script = Script::new(
    "claim",
    concat!(
        include_str!("clock.lua"),
        include_str!("failure.lua"),
        include_str!("fence.lua"),
        "local wake = ARGV[2]\n",
        include_str!("read.lua"),
        include_str!("budget.lua"),
        "local function claim(lock, queue, waiters, fence, holders, leases, attempt, lease_ms, how, record)\n",
        include_str!("set_lock.lua"),
        include_str!("queue.lua"),
        include_str!("enqueue.lua"),
        include_str!("group.lua"),
        include_str!("handoff.lua"),
        include_str!("claim_group.lua"),
        include_str!("claim.lua"),
        "end\n",
        include_str!("claim_all.lua")
    ),
);
pub(in crate::engines::redis) static RELEASE: Script = Script::new(
    "release",
    concat!(
        include_str!("failure.lua"),
        include_str!("read.lua"),
        include_str!("budget.lua"),
        "local function release(lock, queue, waiters, fence, holders, leases, attempt, held)\n",
        include_str!("clock.lua"),
        include_str!("fence.lua"),
        include_str!("set_lock.lua"),
        include_str!("queue.lua"),
        include_str!("group.lua"),
        include_str!("handoff.lua"),
        include_str!("release.lua"),
        "end\n",
        include_str!("release_all.lua")
    ),
);
pub(in crate::engines::redis) static BREAK: Script = Script::new(
    "break",
    concat!(
        include_str!("clock.lua"),
        include_str!("read.lua"),
        include_str!("budget.lua"),
        include_str!("head.lua"),
        include_str!("fence.lua"),
        include_str!("set_lock.lua"),
        include_str!("queue.lua"),
        include_str!("group.lua"),
        include_str!("handoff.lua"),
        include_str!("break.lua")
    ),
);
pub(in crate::engines::redis) static AMEND: Script = Script::new(
    "amend",
    concat!(
        include_str!("clock.lua"),
        include_str!("read.lua"),
        include_str!("budget.lua"),
        include_str!("head.lua"),
        include_str!("set_lock.lua"),
        include_str!("queue.lua"),
        include_str!("group.lua"),
        include_str!("amend.lua")
    ),
);
pub(in crate::engines::redis) static ADOPT: Script = Script::new(
    "adopt",
    concat!(
        include_str!("clock.lua"),
        include_str!("read.lua"),
        include_str!("budget.lua"),
        include_str!("head.lua"),
        include_str!("set_lock.lua"),
        include_str!("queue.lua"),
        include_str!("group.lua"),
        include_str!("adopt.lua")
    ),
);
pub(in crate::engines::redis) static CLAIM_ALL: Script = Script::new(
    "claim",
    concat!(include_str!("clock.lua"), include_str!("fence.lua"), include_str!("read.lua"), include_str!("gather.lua")),
);
pub(in crate::engines::redis) static RENEW: Script =
    Script::new("renew", concat!(include_str!("read.lua"), include_str!("renew.lua")));
pub(in crate::engines::redis) static RENEW_GROUP: Script =
    Script::new("renew", concat!(include_str!("read.lua"), include_str!("renew_group.lua")));
pub(in crate::engines::redis) static CONFIRM: Script =
    Script::new("confirm", concat!(include_str!("read.lua"), include_str!("confirm.lua")));
pub(in crate::engines::redis) static SHOW: Script =
    Script::new("show", concat!(include_str!("read.lua"), include_str!("show.lua")));
pub(in crate::engines::redis) static HISTORY_WRITE: Script = Script::new("history", include_str!("journal.lua"));
pub(in crate::engines::redis) static HISTORY_READ: Script = Script::new("history", include_str!("journal_read.lua"));

#[cfg(test)]
static ALL: [&Script; 12] = [
    &CONFIRM,
    &CLAIM,
    &CLAIM_ALL,
    &RELEASE,
    &BREAK,
    &AMEND,
    &ADOPT,
    &RENEW,
    &RENEW_GROUP,
    &SHOW,
    &HISTORY_WRITE,
    &HISTORY_READ,
];

impl Script {
    pub(in crate::engines) const fn new(name: &'static str, text: &'static str) -> Script {
        Script { name, text, wordings: [const { OnceLock::new() }; 3] }
    }

    /// The call by hash; a server that does not know it is given the text next.
    pub(in crate::engines::redis) fn by_hash(&self, dialect: Dialect) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.wording(dialect).sha);
        command
    }

    pub(in crate::engines::redis) fn by_text(&self, dialect: Dialect) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&*self.wording(dialect).text);
        command
    }

    fn wording(&self, dialect: Dialect) -> &Wording {
        self.wordings[dialect as usize].get_or_init(|| {
            let text = dialect.reword(self);
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Wording { text, sha }
        })
    }
}

impl Dialect {
    fn reword(self, script: &Script) -> Cow<'static, str> {
        match self {
            Dialect::Plain => script.text.into(),
            // Every grant needs a token, so that is where the guard stands.
            Dialect::Guarded if script.text.contains(FENCE) => {
                script.text.replace(FENCE, &[FENCE, GUARD].concat()).into()
            }
            Dialect::Guarded if [RENEW.name, ADOPT.name].contains(&script.name) => {
                [GUARD_RENEWAL, script.text].concat().into()
            }
            Dialect::Guarded => script.text.into(),
            Dialect::Sharded => script.text.replace("'PUBLISH', 'distlock:wake:' ..", SHARDED_PUBLISH).into(),
        }
    }
}

/// The fence's key has the tag of the lock, so the channel has its slot.
const SHARDED_PUBLISH: &str = "'SPUBLISH', 'distlock:wake:' .. fence .. ':' ..";

/// A number that no other request of this process has.
pub(in crate::engines::redis) fn nonce() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The parts of a script's answer, behind the nonce.
#[derive(Debug)]
pub(in crate::engines) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// Checks that the answer is to the question with `nonce`.
    ///
    /// # Errors
    /// Kind `Unknown`: it is somebody else's answer, and what became of ours nobody knows.
    pub(in crate::engines::redis) fn check(answer: Value, nonce: u64) -> Result<Reply> {
        let Value::Array(parts) = answer else { return Err(garbled()) };
        let mut reply = Reply(parts.into_iter());
        let echoed = reply.bytes()?;
        if echoed != nonce.to_string().as_bytes() {
            return Err(Error::unknown("redis: an answer to another question; the connection is not used any more"));
        }
        Ok(reply)
    }

    /// What was not read yet.
    pub(in crate::engines::redis) fn rest(self) -> Vec<Value> {
        self.0.collect()
    }

    /// Reads parts that were checked as a whole.
    pub(in crate::engines::redis) fn of(parts: Vec<Value>) -> Reply {
        Reply(parts.into_iter())
    }

    pub(in crate::engines) fn int(&mut self) -> Result<i64> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(garbled()),
        }
    }

    pub(in crate::engines) fn unsigned(&mut self) -> Result<u64> {
        u64::try_from(self.int()?).map_err(|_| garbled())
    }

    pub(in crate::engines) fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            _ => Err(garbled()),
        }
    }

    pub(in crate::engines) fn word(&mut self) -> Result<String> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => String::from_utf8(bytes).map_err(|_| garbled()),
            Some(Value::SimpleString(text)) => Ok(text),
            _ => Err(garbled()),
        }
    }

    /// A part that has parts of its own.
    pub(in crate::engines) fn part(&mut self) -> Result<Reply> {
        match self.0.next() {
            Some(Value::Array(parts)) => Ok(Reply(parts.into_iter())),
            _ => Err(garbled()),
        }
    }

    /// How many bytes of text it has.
    pub(in crate::engines::redis) fn length(&self) -> usize {
        let length = |part: &Value| if let Value::BulkString(text) = part { text.len() } else { 0 };
        self.0.as_slice().iter().map(length).sum()
    }

    /// Whether everything was read.
    pub(in crate::engines) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

/// Reads the reply to `TIME` in microseconds.
pub(in crate::engines::redis) fn read_time(time: Value) -> Result<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time)
        .map_err(|error| Error::unavailable(format!("redis: its clock cannot be read: {error}")))?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// The script ran, and its answer makes no sense.
pub(in crate::engines) fn garbled() -> Error {
    Error::unknown("redis: a script's answer is not understood")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::ErrorKind;

    #[test]
    fn an_answer_to_another_question_is_unknown() {
        let answer = |nonce: &str| Value::Array(vec![Value::BulkString(nonce.into()), Value::Int(7)]);
        assert_eq!(Reply::check(answer("41"), 41).unwrap().int().unwrap(), 7);
        for wrong in [answer("42"), answer(""), Value::Nil, Value::Array(vec![]), Value::Int(41)] {
            assert_eq!(Reply::check(wrong, 41).unwrap_err().kind(), ErrorKind::Unknown);
        }
    }

    #[test]
    fn every_grant_passes_the_guard_and_every_message_its_slot() {
        for script in [&CLAIM, &RELEASE, &BREAK] {
            assert!(script.wording(Dialect::Guarded).text.contains(GUARD), "{}", script.name);
            assert!(script.wording(Dialect::Sharded).text.contains("'SPUBLISH'"), "{}", script.name);
        }
        assert!(CLAIM_ALL.wording(Dialect::Guarded).text.contains(GUARD));
        for script in [&RENEW, &RENEW_GROUP, &ADOPT] {
            assert!(script.wording(Dialect::Guarded).text.contains(GUARD_RENEWAL), "{}", script.name);
        }
        for script in ALL {
            assert!(!script.wording(Dialect::Sharded).text.contains("'PUBLISH'"), "{}", script.name);
            assert_eq!(script.wording(Dialect::Plain).text, script.text);
        }
    }

    #[test]
    fn scripts_have_no_shebang_and_never_print_numbers_by_tostring() {
        for script in ALL {
            assert!(!script.text.contains("#!"), "{}: such a script is refused when memory is short", script.name);
            assert!(!script.text.contains("tostring("), "{}", script.name);
        }
    }
}
