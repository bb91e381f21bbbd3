//! Replies of the server, as bytes.

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Status(&'static str),
    Error(String),
    Array(Vec<Reply>),
    /// A pushed message.
    Push(Vec<Reply>),
}

impl Reply {
    pub(super) fn text(text: impl Into<Vec<u8>>) -> Reply {
        Reply::Bulk(text.into())
    }

    pub(super) fn wrong_type() -> Reply {
        Reply::Error("WRONGTYPE Operation against a key holding the wrong kind of value".into())
    }

    /// Encodes the reply in RESP3.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Reply::Nil => to.extend(b"_\r\n"),
            Reply::Int(number) => to.extend(format!(":{number}\r\n").bytes()),
            Reply::Status(word) => to.extend(format!("+{word}\r\n").bytes()),
            Reply::Error(text) => to.extend(format!("-{}\r\n", text.replace(['\r', '\n'], " ")).bytes()),
            Reply::Bulk(bytes) => {
                to.extend(format!("${}\r\n", bytes.len()).bytes());
                to.extend(bytes);
                to.extend(b"\r\n");
            }
            Reply::Array(parts) => encode_all(b'*', parts, to),
            Reply::Push(parts) => encode_all(b'>', parts, to),
        }
    }
}

fn encode_all(mark: u8, parts: &[Reply], to: &mut Vec<u8>) {
    to.push(mark);
    to.extend(format!("{}\r\n", parts.len()).bytes());
    parts.iter().for_each(|part| part.encode(to));
}
