//! The scripts: their text, their hashes, and the nonce that ties a reply to its request.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{Cmd, Value};

use crate::types::error::{Error, Result};

/// A script that the server runs in one go.
#[derive(Debug)]
pub(in crate::engines) struct Script {
    pub(in crate::engines) name: &'static str,
    pub(in crate::engines) text: &'static str,
    beside: Beside,
    /// By dialect.
    assembled: [OnceLock<Assembled>; 3],
}

/// What stands before a script's own text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// The dialect.
    Dialect,
    /// The dialect and `shared.lua`.
    Shared,
    /// The dialect, this text, which carries out the common requests without a function, and `shared.lua`.
    Short(&'static str),
}

/// What differs between servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum Dialect {
    Plain,
    /// With the restart guard.
    Guarded,
    /// Messages go over channels that have hash slots.
    Sharded,
}

/// A script as a server gets it.
#[derive(Debug)]
struct Assembled {
    text: String,
    /// Our own: a wrong hash from one server would be run by all the others.
    sha: String,
}

const BOUNDS: &str = include_str!("bounds.lua");
const SHARED: &str = include_str!("shared.lua");
const CLAIM_SHORT: &str = include_str!("claim_short.lua");
const RELEASE_SHORT: &str = include_str!("release_short.lua");

pub(in crate::engines) static LEAN_CLAIM: Script = Script::new("claim", include_str!("lean_claim.lua"));
pub(in crate::engines) static LEAN_RELEASE: Script = Script::new("release", include_str!("lean_release.lua"));
pub(in crate::engines) static CLAIM: Script =
    Script::beside(Beside::Short(CLAIM_SHORT), "claim", include_str!("claim.lua"));
pub(in crate::engines) static CLAIM_ALL: Script = Script::with_shared("claim", include_str!("claim_all.lua"));
pub(in crate::engines) static RELEASE: Script =
    Script::beside(Beside::Short(RELEASE_SHORT), "release", include_str!("release.lua"));
pub(in crate::engines) static BREAK: Script = Script::with_shared("break", include_str!("break.lua"));
pub(in crate::engines) static AMEND: Script = Script::with_shared("amend", include_str!("amend.lua"));
pub(in crate::engines) static ADOPT: Script = Script::with_shared("adopt", include_str!("adopt.lua"));
/// The most frequent script: it inlines the one shared function that it needs.
pub(in crate::engines) static RENEW: Script = Script::beside(Beside::Dialect, "renew", include_str!("renew.lua"));
pub(in crate::engines) static RENEW_GROUP: Script = Script::with_shared("renew", include_str!("renew_group.lua"));
pub(in crate::engines) static CONFIRM: Script = Script::with_shared("confirm", include_str!("confirm.lua"));
pub(in crate::engines) static SHOW: Script = Script::with_shared("show", include_str!("show.lua"));
pub(in crate::engines) static HISTORY_WRITE: Script = Script::new("history", include_str!("history_write.lua"));
pub(in crate::engines) static HISTORY_READ: Script = Script::new("history", include_str!("history_read.lua"));
pub(in crate::engines) static TICK_WRITE: Script = Script::new("tick", include_str!("tick_write.lua"));
pub(in crate::engines) static TICK_READ: Script = Script::new("tick", include_str!("tick_read.lua"));

/// The scripts that a lock may need in the middle of its life, when a reply that says that the server lacks one may be lost.
pub(in crate::engines) static PRELOADED: [&Script; 6] =
    [&LEAN_CLAIM, &LEAN_RELEASE, &CLAIM, &RELEASE, &RENEW, &RENEW_GROUP];

impl Script {
    /// A script that is the same on every server and needs no other text.
    pub(in crate::engines) const fn new(name: &'static str, text: &'static str) -> Script {
        Script::beside(Beside::Nothing, name, text)
    }

    const fn with_shared(name: &'static str, text: &'static str) -> Script {
        Script::beside(Beside::Shared, name, text)
    }

    const fn beside(beside: Beside, name: &'static str, text: &'static str) -> Script {
        Script { name, text, beside, assembled: [const { OnceLock::new() }; 3] }
    }

    /// Returns the call by hash; a server that does not know it is given the text next.
    pub(in crate::engines) fn by_hash(&self, dialect: Dialect) -> Cmd {
        let mut command = Cmd::new();
        self.begin(&mut command, dialect, false);
        command
    }

    pub(in crate::engines) fn by_text(&self, dialect: Dialect) -> Cmd {
        let mut command = Cmd::new();
        self.begin(&mut command, dialect, true);
        command
    }

    /// Begins the call of the script in an empty command: by its text, or by its hash.
    pub(in crate::engines) fn begin(&self, command: &mut Cmd, dialect: Dialect, by_text: bool) {
        let assembled = self.assembled(dialect);
        match by_text {
            true => command.arg("EVAL").arg(&assembled.text),
            false => command.arg("EVALSHA").arg(&assembled.sha),
        };
    }

    /// Returns the hash and the text.
    pub(in crate::engines) fn hash_and_text(&self, dialect: Dialect) -> (&str, &str) {
        let assembled = self.assembled(dialect);
        (&assembled.sha, &assembled.text)
    }

