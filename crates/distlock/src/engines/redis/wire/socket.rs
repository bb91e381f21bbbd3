//! The socket of a connection. Callers write their requests themselves, and one task, the driver, reads all replies.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use redis::{Cmd, ErrorKind, PushKind, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::engines::redis::wire::driver::Driver;
use crate::engines::redis::wire::input::Input;
use crate::engines::shared::dial::BoxStream;
use crate::types::sync::Mutex;

/// How much room for requests is kept when they are written.
const KEPT: usize = 64 << 10;
/// How many requests may be unanswered: far more than a server replies to before they are overdue.
const MOST_UNANSWERED: usize = 1 << 20;

/// A socket to a server, which replies to requests in their order.
pub(super) struct Socket(Mutex<SocketState>);

struct SocketState {
    /// `None` once the socket is closed.
    stream: Option<BoxStream>,
    /// Requests, and how much of them the stream has taken.
    output: Vec<u8>,
    taken: usize,
    /// Whether the stream has sent all that it has taken.
    is_flushed: bool,
    unanswered: VecDeque<Unanswered>,
    /// Replies for the task that sends the batches.
    batch_replies: VecDeque<RedisResult<Value>>,
    /// How many replies have come.
    replies: u64,
    /// The number of the current tick.
    tick: u64,
    /// Wakes the driver. It alone is woken by the stream.
    driver: Waker,
}

struct Unanswered {
    /// `None` once the reply is overdue.
    recipient: Option<Recipient>,
    /// The tick in which it was sent.
    tick: u64,
    /// The reply is a push, which confirms a subscription.
    is_subscription: bool,
}

/// Who gets a reply.
enum Recipient {
    Caller(oneshot::Sender<RedisResult<Value>>),
    /// The task that sends the batches. It is the driver's, so that it needs no waking.
    Batches,
}

/// What was read.
enum Arrival {
    Reply(oneshot::Sender<RedisResult<Value>>, Value),
    Message(PushKind, Vec<Value>),
}

/// The reply to a request; `None` if the socket was closed before it came. Dropping it does not take the request back.
#[must_use = "nothing else tells whether the request was carried out"]
pub(super) struct PendingReply(oneshot::Receiver<RedisResult<Value>>);

impl Future for PendingReply {
    type Output = Option<RedisResult<Value>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(context)).ok())
    }
}

impl PendingReply {
    /// Returns the reply when it comes. An error of the server and a closed socket are errors.
    pub(super) async fn value(self) -> RedisResult<Value> {
        self.await.unwrap_or_else(closed).and_then(Value::extract_error)
    }
}

impl Socket {
    pub(super) fn new(stream: BoxStream) -> Socket {
        Socket(Mutex::new(SocketState {
            stream: Some(stream),
            output: Vec::new(),
            taken: 0,
            is_flushed: true,
            unanswered: VecDeque::new(),
            batch_replies: VecDeque::new(),
            replies: 0,
            tick: 0,
            driver: Waker::noop().clone(),
        }))
    }

    /// Sends a request.
    pub(super) fn send(&self, command: &Cmd) -> PendingReply {
        self.write(|state| state.add_for_caller(command, false))
    }

