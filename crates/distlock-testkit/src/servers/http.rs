//! Just enough HTTP to query a server on loopback.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server that takes longer is frozen or overloaded.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the body of the response to `GET path`, if its status is 200.
pub(super) fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // Version 1.0: the response is not chunked and ends with the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned())),
    }
}
