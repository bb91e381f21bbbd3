//! The proxy applies its rules to each direction separately.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distlock_testkit::proxy::{Direction, Door, Flow, Proxy};
use distlock_testkit::servers::eventually;

/// A server that echoes and records what it receives.
struct Echo {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Echo {
    fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let echo = Echo { address: listener.local_addr().unwrap(), heard: Arc::default() };
        let heard = echo.heard.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heard = heard.clone();
                std::thread::spawn(move || repeat(stream, &heard));
            }
        });
        echo
    }

    fn heard(&self) -> String {
        String::from_utf8(self.heard.lock().unwrap().clone()).unwrap()
    }
}

fn repeat(mut stream: TcpStream, heard: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        heard.lock().unwrap().extend_from_slice(&buffer[..count]);
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

struct Client(TcpStream);

impl Client {
    fn of(proxy: &Proxy) -> Client {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(stream)
    }

    fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    fn hear(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn hear_rest(&mut self) -> String {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn hears_nothing(&mut self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let silent = self.0.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        self.0.set_nonblocking(false).unwrap();
        silent
    }
}

fn world() -> (Echo, Proxy, Client) {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.address);
    let mut client = Client::of(&proxy);
    client.say("hi");
    assert_eq!(client.hear(2), "hi");
    (echo, proxy, client)
}

#[test]
fn passed_bytes_are_counted() {
    let (_echo, proxy, mut client) = world();
    let long = "x".repeat(1 << 20);
    let mut sender = client.0.try_clone().unwrap();
    let said = long.clone();
    let speaker = std::thread::spawn(move || sender.write_all(said.as_bytes()).unwrap());
    assert_eq!(client.hear(long.len()), long);
    speaker.join().unwrap();
    let counts = proxy.counts();
    assert_eq!((counts.requests.forwarded, counts.replies.forwarded), (2 + (1 << 20), 2 + (1 << 20)));
    assert_eq!((counts.requests.held(), counts.accepted, counts.open), (0, 1, 1));
    drop(client);
    assert_eq!(proxy.wait_for("the end", |counts| counts.open == 0).accepted, 1);
}

#[test]
fn dropped_replies_are_lost_and_their_requests_arrive() {
    let (echo, proxy, mut client) = world();
    proxy.drop_replies();
    client.say("lost");
    proxy.wait_for("a lost reply", |counts| counts.replies.dropped == 4);
    assert_eq!(echo.heard(), "hilost");
    assert!(client.hears_nothing());
    proxy.pass();
    client.say("found");
    assert_eq!(client.hear(5), "found", "only what came later");
}

#[test]
fn dropped_requests_never_arrive() {
    let (echo, proxy, mut client) = world();
    proxy.drop_requests();
    client.say("lost");
    proxy.wait_for("a lost request", |counts| counts.requests.dropped == 4);
    proxy.pass();
    client.say("found");
    assert_eq!(client.hear(5), "found");
    assert_eq!(echo.heard(), "hifound");
}

#[test]
fn nothing_moves_while_frozen_and_everything_arrives_after() {
    let (echo, proxy, mut client) = world();
    proxy.freeze();
    client.say("later");
    let mut other = Client::of(&proxy);
    proxy.wait_for("the other connection", |counts| counts.open == 2);
    other.say("too");
    assert_eq!(proxy.counts().requests.received, 2);
    assert!(client.hears_nothing() && other.hears_nothing());
    assert_eq!(echo.heard(), "hi");
    proxy.pass();
    assert_eq!((client.hear(5), other.hear(3)), ("later".into(), "too".into()));
}

#[test]
fn one_direction_freezes_alone() {
    let (echo, proxy, mut client) = world();
    proxy.set(Direction::Replies, Flow::Freeze);
    client.say("one way");
    eventually("the server to hear", || (echo.heard() == "hione way").then_some(()));
    assert!(client.hears_nothing());
    assert_eq!(proxy.counts().replies.received, 2);
    proxy.pass();
    assert_eq!(client.hear(7), "one way");
}

#[test]
fn a_held_request_arrives_after_its_client_has_gone() {
    let (echo, proxy, mut client) = world();
    proxy.hold_requests();
    client.say("late");
    proxy.wait_for("a held request", |counts| counts.requests.held() == 4);
    drop(client);
    assert_eq!(echo.heard(), "hi");
    proxy.pass();
    eventually("the late request", || (echo.heard() == "hilate").then_some(()));
    assert_eq!(proxy.wait_for("the end", |counts| counts.open == 0).requests.held(), 0);
}

#[test]
fn each_direction_has_its_own_delay() {
    let (_echo, proxy, mut client) = world();
    proxy.set(Direction::Requests, Flow::Delay(Duration::from_millis(100)));
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(200)));
    let start = Instant::now();
    client.say("a");
    client.say("b");
    assert_eq!(client.hear(2), "ab");
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    proxy.delay(Duration::from_secs(3600));
    client.say("c");
    proxy.wait_for("a delayed request", |counts| counts.requests.held() == 1);
    proxy.pass();
    assert_eq!(client.hear(1), "c", "at once");
}

#[test]
fn a_cut_resets_every_connection_and_serves_new_ones() {
    let (_echo, proxy, mut client) = world();
    proxy.cut();
    assert_eq!(client.0.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.counts().open, 0);
    let mut again = Client::of(&proxy);
    again.say("again");
    assert_eq!(again.hear(5), "again");
}

#[test]
fn a_cut_frees_frozen_connections_too() {
    let (echo, proxy, mut client) = world();
    proxy.freeze();
    client.say("never");
    proxy.cut();
    proxy.pass();
    assert!(client.0.read(&mut [0]).is_err());
    let mut again = Client::of(&proxy);
    again.say("again");
    assert_eq!(again.hear(5), "again");
    assert_eq!(echo.heard(), "hiagain");
}

#[test]
fn a_connection_is_cut_after_so_many_bytes_of_one_direction() {
    let (echo, proxy, mut client) = world();
    for most in [0, 1, 4] {
        proxy.cut_after(Direction::Replies, most);
        client.say("12345");
        let expected = &"12345"[..usize::try_from(most).unwrap()];
        assert_eq!(client.hear_rest(), expected);
        client = Client::of(&proxy);
        client.say("ok");
        assert_eq!(client.hear(2), "ok", "it happens once");
    }
    assert_eq!(echo.heard(), "hi12345ok12345ok12345ok");
    proxy.cut_after(Direction::Requests, 3);
    client.say("12345");
    eventually("the first bytes", || echo.heard().ends_with("ok123").then_some(()));
    proxy.wait_for("the cut", |counts| counts.open == 0);
    assert!(echo.heard().ends_with("ok123"));
}

#[test]
fn a_closed_door_refuses_and_a_silent_one_does_not_answer() {
    let (_echo, proxy, mut client) = world();
    proxy.door(Door::Refuse);
    assert_eq!(TcpStream::connect(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    client.say("old");
    assert_eq!(client.hear(3), "old", "old connections stay");
    proxy.door(Door::Silent);
    let mut waiting = Client::of(&proxy);
    waiting.say("hello");
    assert_eq!(proxy.counts().accepted, 1);
    proxy.door(Door::Open);
    assert_eq!(waiting.hear(5), "hello");
}

#[test]
fn a_dead_server_is_a_connection_cut_at_once() {
    let (_echo, proxy, _client) = world();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    proxy.retarget(nobody);
    let mut client = Client::of(&proxy);
    assert_eq!(client.0.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    drop(proxy);
}