    /// Sends a request, and waits for its reply.
    pub(super) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        self.send(command).value().await
    }

    /// Sends two requests, with no other between them.
    pub(super) fn send_both(&self, first: &Cmd, second: &Cmd) -> [PendingReply; 2] {
        self.write(|state| [first, second].map(|command| state.add_for_caller(command, false)))
    }

    /// Sends a subscription, and waits until a push confirms it.
    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        let mut command = redis::cmd("SUBSCRIBE");
        command.arg(channel);
        let reply = self.write(|state| state.add_for_caller(&command, true));
        reply.value().await.map(drop)
    }

    /// Adds a batch, whose reply comes by [`batch_reply`](Socket::batch_reply). It is before every request that is sent
    /// later, and written with the next one or by [`flush`](Socket::flush).
    pub(super) fn add_batch(&self, command: &Cmd) {
        self.0.lock().add(command, Recipient::Batches, false);
    }

    /// Writes what was added.
    pub(super) fn flush(&self) {
        self.write(|_| ());
    }

    /// Returns the next reply to a batch, in the order of the batches. Only the driver's task asks.
    pub(super) fn batch_reply(&self) -> Option<RedisResult<Value>> {
        self.0.lock().batch_replies.pop_front()
    }

    /// A tick is over: fails the requests that have no reply for `most` whole ticks. Their replies, should they come, are
    /// ignored.
    pub(super) fn tick(&self, most: u64) {
        let mut expired = Vec::new();
        let mut guard = self.0.lock();
        let state = &mut *guard;
        state.tick += 1;
        let is_overdue = |request: &&mut Unanswered| request.tick + most < state.tick;
        for overdue in state.unanswered.iter_mut().take_while(is_overdue) {
            match overdue.recipient.take() {
                Some(Recipient::Caller(caller)) => expired.push(caller),
                Some(Recipient::Batches) => {
                    state.batch_replies.push_back(Err(io::Error::from(io::ErrorKind::TimedOut).into()));
                    state.driver.wake_by_ref();
                }
                None => {}
            }
        }
        drop(guard);
        expired.into_iter().for_each(|caller| drop(caller.send(Err(io::Error::from(io::ErrorKind::TimedOut).into()))));
    }

    /// Returns how many requests have no reply.
    pub(super) fn unanswered(&self) -> usize {
        self.0.lock().unanswered.len()
    }

    /// Returns how many replies have come so far.
    pub(super) fn replies(&self) -> u64 {
        self.0.lock().replies
    }

    /// Closes the socket: every request without a reply fails, and every later one.
    pub(super) fn close(&self) {
        self.close_by(None);
    }

    /// Closes the socket; the first request without a reply gets `cause`.
    fn close_by(&self, cause: Option<RedisError>) {
        let mut state = self.0.lock();
        let (stream, mut unanswered) = (state.stream.take(), std::mem::take(&mut state.unanswered));
        state.output = Vec::new();
        let driver = state.driver.clone();
        drop(state);
        let first = unanswered.pop_front().and_then(|first| first.recipient);
        if let (Some(Recipient::Caller(caller)), Some(cause)) = (first, cause) {
            let _ = caller.send(Err(cause));
        }
        drop((stream, unanswered));
        driver.wake();
    }

    /// Adds requests by `add`, and writes all that was added.
    fn write<T>(&self, add: impl FnOnce(&mut SocketState) -> T) -> T {
        let mut state = self.0.lock();
        let added = add(&mut state);
        let written = state.write();
        drop(state);
        if let Err(error) = written {
            self.close_by(Some(error.into()));
        }
        added
    }

    /// Reads replies, and delivers them. `hear` takes messages. Ends when the socket is closed.
    pub(super) fn drive(self: Arc<Self>, mut hear: impl FnMut(&PushKind, &[Value]) + Send + 'static) -> Driver {
        let (mut input, mut arrived) = (Input::default(), Vec::new());
        Box::pin(poll_fn(move |context| {
            loop {
                let read = self.read(context, &mut input, &mut arrived);
                for arrival in arrived.drain(..) {
                    match arrival {
                        Arrival::Reply(caller, reply) => drop(caller.send(Ok(reply))),
                        Arrival::Message(kind, data) => hear(&kind, &data),
                    }
                }
                if let Err(cause) = ready!(read) {
                    self.close_by(Some(cause));
                    return Poll::Ready(());
                }
            }
        }))
    }

    /// Reads what has come; also writes what the stream did not take before.
    fn read(&self, context: &mut Context<'_>, input: &mut Input, arrived: &mut Vec<Arrival>) -> Poll<RedisResult<()>> {
        let mut state = self.0.lock();
        if !state.driver.will_wake(context.waker()) {
            state.driver = context.waker().clone();
        }
        state.write()?;
        let Some(stream) = &mut state.stream else { return Poll::Ready(closed()) };
        let mut buffer = ReadBuf::new(input.room());
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let length = buffer.filled().len();
        if length == 0 {
            return Poll::Ready(closed());
        }
        input.add(length);
        while let Some(reply) = input.next()? {
            arrived.extend(state.arrived(reply)?);
        }
        Poll::Ready(Ok(()))
    }
}

fn closed<T>() -> RedisResult<T> {
    Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
}

