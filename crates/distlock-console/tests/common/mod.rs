//! A running console, and a minimal HTTP client for it.
#![allow(missing_docs, dead_code)]

pub(crate) mod browser;

use std::net::SocketAddr;
use std::time::Duration;

use distlock::Locker;
use distlock_console::{AccessToken, Console, Options};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Longer than any step here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A running console.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) url: String,
    pub(crate) token: String,
    stop: Option<oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Running {
    pub(crate) async fn start(locker: &Locker, change: impl FnOnce(&mut Options)) -> Running {
        Running::start_over("test://engine", locker, change).await
    }

    pub(crate) async fn start_over(engine: &str, locker: &Locker, change: impl FnOnce(&mut Options)) -> Running {
        let mut options = Options::new(AccessToken::random());
        options.listen = "127.0.0.1:0".parse().unwrap();
        change(&mut options);
        let console = Console::bind(locker.clone(), engine, options).await.expect("it listens");
        let (address, url) = (console.address(), console.url_with_token());
        let token = url.split_once("#token=").expect("the token is in the URL").1.to_owned();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(console.serve(async {
            let _ = stopped.await;
        }));
        Running { address, url, token, stop: Some(stop), served }
    }

    /// Returns a request with the token.
    pub(crate) fn get(&self, path: &str) -> HttpRequest {
        HttpRequest::new(self.address, "GET", path).header("Authorization", &format!("Bearer {}", self.token))
    }

    /// Returns a change with the token and all required headers.
    pub(crate) fn post(&self, path: &str, body: &Value) -> HttpRequest {
        let ask =
            HttpRequest::new(self.address, "POST", path).header("Authorization", &format!("Bearer {}", self.token));
        ask.header("X-Distlock-Console", "1").body(&body.to_string())
    }

    /// Returns a request without token and headers.
    pub(crate) fn bare(&self, method: &str, path: &str) -> HttpRequest {
        HttpRequest::new(self.address, method, path)
    }

    pub(crate) async fn events(&self) -> Events {
        self.get("/api/v1/events").stream().await
    }

    pub(crate) async fn stop(mut self) {
        self.stop.take().map(|stop| stop.send(()));
        timeout(LIMIT, self.served).await.expect("it ends").expect("no panic").expect("no error");
    }
}

/// A request.
pub(crate) struct HttpRequest {
    address: SocketAddr,
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpRequest {
    pub(crate) fn new(address: SocketAddr, method: &str, path: &str) -> HttpRequest {
        let line = format!("{method} {path} HTTP/1.1");
        HttpRequest { address, line, headers: vec![("Host".into(), address.to_string())], body: String::new() }
    }

    /// Sets a header.
    pub(crate) fn header(mut self, name: &str, value: &str) -> HttpRequest {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> HttpRequest {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn body(mut self, body: &str) -> HttpRequest {
        self.body = body.into();
        self
    }

    async fn write(&self, extra: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await.expect("the console listens");
        let headers: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let HttpRequest { line, body, .. } = self;
        let text = format!("{line}\r\n{headers}{extra}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).await.expect("it is sent");
        BufReader::new(stream)
    }

    /// Sends the request and reads the whole response.
    pub(crate) async fn send(self) -> HttpResponse {
        let mut reader = self.write("Connection: close\r\n").await;
        timeout(LIMIT, HttpResponse::read(&mut reader)).await.expect("an answer in time").expect("an answer")
    }

    /// Sends the request and leaves the response open.
    pub(crate) async fn stream(self) -> Events {
        let mut events = Events { reader: self.write("").await };
        let first = events.line().await;
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        while !events.line().await.is_empty() {}
        events
    }
}

impl HttpResponse {
    /// Reads as much as the head says, or to the end: not every server closes the connection when asked to.
    async fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<HttpResponse> {
        let (mut head, mut body) = (String::new(), Vec::new());
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).await? > 0 {}
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
        let mut answer = HttpResponse { status, head: head.to_ascii_lowercase(), body: String::new() };
        match answer.header("content-length").and_then(|length| length.parse().ok()) {
            Some(length) => reader.take(length).read_to_end(&mut body).await?,
            None => reader.read_to_end(&mut body).await?,
        };
        let body = String::from_utf8(body).expect("text");
        let is_chunked = answer.header("transfer-encoding") == Some("chunked");
        answer.body = if is_chunked { unchunk(&body) } else { body };
        Ok(answer)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    /// Returns the kind of the error in the response.
    #[track_caller]
    pub(crate) fn error(&self) -> String {
        let json = self.json();
        let text =
            |field: &str| json["error"][field].as_str().unwrap_or_else(|| panic!("{field}: {self:?}")).to_owned();
        assert!(!text("message").is_empty() && !text("help").is_empty(), "{self:?}");
        text("kind")
    }
}

fn unchunk(mut text: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or_default();
        if size == 0 {
            break;
        }
        whole.push_str(&rest[..size]);
        text = &rest[size + 2..];
    }
    whole
}

/// The events of an open stream.
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
}

impl Events {
    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(LIMIT, self.reader.read_line(&mut line)).await.expect("in time").expect("a line");
        assert!(!line.is_empty(), "the stream has ended");
        line.trim_end().to_owned()
    }

    /// Returns the name and the data of the next event. Skips chunk sizes.
    pub(crate) async fn next(&mut self) -> (String, Value) {
        let mut name = String::new();
        loop {
            let line = self.line().await;
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).expect("JSON"));
            }
        }
    }

    /// Returns the data of the next event of that name.
    pub(crate) async fn next_of(&mut self, name: &str) -> Value {
        loop {
            let (event, data) = self.next().await;
            if event == name {
                return data;
            }
        }
    }

    /// Whether the server has ended the stream, after the events still in transit.
    pub(crate) async fn is_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        timeout(LIMIT, self.reader.read_to_end(&mut rest)).await.is_ok()
    }
}
