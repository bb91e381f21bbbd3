//! Just enough HTTP to use the service, with requests that are under way while the test goes on.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use distlock_testkit::servers::TEST_LIMIT;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// JSON, or text.
    pub(crate) body: Value,
}

/// A request that was sent. Dropping it closes its connection, as a client does that goes away.
pub(crate) struct Pending(TcpStream);

impl Pending {
    pub(crate) fn send(address: SocketAddr, method: &str, path: &str) -> io::Result<Pending> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TEST_LIMIT))?;
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        Ok(Pending(stream))
    }

    /// Returns whether a reply has come.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.set_nonblocking(true).expect("a socket need not block");
        let peeked = self.0.peek(&mut [0]);
        self.0.set_nonblocking(false).expect("a socket may block");
        peeked.is_ok()
    }

    /// Waits for the reply.
    #[track_caller]
    pub(crate) fn reply(mut self) -> Reply {
        let mut text = String::new();
        let read = self.0.read_to_string(&mut text);
        let reply = text.split_once("\r\n\r\n").and_then(|(head, body)| {
            let status = head.split(' ').nth(1)?.parse().ok()?;
            Some(Reply { status, body: serde_json::from_str(body).unwrap_or_else(|_| body.into()) })
        });
        reply.unwrap_or_else(|| panic!("no reply: {read:?}, {text:?}"))
    }
}
