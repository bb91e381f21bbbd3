//! Replies of a Redis server.

use std::fmt::{self, Display};

/// A reply of Redis (RESP2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A short text such as `OK`.
    Simple(String),
    /// An error reply, which begins with its code: `NOAUTH Authentication required.`
    Error(String),
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the number, also if it was sent as text. Panics on any other reply.
    #[track_caller]
    pub fn int(&self) -> i64 {
        let parsed = match self {
            Reply::Int(number) => Some(*number),
            Reply::Simple(_) | Reply::Bulk(_) => self.to_string().parse().ok(),
            _ => None,
        };
        parsed.unwrap_or_else(|| panic!("not a number: {self:?}"))
    }

    /// Returns the text. Panics on any other reply.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Reply::Simple(_) | Reply::Bulk(_) => self.to_string(),
            _ => panic!("not a text: {self:?}"),
        }
    }

    /// Returns the replies in an array. Panics on any other reply.
    #[track_caller]
    pub fn array(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            _ => panic!("not an array: {self:?}"),
        }
    }

    /// Returns whether there is no value.
    pub fn is_nil(&self) -> bool {
        *self == Reply::Nil
    }

    /// Returns the text of an error reply.
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }
}

/// As `redis-cli` shows it when its output is not a terminal.
impl Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Simple(text) | Reply::Error(text) => f.write_str(text),
            Reply::Int(number) => number.fmt(f),
            Reply::Bulk(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Reply::Nil => Ok(()),
            Reply::Array(items) => {
                let lines: Vec<String> = items.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}
