//! A minimal Redis client, simple enough to be trusted by the tests of the real one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::reply::Reply;

/// How long the kit waits for a reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The deepest nesting of replies that tests use.
const DEEPEST: usize = 16;

trait Stream: Read + Write + Send {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Stream for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

/// A blocking connection to a Redis server: one command, one reply.
pub struct RespClient(BufReader<Box<dyn Stream>>);

impl RespClient {
    /// Connects over TCP.
    pub fn tcp(address: SocketAddr) -> io::Result<RespClient> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_timeout(TIMEOUT)?;
        stream.set_nodelay(true)?;
        Ok(RespClient(BufReader::new(Box::new(stream))))
    }

    /// Connects to a unix socket.
    pub fn unix(path: &Path) -> io::Result<RespClient> {
        let stream = UnixStream::connect(path)?;
        stream.set_timeout(TIMEOUT)?;
        Ok(RespClient(BufReader::new(Box::new(stream))))
    }

    /// Sets how long to wait for a reply; 5 s by default.
    ///
    /// # Panics
    /// When it is zero.
    pub fn set_timeout(&self, timeout: Duration) {
        self.0.get_ref().set_timeout(timeout).expect("a timeout that is not zero");
    }

    /// Sends a command and waits for its reply. An error reply is a reply ([`Reply::Error`]), not an error.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Reply> {
        self.send(arguments)?;
        self.receive()
    }

    /// Sends a command without waiting for the reply.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        // One write, so that the server receives the whole command or nothing.
        self.0.get_mut().write_all(&request)
    }

    /// Waits for the next reply, or for the next message of a subscription.
    pub fn receive(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.0, DEEPEST)
    }
}

impl std::fmt::Debug for RespClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RespClient")
    }
}

fn read_reply(from: &mut impl BufRead, deepest: usize) -> io::Result<Reply> {
    let line = read_line(from)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| strange(&line))?;
    let number = || rest.parse::<i64>().map_err(|_| strange(&line));
    match kind {
        "+" => Ok(Reply::Simple(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => Ok(Reply::Int(number()?)),
        "$" | "*" if number()? < 0 => Ok(Reply::Nil),
        "$" => read_bulk(from, number()?),
        "*" if deepest > 0 => {
            (0..number()?).map(|_| read_reply(from, deepest - 1)).collect::<io::Result<_>>().map(Reply::Array)
        }
        _ => Err(strange(&line)),
    }
}

fn read_bulk(from: &mut impl BufRead, length: i64) -> io::Result<Reply> {
    let mut bytes = Vec::new();
    let whole = u64::try_from(length).expect("not negative") + 2;
    from.take(whole).read_to_end(&mut bytes)?;
    match bytes.strip_suffix(b"\r\n") {
        Some(content) if bytes.len() as u64 == whole => Ok(Reply::Bulk(content.to_vec())),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(content) => Ok(content.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn strange(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply of Redis: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Reply> {
        read_reply(&mut io::Cursor::new(bytes), DEEPEST)
    }

    #[test]
    fn every_kind_of_answer_is_read() {
        let cases: [(&[u8], Reply); 7] = [
            (b"+OK\r\n", Reply::Simple("OK".into())),
            (b"-ERR no\r\n", Reply::Error("ERR no".into())),
            (b":-2\r\n", Reply::Int(-2)),
            (b"$4\r\na\r\nb\r\n", Reply::Bulk(b"a\r\nb".to_vec())),
            (b"$-1\r\n", Reply::Nil),
            (b"*-1\r\n", Reply::Nil),
            (
                b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n",
                Reply::Array(vec![Reply::Int(1), Reply::Array(vec![Reply::Bulk(vec![])])]),
            ),
        ];
        for (bytes, reply) in cases {
            assert_eq!(read(bytes).unwrap(), reply);
        }
    }

    #[test]
    fn an_answer_cut_short_is_an_error() {
        let whole = b"*2\r\n$3\r\nabc\r\n:1\r\n";
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
        assert_eq!(read(b"HTTP/1.1 400\r\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