    fn assembled(&self, dialect: Dialect) -> &Assembled {
        self.assembled[dialect as usize].get_or_init(|| {
            let text = match self.beside {
                Beside::Nothing => self.text.to_owned(),
                Beside::Dialect => [dialect.text(), self.text].concat(),
                Beside::Shared => [dialect.text(), BOUNDS, SHARED, self.text].concat(),
                Beside::Short(short) => [dialect.text(), BOUNDS, short, SHARED, self.text].concat(),
            };
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Assembled { text, sha }
        })
    }
}

impl Dialect {
    /// Returns the text that defines `guard` and `is_sharded` for the scripts.
    fn text(self) -> &'static str {
        match self {
            Dialect::Plain => "local guard, is_sharded = nil, false\n",
            Dialect::Sharded => "local guard, is_sharded = nil, true\n",
            Dialect::Guarded => include_str!("guard.lua"),
        }
    }
}

/// Returns a number that no other request of this process has.
pub(in crate::engines) fn nonce() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The parts of a script's reply, behind the nonce.
#[derive(Debug)]
pub(in crate::engines) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// Checks that the reply is to the request with `nonce`.
    ///
    /// # Errors
    /// Kind `Unknown`: it is the reply to another request, and the outcome of ours is unknown.
    pub(in crate::engines) fn check(answer: Value, nonce: u64) -> Result<Reply> {
        let Value::Array(parts) = answer else { return Err(garbled()) };
        let mut reply = Reply(parts.into_iter());
        let echoed = reply.bytes()?;
        if echoed != nonce.to_string().as_bytes() {
            return Err(Error::unknown("redis: an answer to another question; the connection is not used any more"));
        }
        Ok(reply)
    }

    /// Returns the parts that were not read yet.
    pub(in crate::engines) fn rest(self) -> Vec<Value> {
        self.0.collect()
    }

    /// Reads parts that were checked as a whole.
    pub(in crate::engines) fn of(parts: Vec<Value>) -> Reply {
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
    pub(in crate::engines) fn length(&self) -> usize {
        let length = |part: &Value| if let Value::BulkString(text) = part { text.len() } else { 0 };
        self.0.as_slice().iter().map(length).sum()
    }

    /// Whether everything was read.
    pub(in crate::engines) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

/// Reads the reply to `TIME` in microseconds.
pub(in crate::engines) fn read_time(time: Value) -> Result<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time)
        .map_err(|error| Error::unavailable(format!("redis: its clock cannot be read: {error}")))?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// Returns the error of a script that ran and whose reply cannot be parsed.
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

    static ALL: [&Script; 16] = [
        &LEAN_CLAIM,
        &LEAN_RELEASE,
        &CLAIM,
        &CLAIM_ALL,
        &RELEASE,
        &BREAK,
        &AMEND,
        &ADOPT,
        &RENEW,
        &RENEW_GROUP,
        &CONFIRM,
        &SHOW,
        &HISTORY_WRITE,
        &HISTORY_READ,
        &TICK_WRITE,
        &TICK_READ,
    ];

    #[test]
    fn every_grant_passes_the_guard_and_every_message_its_slot() {
        for dialect in [Dialect::Plain, Dialect::Guarded, Dialect::Sharded] {
            for script in ALL.iter().filter(|script| script.beside != Beside::Nothing) {
                assert!(script.assembled(dialect).text.starts_with(dialect.text()), "{}", script.name);
            }
        }
        // Every grant needs a token.
        let token = &SHARED[SHARED.find("local function next_token").unwrap()..];
        assert!(token.find("guard().quarantine").unwrap() < token.find("redis.pcall").unwrap());
        for script in [&RENEW, &RENEW_GROUP, &ADOPT] {
            assert!(script.text.contains("guard().note_renewal()"), "{}", script.name);
        }
        for script in ALL {
            assert!(!script.text.contains("PUBLISH"), "{}: `publish` knows the channel", script.name);
        }
        assert_eq!(SHARED.matches("'PUBLISH'").count(), 1);
        // The short way of a release makes a token of its own, where there is no guard, and knows the channel, too.
        assert!(RELEASE_SHORT.find("elseif guard or").unwrap() < RELEASE_SHORT.find("'SET', fence").unwrap());
        assert!(RELEASE_SHORT.find("if is_sharded then").unwrap() < RELEASE_SHORT.find("'SPUBLISH'").unwrap());
        for given in ["'SET', lock", "'SET', fence", "PUBLISH"] {
            assert!(!CLAIM_SHORT.contains(given), "{given}: it grants nothing");
        }
    }

    #[test]
    fn the_short_ways_define_no_function_and_print_few_numbers() {
        for (name, text) in [("claim", CLAIM_SHORT), ("release", RELEASE_SHORT), ("bounds", BOUNDS)] {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<String>();
            assert!(!code.contains("function"), "{name}: the server makes each anew at every call");
            assert!(!code.contains("tostring("), "{name}");
        }
        assert!(!RELEASE_SHORT.contains("format") && !RELEASE_SHORT.contains("tonumber"));
    }

    #[test]
    fn scripts_have_no_shebang_and_never_print_numbers_by_tostring() {
        for script in ALL {
            let text = &script.assembled(Dialect::Guarded).text;
            assert!(!text.contains("#!"), "{}: such a script is refused when memory is short", script.name);
            assert!(!text.contains("tostring("), "{}", script.name);
        }
    }
}
