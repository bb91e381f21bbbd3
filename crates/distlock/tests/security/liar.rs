//! A server with arbitrary replies.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::{in_time, lock_once, peak_memory_mb};

/// The bytes that it sends instead of honest replies.
#[derive(Debug, Clone)]
pub(crate) struct Lie {
    pub(crate) begins: Vec<u8>,
    /// Repeated for as long as the client reads.
    pub(crate) goes_on: Vec<u8>,
}

/// Asserts that every lie causes an error and no more, from the first byte on and from somewhere behind the handshake.
pub(crate) async fn expect_errors(
    scheme: &str,
    server: SocketAddr,
    lies: Vec<Lie>,
    honest: usize,
    most_memory_mb: u64,
) {
    let mut tasks = Vec::new();
    for lie_told in lies {
        for honest in [0, honest] {
            let what =
                format!("{honest} honest bytes, then {:?}", lie_told.begins.escape_ascii().to_string().get(..60));
            let url = format!("{scheme}://{}/", lie(server, honest, &lie_told));
            let task = tokio::spawn(async move {
                let outcome = in_time(&what, lock_once(url)).await;
                assert!(outcome.is_err() || honest > 0, "{what}");
            });
            // Endless lies run one at a time, because they come as fast as the machine can send.
            if lie_told.goes_on.is_empty() { tasks.push(task) } else { task.await.expect("no panic") }
        }
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let peak = peak_memory_mb();
    println!("at most {peak} MB");
    assert!(peak < most_memory_mb, "{peak} MB");
}

/// Listens in front of an honest server: passes `honest` bytes of its replies on each connection, and lies from then
/// on.
fn lie(server: SocketAddr, honest: usize, lie: &Lie) -> SocketAddr {
    let lie = lie.clone();
    stand_before(server, pass, move |server, client| answer(server, client, honest, &lie))
}

/// Listens in front of an honest server, with one function that forwards requests, and one that forwards replies.
pub(crate) fn stand_before(
    server: SocketAddr,
    ask: impl Fn(TcpStream, TcpStream) + Clone + Send + 'static,
    answer: impl Fn(TcpStream, TcpStream) + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(server) else { return };
            let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { return };
            let (ask, answer) = (ask.clone(), answer.clone());
            thread::spawn(move || ask(from, to));
            thread::spawn(move || answer(server, client));
        }
    });
    address
}

pub(crate) fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn answer(mut server: TcpStream, mut client: TcpStream, mut honest: usize, lie: &Lie) {
    let mut bytes = [0; 4096];
    while honest > 0 {
        let most = honest.min(bytes.len());
        match server.read(&mut bytes[..most]) {
            Ok(read) if read > 0 && client.write_all(&bytes[..read]).is_ok() => honest -= read,
            _ => return,
        }
    }
    let mut listens = client.write_all(&lie.begins).is_ok();
    while listens && !lie.goes_on.is_empty() {
        listens = client.write_all(&lie.goes_on).is_ok();
    }
}
