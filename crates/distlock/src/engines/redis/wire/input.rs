//! What was read from a server and is not parsed yet.

use redis::{ErrorKind, RedisError, RedisResult, Value};

use crate::engines::redis::protocol::resp::{self, Frame};

/// How much is read at once, at least a part of it, and how much room is kept when all is parsed.
const READ: usize = 16 << 10;
const LEAST_READ: usize = READ / 4;
const KEPT: usize = 256 << 10;

/// Bytes of replies.
#[derive(Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Where the first reply begins, and where the room for more begins.
    start: usize,
    end: usize,
    frame: Frame,
}

impl Input {
    /// Returns the room for what comes next.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() - self.end < LEAST_READ {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.bytes.len() - self.end < LEAST_READ {
                self.bytes.resize((2 * self.bytes.len()).max(READ), 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// `length` bytes have come into the room.
    pub(super) fn add(&mut self, length: usize) {
        self.end += length;
    }

    /// Takes all replies out that have come as a whole.
    ///
    /// # Errors
    /// The bytes behind them are no reply.
    pub(super) fn take_all(&mut self, replies: &mut Vec<Value>) -> RedisResult<()> {
        while let Some(reply) = self.next()? {
            replies.push(reply);
        }
        Ok(())
    }

    /// Takes the first reply out, if all of it has come.
    ///
    /// # Errors
    /// The bytes are no reply.
    fn next(&mut self) -> RedisResult<Option<Value>> {
        let input = &self.bytes[self.start..self.end];
        let no_reply = |_| RedisError::from((ErrorKind::Parse, "the server sends what is no reply"));
        let Some(length) = self.frame.end(input).map_err(no_reply)? else { return Ok(None) };
        let reply = resp::parse(&input[..length])?;
        (self.start, self.frame) = (self.start + length, Frame::default());
        Ok(Some(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(input: &mut Input, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = input.room();
            let length = room.len().min(bytes.len());
            room[..length].copy_from_slice(&bytes[..length]);
            input.add(length);
            bytes = &bytes[length..];
        }
    }

    #[test]
    fn replies_come_out_as_they_went_in_whatever_their_size() {
        let mut input = Input::default();
        let sizes = [0, 1, 100, READ - 1, READ, READ + 1, 3 * READ, KEPT, 2 * KEPT, 7];
        for size in sizes {
            let text = "x".repeat(size);
            add(&mut input, format!("${size}\r\n{text}\r\n:{size}\r\n$3\r\nab").as_bytes());
            assert_eq!(input.next().unwrap(), Some(Value::BulkString(text.into_bytes())));
            assert_eq!(input.next().unwrap(), Some(Value::Int(size as i64)));
            assert_eq!(input.next().unwrap(), None, "a part of it is missing");
            add(&mut input, b"c\r\n");
            assert_eq!(input.next().unwrap(), Some(Value::BulkString(b"abc".to_vec())));
            assert_eq!(input.next().unwrap(), None);
        }
        input.room();
        assert!(input.bytes.len() <= KEPT, "the room of a long reply is given back");
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        let mut input = Input::default();
        add(&mut input, b":1\r\n?\r\n");
        assert_eq!(input.next().unwrap(), Some(Value::Int(1)));
        assert_eq!(input.next().unwrap_err().kind(), ErrorKind::Parse);
    }
}
