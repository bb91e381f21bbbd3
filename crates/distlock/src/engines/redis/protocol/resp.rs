//! The bytes of replies: where a reply ends, and its value.
//!
//! What scripts and claims reply with is parsed here. Everything else is left to the client crate's parser, whose values
//! and errors are the same.

use redis::{PushKind, RedisResult, Value};

/// How deep a reply may be nested to be parsed here.
const DEPTH: u32 = 8;
/// The longest line: of an error, a short text or a number.
const LONGEST_LINE: usize = 1 << 20;
/// How many elements of a list get room before they have come.
const ROOM: usize = 64;

/// Finds the end of a reply that arrives in parts. It looks at no byte of a value twice.
#[derive(Debug)]
pub(in crate::engines) struct Frame {
    /// Where the next value begins; may be behind what has come.
    at: usize,
    /// How many values are missing.
    missing: usize,
}

/// The bytes are not a reply.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engines) struct Malformed;

impl Default for Frame {
    fn default() -> Self {
        Frame { at: 0, missing: 1 }
    }
}

impl Frame {
    /// Returns the length of the reply that `input` begins with; `None` while a part of it is missing. The next call gets the
    /// same bytes and those behind them.
    pub(in crate::engines) fn end(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        while self.missing > 0 {
            let Some((kind, line)) = header(input.get(self.at..).unwrap_or_default())? else { return Ok(None) };
            let (mut length, mut values) = (1 + line.len() + 2, 0);
            match kind {
                b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
                b'$' | b'=' | b'!' => {
                    if let Some(bytes) = size(line)? {
                        length = length.checked_add(bytes).and_then(|sum| sum.checked_add(2)).ok_or(Malformed)?;
                    }
                }
                b'*' | b'~' | b'>' => values = size(line)?.unwrap_or(0),
                b'%' => values = size(line)?.unwrap_or(0).checked_mul(2).ok_or(Malformed)?,
                // Of the value that follows.
                b'|' => {
                    values = size(line)?.unwrap_or(0).checked_mul(2).and_then(|n| n.checked_add(1)).ok_or(Malformed)?;
                }
                _ => return Err(Malformed),
            }
            self.at = self.at.checked_add(length).ok_or(Malformed)?;
            self.missing = (self.missing - 1).checked_add(values).ok_or(Malformed)?;
        }
        Ok((self.at <= input.len()).then_some(self.at))
    }
}

/// Returns the value of a whole reply.
pub(in crate::engines) fn parse(reply: &[u8]) -> RedisResult<Value> {
    match common(&mut &*reply, DEPTH) {
        Some(value) => Ok(value),
        None => redis::parse_redis_value(reply),
    }
}

/// Returns the value that `rest` begins with, and takes it off; `None` for the kinds that the client crate parses.
fn common(rest: &mut &[u8], depth: u32) -> Option<Value> {
    let (kind, line) = header(rest).ok()??;
    let behind = &rest[1 + line.len() + 2..];
    let value = match kind {
        b':' => Value::Int(number(line)?),
        b'_' if line.is_empty() => Value::Nil,
        b'+' if line == b"OK" => Value::Okay,
        b'$' => match size(line).ok()? {
            None => Value::Nil,
            Some(length) => {
                let (bytes, behind) = behind.split_at_checked(length)?;
                *rest = behind.strip_prefix(b"\r\n")?;
                return Some(Value::BulkString(bytes.to_vec()));
            }
        },
        b'*' if depth > 0 => match size(line).ok()? {
            None => Value::Nil,
            Some(count) => {
                *rest = behind;
                return Some(Value::Array(values(rest, count, depth)?));
            }
        },
        b'>' if depth > 0 => {
            let others = size(line).ok()??.checked_sub(1)?;
            *rest = behind;
            let is_message = matches!(common(rest, 0)?, Value::BulkString(kind) if kind == b"message");
            let data = values(rest, others, depth)?;
            return is_message.then_some(Value::Push { kind: PushKind::Message, data });
        }
        _ => return None,
    };
    *rest = behind;
    Some(value)
}

fn values(rest: &mut &[u8], count: usize, depth: u32) -> Option<Vec<Value>> {
    let mut values = Vec::with_capacity(count.min(ROOM));
    for _ in 0..count {
        values.push(common(rest, depth - 1)?);
    }
    Some(values)
}

