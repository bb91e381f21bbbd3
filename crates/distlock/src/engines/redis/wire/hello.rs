//! What a server says of itself when a connection is opened.

use redis::{Cmd, Value};

use crate::engines::redis::protocol::names::Fences;
use crate::engines::redis::wire::options::{Options, Protocol};

/// A server's reply to `HELLO`, which no access list forbids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hello {
    /// The first two numbers of its version.
    version: Option<[u32; 2]>,
    /// Whether it is a node of a cluster; `None` when it does not say.
    is_cluster: Option<bool>,
}

impl Hello {
    /// Returns the request, in the protocol that the connection speaks already.
    pub(super) fn ask(protocol: Protocol) -> Cmd {
        let mut hello = redis::cmd("HELLO");
        hello.arg(match protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        });
        hello
    }

    /// Reads the reply. What is not understood counts as not said.
    pub(super) fn read(answer: &Value) -> Hello {
        let version = field(answer, "version").and_then(|version| {
            let mut numbers = version.split('.').map(str::parse);
            Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
        });
        Hello { version, is_cluster: field(answer, "mode").map(|mode| mode == "cluster") }
    }

    /// Returns whether the server says that it is of this version or a later one.
    pub(super) fn is_since(&self, version: [u32; 2]) -> bool {
        self.version.is_some_and(|its| its >= version)
    }

    /// Returns which keys are the fences. A node of a cluster refuses a script whose keys are of several hash slots, also
    /// when it is used as a single server; one that does not say what it is may be one.
    pub(super) fn fences(&self, options: &Options) -> Fences {
        match self.is_cluster {
            Some(false) if !options.is_cluster => Fences::of_prefix(&options.prefix),
            _ => Fences::OfLock,
        }
    }
}

/// Returns a field of the reply: a map in the new protocol, names and values in turn in the old one.
fn field<'a>(answer: &'a Value, name: &str) -> Option<&'a str> {
    match answer {
        Value::Map(fields) => fields.iter().find(|(key, _)| text(key) == Some(name)).and_then(|(_, value)| text(value)),
        Value::Array(parts) => {
            parts.chunks_exact(2).find(|pair| text(&pair[0]) == Some(name)).and_then(|pair| text(&pair[1]))
        }
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_version_is_compared_by_its_numbers() {
        let hello = |version| Hello::read(&Value::Map(vec![(word("version"), word(version))]));
        assert!(
            ["6.2.0", "6.10.1", "7.0", "10.0.0-rc1", "8.0.1"].iter().all(|version| hello(version).is_since([6, 2]))
        );
        assert!(!["6.1.9", "5.0", "6", "", "x.2", "255"].iter().any(|version| hello(version).is_since([6, 2])));
    }

    #[test]
    fn a_node_of_a_cluster_says_so_in_both_protocols() {
        for (mode, is_cluster) in [("standalone", false), ("cluster", true), ("sentinel", false)] {
            let map = Value::Map(vec![(word("server"), word("redis")), (word("mode"), word(mode))]);
            let list = Value::Array(vec![word("proto"), Value::Int(2), word("mode"), word(mode)]);
            for answer in [map, list] {
                assert_eq!(Hello::read(&answer).is_cluster, Some(is_cluster), "{answer:?}");
            }
        }
        for answer in [Value::Nil, Value::Okay, Value::Array(vec![word("mode")]), Value::Map(Vec::new())] {
            assert_eq!(Hello::read(&answer), Hello::default(), "{answer:?}");
        }
    }
}
