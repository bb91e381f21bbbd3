//! Clients that send too much, open too many connections, or never finish a request.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use distlock::Locker;
use distlock::backend::memory::{Fault, Memory, Operation, Store};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::common::{LIMIT, Running};
use crate::{memory, metric};

/// Sends a piece of a request and reads until the end of the connection.
async fn send_piece(address: SocketAddr, piece: String) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the console listens");
    stream.write_all(piece.as_bytes()).await.expect("it is sent");
    let mut answer = Vec::new();
    // A client that is disconnected while sending may see a reset instead of an end.
    let _ = timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("it ends");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_and_unfinished_requests_are_refused() {
    let console = Running::start(&memory().await, |_| {}).await;
    let (address, token) = (console.address, console.token.clone());
    let head = |rest: &str| {
        format!(
            "POST /api/v1/break HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             X-Distlock-Console: 1\r\n{rest}"
        )
    };
    let (no_head, no_body, long_head, idle) = tokio::join!(
        send_piece(address, head("")),
        send_piece(address, head("Content-Length: 100\r\n\r\n{\"name\":")),
        send_piece(address, head(&format!("X-Long: {}\r\n\r\n", "x".repeat(20_000)))),
        send_piece(address, String::new()),
    );
    assert!(no_head.is_empty() && idle.is_empty(), "{no_head}{idle}");
    assert!(no_body.starts_with("HTTP/1.1 408"), "{no_body}");
    assert!(long_head.starts_with("HTTP/1.1 431"), "{long_head}");
    let long_body = console.post("/api/v1/break", &json!({"name": "x".repeat(20_000)})).send().await;
    assert_eq!((long_body.status, long_body.error().as_str()), (413, "too_large"));
    assert_eq!(console.bare("GET", "/healthz").send().await.status, 200);
    console.stop().await;
}

/// Sends one request with the console's token or another one, and keeps the connection. Returns whether it was
/// accepted.
async fn request_and_keep(address: SocketAddr, token: String) -> (bool, TcpStream) {
    let mut stream = TcpStream::connect(address).await.expect("the console listens");
    let head = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).await;
    let answered = timeout(LIMIT, stream.read(&mut [0; 64])).await.expect("an answer, or the end");
    (answered.is_ok_and(|bytes| bytes > 0), stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_above_the_limit_are_closed() {
    let console = Running::start(&memory().await, |_| {}).await;
    let mut browsers = Vec::new();
    for _ in 0..256 {
        browsers.push(console.events().await);
    }
    let refused = console.get("/api/v1/events").send().await;
    assert_eq!((refused.status, refused.error().as_str()), (503, "busy"), "there is an end of browsers");
    let mut others = JoinSet::new();
    (0..100).for_each(|_| drop(others.spawn(request_and_keep(console.address, console.token.clone()))));
    let others = others.join_all().await;
    let inside = others.iter().filter(|(is_inside, _)| *is_inside).count();
    assert!((1..100).contains(&inside), "{inside} of 100 beside the browsers");
    drop((browsers, others));
    let left = Instant::now();
    while !request_and_keep(console.address, console.token.clone()).await.0 {
        assert!(left.elapsed() < LIMIT, "there is room again");
    }
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_the_token_are_closed_for_one_with_it() {
    let console = Running::start(&memory().await, |_| {}).await;
    let mut browser = console.events().await;
    assert_eq!(browser.next().await.0, "snapshot");
    let mut strangers = Vec::new();
    for _ in 0..330 {
        strangers.push(request_and_keep(console.address, "wrong".into()).await);
    }
    for _ in 0..3 {
        assert_eq!(console.get("/api/v1/locks").send().await.status, 200);
    }
    assert_eq!(console.events().await.next().await.0, "snapshot");
    browser.next_of("changes").await;
    console.stop().await;
}

/// Returns a console over an engine that takes `time` for the first listing.
async fn over_a_slow_engine(time: Duration) -> Running {
    let store = Store::new();
    store.script(Operation::Inspect, Fault::Delay(time));
    Running::start(&Locker::builder().build(Memory::on(&store)).unwrap(), |_| {}).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_engine_is_listed_rarely_and_new_browsers_get_the_time() {
    let console = over_a_slow_engine(Duration::from_millis(700)).await;
    let mut events = console.events().await;
    let seen = events.next_of("snapshot").await["at_ms"].as_u64().unwrap();
    assert!(events.next_of("time").await["at_ms"].as_u64().unwrap() >= seen, "the time shows how old the data is");
    let next = events.next_of("changes").await["at_ms"].as_u64().unwrap();
    assert!(next - seen >= 6_000, "{} ms after a look that took 700", next - seen);
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_counts_after_its_request_was_dropped() {
    let console = over_a_slow_engine(Duration::from_millis(1_500)).await;
    let given_up = timeout(Duration::from_millis(200), console.get("/api/v1/locks").send()).await;
    assert!(given_up.is_err(), "it takes longer");
    assert_eq!(console.get("/api/v1/locks").send().await.status, 200);
    assert_eq!(metric(&console, "distlock_console_listing_duration_seconds_count").await, 1.0);
    console.stop().await;
}