/// Returns the kind of the value that `input` begins with, and what stands behind the kind in its line; `None` while the
/// line is not complete.
fn header(input: &[u8]) -> Result<Option<(u8, &[u8])>, Malformed> {
    let Some((kind, text)) = input.split_first() else { return Ok(None) };
    match text.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Ok(Some((*kind, &text[..end]))),
        None if text.len() > LONGEST_LINE => Err(Malformed),
        None => Ok(None),
    }
}

/// Returns the number of bytes or values that a line announces; `None` for a value that is absent.
fn size(line: &[u8]) -> Result<Option<usize>, Malformed> {
    let size = number(line).ok_or(Malformed)?;
    if size < 0 { Ok(None) } else { usize::try_from(size).map(Some).map_err(|_| Malformed) }
}

fn number(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the replies in `input`, which comes in parts of `part` bytes, and whether something follows that is none.
    fn replies(input: &[u8], part: usize) -> (Vec<usize>, bool) {
        let (mut ends, mut start, mut frame) = (Vec::new(), 0, Frame::default());
        let parts = (1..=input.len().div_ceil(part)).map(|parts| (parts * part).min(input.len()));
        for come in parts {
            loop {
                match frame.end(&input[start..come]) {
                    Ok(None) => break,
                    Ok(Some(length)) => {
                        start += length;
                        ends.push(start);
                        frame = Frame::default();
                    }
                    Err(Malformed) => return (ends, true),
                }
            }
        }
        (ends, false)
    }

    fn show(reply: RedisResult<Value>) -> String {
        reply.map_or_else(|error| format!("{:?}", error.kind()), |value| format!("{value:?}"))
    }

    const REPLIES: [&str; 22] = [
        "$5\r\nhello\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "$7\r\na\r\nb\r\nc\r\n",
        ":-12\r\n",
        ":+5\r\n",
        "+OK\r\n",
        "+PONG\r\n",
        "-ERR a\rb\r\n",
        "_\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n+OK\r\n",
        "*2\r\n-OOM no\r\n:1\r\n",
        "-NOSCRIPT No matching script.\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        "%1\r\n+mode\r\n+cluster\r\n",
        "~2\r\n#t\r\n,1.5\r\n",
        "|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
        "=7\r\ntxt:abc\r\n",
        "(12345678901234567890\r\n",
    ];

    #[test]
    fn every_reply_has_its_end_and_the_value_of_the_client_crate() {
        for reply in REPLIES {
            let value = parse(reply.as_bytes());
            assert!(value.is_ok(), "{reply:?}");
            assert_eq!(show(value), show(redis::parse_redis_value(reply.as_bytes())), "{reply:?}");
        }
        let (all, mut ends) = (REPLIES.concat(), Vec::new());
        REPLIES.iter().fold(0, |end, reply| {
            ends.push(end + reply.len());
            end + reply.len()
        });
        for part in [1, 2, 3, 7, 64, all.len()] {
            assert_eq!(replies(all.as_bytes(), part), (ends.clone(), false), "in parts of {part}");
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let too_many = "*9223372036854775807\r\n".repeat(3);
        let (endless, too_long) = (format!("+{}", "x".repeat(LONGEST_LINE + 1)), "$9223372036854775807\r\n");
        for wrong in ["x\r\n", "$x\r\n", "*\r\n", "\r\n\r\n", "$?\r\n", &too_many, &endless] {
            assert!(replies(wrong.as_bytes(), wrong.len()).1, "{:?}", &wrong[..wrong.len().min(40)]);
        }
        assert_eq!(
            replies(too_long.as_bytes(), 100),
            (vec![], false),
            "it is waited for, within the bound of a connection"
        );
        let deep = "*1\r\n".repeat(50_000);
        assert!(parse(format!("{deep}:1\r\n").as_bytes()).is_err());
        assert!(parse(b"$2\r\nabc\r\n").is_err(), "another end than announced");
    }

    #[test]
    fn fuzz_replies_of_strangers() {
        distlock_testkit::fuzz("redis_reply.txt", |input| {
            let whole = replies(input, input.len().max(1));
            assert_eq!(replies(input, 1), whole, "the parts in which it comes change nothing");
            let mut start = 0;
            for end in whole.0 {
                let reply = &input[start..end];
                assert_eq!(show(parse(reply)), show(redis::parse_redis_value(reply)), "{reply:?}");
                start = end;
            }
        });
    }
}