impl SocketState {
    fn add_for_caller(&mut self, command: &Cmd, is_subscription: bool) -> PendingReply {
        let (caller, reply) = oneshot::channel();
        self.add(command, Recipient::Caller(caller), is_subscription);
        PendingReply(reply)
    }

    fn add(&mut self, command: &Cmd, recipient: Recipient, is_subscription: bool) {
        if self.stream.is_none() {
            return;
        }
        match recipient {
            Recipient::Caller(caller) if self.unanswered.len() >= MOST_UNANSWERED => {
                let refused = (ErrorKind::Client, "too many requests have no reply");
                let _ = caller.send(Err(RedisError::from(refused)));
                return;
            }
            // Few batches are in flight.
            Recipient::Caller(_) | Recipient::Batches => {}
        }
        command.write_packed_command(&mut self.output);
        self.unanswered.push_back(Unanswered { recipient: Some(recipient), tick: self.tick, is_subscription });
    }

    /// Writes as much as the stream takes. The driver is woken when it takes more.
    fn write(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let context = &mut Context::from_waker(&self.driver);
        while self.taken < self.output.len() {
            match Pin::new(&mut *stream).poll_write(context, &self.output[self.taken..]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => (self.taken, self.is_flushed) = (self.taken + length, false),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    // Not each time: what is left is moved.
                    if self.taken > KEPT && 2 * self.taken > self.output.len() {
                        self.output.drain(..self.taken);
                        self.taken = 0;
                    }
                    return Ok(());
                }
            }
        }
        self.taken = 0;
        self.output.clear();
        self.output.shrink_to(KEPT);
        if !self.is_flushed
            && let Poll::Ready(flushed) = Pin::new(stream).poll_flush(context)
        {
            flushed?;
            self.is_flushed = true;
        }
        Ok(())
    }

    /// Takes a reply or a message. Returns what the driver delivers.
    fn arrived(&mut self, value: Value) -> RedisResult<Option<Arrival>> {
        let confirms = self.unanswered.front().is_some_and(|request| request.is_subscription);
        let value = match value {
            Value::Push { kind, data } if !(confirms && kind == PushKind::Subscribe) => {
                return Ok(Some(Arrival::Message(kind, data)));
            }
            value => value,
        };
        let Some(request) = self.unanswered.pop_front() else {
            return Err(RedisError::from((ErrorKind::Parse, "a reply to no request")));
        };
        self.replies += 1;
        Ok(match request.recipient {
            Some(Recipient::Caller(caller)) => Some(Arrival::Reply(caller, value)),
            Some(Recipient::Batches) => {
                self.batch_replies.push_back(Ok(value));
                None
            }
            None => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const ROOM: usize = 64 << 10;

    /// Returns a driven socket, and the server's end of it, which takes `room` bytes before it is read.
    fn socket(room: usize) -> (Arc<Socket>, DuplexStream) {
        let (ours, server) = tokio::io::duplex(room);
        let socket = Arc::new(Socket::new(Box::new(ours)));
        tokio::spawn(socket.clone().drive(|_, _| ()));
        (socket, server)
    }

    fn command(text: &str) -> Cmd {
        redis::cmd(text)
    }

    async fn read(server: &mut DuplexStream, commands: &[Cmd]) {
        let expected = commands.iter().flat_map(Cmd::get_packed_command).collect::<Vec<_>>();
        let mut written = vec![0; expected.len()];
        server.read_exact(&mut written).await.unwrap();
        assert_eq!(written, expected);
    }

    #[tokio::test]
    async fn requests_are_written_and_answered_in_their_order() {
        let (socket, mut server) = socket(ROOM);
        let first = socket.send(&command("A"));
        socket.add_batch(&command("B"));
        let [third, fourth] = socket.send_both(&command("C"), &command("D"));
        read(&mut server, &["A", "B", "C", "D"].map(command)).await;
        assert_eq!(socket.unanswered(), 4);
        server.write_all(b":1\r\n$3\r\nt").await.unwrap();
        assert_eq!(first.await.unwrap().unwrap(), Value::Int(1));
        drop(third);
        server.write_all(b"wo\r\n:3\r\n:4\r\n").await.unwrap();
        assert_eq!(fourth.await.unwrap().unwrap(), Value::Int(4), "also behind a request that was given up");
        assert_eq!(socket.batch_reply().unwrap().unwrap(), Value::BulkString(b"two".to_vec()));
        assert_eq!((socket.batch_reply().is_none(), socket.unanswered(), socket.replies()), (true, 0, 4));
    }

    #[tokio::test]
    async fn what_the_stream_does_not_take_at_once_is_written_later() {
        let (socket, mut server) = socket(16);
        let long = command(&"x".repeat(1000));
        let replies = [socket.send(&long), socket.send(&command("A")), socket.send(&long)];
        read(&mut server, &[long.clone(), command("A"), long]).await;
        server.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
        for (reply, number) in replies.into_iter().zip(1..) {
            assert_eq!(reply.await.unwrap().unwrap(), Value::Int(number));
        }
    }

    #[tokio::test]
    async fn a_closed_socket_leaves_no_caller_waiting() {
        for close in [|socket: &Socket, _| socket.close(), |_: &Socket, server: DuplexStream| drop(server)] {
            let (socket, server) = socket(ROOM);
            let replies = [socket.send(&command("A")), socket.send(&command("B"))];
            close(&socket, server);
            for reply in replies {
                assert!(!matches!(reply.await, Some(Ok(_))));
            }
            assert!(socket.send(&command("C")).await.is_none(), "it was not sent");
            assert_eq!(socket.ask(&command("D")).await.unwrap_err().kind(), ErrorKind::Io);
        }
    }

    #[tokio::test]
    async fn an_overdue_request_fails_and_its_late_reply_is_ignored() {
        let (socket, mut server) = socket(ROOM);
        let overdue = socket.send(&command("A"));
        socket.add_batch(&command("B"));
        socket.tick(2);
        let young = socket.send(&command("C"));
        socket.tick(2);
        assert_eq!(socket.unanswered(), 3);
        assert!(tokio::time::timeout(Duration::from_millis(10), overdue).await.is_err(), "not overdue yet");
        let overdue = socket.send(&command("D"));
        socket.tick(2);
        assert!(socket.batch_reply().unwrap().unwrap_err().is_timeout());
        server.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
        assert_eq!(young.await.unwrap().unwrap(), Value::Int(3));
        assert!(socket.batch_reply().is_none());
        (0..3).for_each(|_| socket.tick(2));
        assert!(overdue.await.unwrap().unwrap_err().is_timeout());
    }

    #[tokio::test]
    async fn a_subscription_is_confirmed_by_a_push_and_messages_are_heard() {
        let (ours, mut server) = tokio::io::duplex(ROOM);
        let (socket, (heard, mut hears)) = (Arc::new(Socket::new(Box::new(ours))), tokio::sync::mpsc::channel(9));
        tokio::spawn(socket.clone().drive(move |kind, data| heard.try_send((kind.clone(), data.to_vec())).unwrap()));
        let message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
        server.write_all(message).await.unwrap();
        server.write_all(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n").await.unwrap();
        let unasked = hears.recv().await.unwrap();
        assert_eq!((unasked.0, unasked.1.len()), (PushKind::Message, 2));
        assert_eq!(hears.recv().await.unwrap().0, PushKind::Subscribe, "it confirms nothing that was asked");
        let subscribed = tokio::spawn({
            let socket = socket.clone();
            async move { socket.subscribe("c").await }
        });
        let mut asked = redis::cmd("SUBSCRIBE");
        read(&mut server, &[asked.arg("c").clone()]).await;
        server.write_all(message).await.unwrap();
        server.write_all(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n").await.unwrap();
        subscribed.await.unwrap().unwrap();
        assert_eq!(hears.recv().await.unwrap().0, PushKind::Message);
    }

    #[tokio::test]
    async fn bytes_that_belong_to_no_request_close_the_socket() {
        for wrong in ["?\r\n", ":1\r\n:2\r\n"] {
            let (socket, mut server) = socket(ROOM);
            let reply = socket.send(&command("A"));
            server.write_all(wrong.as_bytes()).await.unwrap();
            let is_reply = matches!(reply.await, Some(Ok(Value::Int(1))));
            assert_eq!(is_reply, wrong.starts_with(':'));
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).await.unwrap();
            assert!(socket.send(&command("B")).await.is_none());
        }
    }
}
