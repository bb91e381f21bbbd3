//! A Redis server that returns well-formed replies to a different request.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::liar::{pass, stand_before};

/// The words of a request.
pub(crate) type Words = Vec<Vec<u8>>;

/// Listens in front of an honest server, which gets the request that `twist` returns, if it returns one.
pub(crate) fn twist(
    server: SocketAddr,
    twist: impl Fn(&Words) -> Option<Words> + Clone + Send + 'static,
) -> SocketAddr {
    let ask = move |client: TcpStream, mut server: TcpStream| {
        let mut client = BufReader::new(client);
        while let Ok(words) = read_request(&mut client) {
            let words = twist(&words).unwrap_or(words);
            if server.write_all(&written(&words)).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
    };
    stand_before(server, ask, pass)
}

fn read_request(from: &mut impl BufRead) -> io::Result<Words> {
    (0..read_length(from)?)
        .map(|_| {
            let mut word = vec![0; read_length(from)? + 2];
            from.read_exact(&mut word)?;
            word.truncate(word.len() - 2);
            Ok(word)
        })
        .collect()
}

/// Parses the length behind the type byte of a part.
fn read_length(from: &mut impl BufRead) -> io::Result<usize> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let number = line.get(1..).and_then(|rest| rest.trim_end().parse().ok());
    number.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn written(words: &Words) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}
