//! Commands that do by themselves what elsewhere takes a script, and which of them a server has.

use std::fmt;

use redis::{Cmd, ErrorKind, RedisResult, Value};

use crate::types::token::AttemptId;

/// The condition of `DELEX`.
const IF_EQUAL: &str = "IFEQ";

/// A command that deletes a key if it has a given value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum CompareAndDelete {
    /// `DELIFEQ key value`, since Valkey 9.0.
    DelIfEq,
    /// `DELEX key IFEQ value`, since Redis 8.4.
    DelEx,
}

impl CompareAndDelete {
    const ALL: [CompareAndDelete; 2] = [CompareAndDelete::DelIfEq, CompareAndDelete::DelEx];

    pub(in crate::engines) fn name(self) -> &'static str {
        match self {
            CompareAndDelete::DelIfEq => "DELIFEQ",
            CompareAndDelete::DelEx => "DELEX",
        }
    }

    /// Returns the command that deletes `key` if `value` is its value. The reply is 1 when it was deleted, 0 when not, and
    /// an error when the key is no string.
    pub(in crate::engines) fn command(self, key: &[u8], value: &[u8]) -> Cmd {
        let mut command = Cmd::with_capacity(4, self.name().len() + key.len() + value.len() + IF_EQUAL.len());
        command.arg(self.name());
        command.arg(key);
        if self == CompareAndDelete::DelEx {
            command.arg(IF_EQUAL);
        }
        command.arg(value);
        command
    }
}

/// The native commands that a connection can use: its server has them, and its user may send them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::engines) struct Natives {
    pub(in crate::engines) compare_and_delete: Option<CompareAndDelete>,
}

impl Natives {
    /// Returns the question which of them the server lists.
    pub(in crate::engines) fn question() -> Cmd {
        let mut question = redis::cmd("COMMAND");
        question.arg("INFO");
        for candidate in CompareAndDelete::ALL {
            question.arg(candidate.name());
        }
        question
    }

    /// Returns the commands that find them out, until one is carried out: those that the reply to
    /// [`question`](Natives::question) lists are tried, on a key behind `prefix` with a value that no key has. A version would
    /// not tell whether the user may send them.
    pub(in crate::engines) fn trials(prefix: &str, listed: RedisResult<Value>) -> Vec<(CompareAndDelete, Cmd)> {
        let (key, value) = (format!("{prefix}distlock-natives"), AttemptId::random().to_string());
        let trial = |native: CompareAndDelete| (native, native.command(key.as_bytes(), value.as_bytes()));
        candidates(listed).into_iter().map(trial).collect()
    }

    /// Returns what the reply to the trial of a command shows; `None` if the server does not carry it out. A node of a cluster
    /// that does not serve the key's hash slot says so only after it has checked the command and the user's rights.
    ///
    /// # Errors
    /// Those of the connection.
    pub(in crate::engines) fn tried(
        native: CompareAndDelete,
        reply: RedisResult<Value>,
    ) -> RedisResult<Option<Natives>> {
        let found = Natives { compare_and_delete: Some(native) };
        match reply {
            Ok(reply) => Ok(matches!(reply, Value::Int(_)).then_some(found)),
            Err(error) if !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => Err(error),
            Err(error) => Ok(matches!(error.code(), Some("MOVED" | "ASK" | "WRONGTYPE")).then_some(found)),
        }
    }
}

impl fmt::Display for Natives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.compare_and_delete.map_or("none", CompareAndDelete::name))
    }
}

/// Returns the commands to try: those that the server lists, or all where it does not list commands. So a server
/// without them does not count refused commands.
fn candidates(listed: RedisResult<Value>) -> Vec<CompareAndDelete> {
    let Ok(Value::Array(found)) = listed else { return CompareAndDelete::ALL.into() };
    let is_there = |(_, info): &(CompareAndDelete, Value)| matches!(info, Value::Array(parts) if !parts.is_empty());
    CompareAndDelete::ALL.into_iter().zip(found).filter(is_there).map(|(candidate, _)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_its_words() {
        let packed = |native: CompareAndDelete| String::from_utf8(native.command(b"a", b"v w").get_packed_command());
        assert_eq!(packed(CompareAndDelete::DelIfEq).unwrap(), "*3\r\n$7\r\nDELIFEQ\r\n$1\r\na\r\n$3\r\nv w\r\n");
        let delex = "*4\r\n$5\r\nDELEX\r\n$1\r\na\r\n$4\r\nIFEQ\r\n$3\r\nv w\r\n";
        assert_eq!(packed(CompareAndDelete::DelEx).unwrap(), delex);
    }
}
