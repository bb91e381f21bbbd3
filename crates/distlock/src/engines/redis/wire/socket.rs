//! The socket of a connection. Callers write their requests themselves, and one task, the driver, reads all replies.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use redis::{Cmd, ErrorKind, PushKind, RedisError, RedisResult, Value};
use tokio::sync::oneshot;

use crate::engines::redis::wire::driven_stream::{self, DrivenStream};
use crate::engines::redis::wire::driver::Driver;
use crate::engines::redis::wire::input::Input;
use crate::engines::shared::dial::BoxStream;
use crate::types::sync::Mutex;

/// How many requests may be unanswered: far more than a server replies to before they are overdue.
const MOST_UNANSWERED: usize = 1 << 20;
/// How many writes a caller makes for what others add meanwhile. Then it is the driver's turn.
const MOST_WRITES: usize = 16;

/// A socket to a server, which replies to requests in their order.
///
/// The two mutexes are never held together, and a system call is made under that of the stream only: callers that add
/// requests do not wait for another caller's write.
pub(super) struct Socket {
    requests: Mutex<Requests>,
    stream: Mutex<DrivenStream>,
}

#[derive(Default)]
struct Requests {
    /// What no caller has begun to write.
    output: Vec<u8>,
    /// A caller writes all that is in `output`, and what is added meanwhile.
    is_writing: bool,
    /// Nothing can be sent any more.
    is_closed: bool,
    unanswered: VecDeque<Unanswered>,
    /// Replies for the task that sends the batches.
    batch_replies: VecDeque<Result<Value, NoReply>>,
    /// How many replies have come.
    replies: u64,
    /// The number of the current tick.
    tick: u64,
}

struct Unanswered {
    /// `None` once the reply is overdue.
    recipient: Option<Recipient>,
    /// The tick in which it was sent.
    tick: u64,
    /// The reply is a push, which confirms a subscription.
    is_subscription: bool,
}

/// Where a caller waits for its reply.
type Caller = oneshot::Sender<Result<Value, NoReply>>;

/// Who gets a reply.
enum Recipient {
    Caller(Caller),
    /// The task that sends the batches. It is the driver's, so that it needs no waking.
    Batches,
}

/// What was read.
enum Arrival {
    Reply(Caller, Value),
    Message(PushKind, Vec<Value>),
}

/// Why a request has no reply.
#[derive(Debug, Clone)]
pub(super) enum NoReply {
    /// The socket was closed before the request was sent.
    Unsent,
    /// The socket was closed before the reply came.
    Closed,
    /// The reply is overdue, or the socket was closed by this.
    Failed(RedisError),
}

impl From<NoReply> for RedisError {
    fn from(no_reply: NoReply) -> Self {
        match no_reply {
            NoReply::Unsent | NoReply::Closed => closed(),
            NoReply::Failed(error) => error,
        }
    }
}

/// The reply to a request. Dropping it does not take the request back.
#[must_use = "nothing else tells whether the request was carried out"]
pub(super) struct PendingReply(oneshot::Receiver<Result<Value, NoReply>>);

impl Future for PendingReply {
    type Output = Result<Value, NoReply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(context)).unwrap_or(Err(NoReply::Closed)))
    }
}

impl PendingReply {
    /// Returns the reply when it comes. An error of the server is an error.
    pub(super) async fn value(self) -> RedisResult<Value> {
        self.await.map_err(RedisError::from).and_then(Value::extract_error)
    }
}

impl Socket {
    pub(super) fn new(stream: BoxStream) -> Socket {
        Socket { requests: Mutex::default(), stream: Mutex::new(DrivenStream::new(stream)) }
    }

    /// Sends a request.
    pub(super) fn send(&self, command: &Cmd) -> PendingReply {
        self.write(|requests| requests.add_for_caller(command, false))
    }

    /// Sends a request, and waits for its reply.
    pub(super) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        self.send(command).value().await
    }

    /// Sends two requests, with no other between them.
    pub(super) fn send_both(&self, first: &Cmd, second: &Cmd) -> [PendingReply; 2] {
        self.write(|requests| [first, second].map(|command| requests.add_for_caller(command, false)))
    }

    /// Sends a subscription, and waits until a push confirms it.
    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        let mut command = redis::cmd("SUBSCRIBE");
        command.arg(channel);
        let reply = self.write(|requests| requests.add_for_caller(&command, true));
        reply.value().await.map(drop)
    }

    /// Adds a batch, whose reply comes by [`batch_reply`](Socket::batch_reply). It is before every request that is sent
    /// later, and written with the next one or by [`flush`](Socket::flush).
    ///
    /// # Errors
    /// It was not added, and no reply comes for it.
    pub(super) fn add_batch(&self, command: &Cmd) -> Result<(), NoReply> {
        self.requests.lock().add(command, Recipient::Batches, false).map_err(|(_, refusal)| refusal)
    }

    /// Writes what was added.
    pub(super) fn flush(&self) {
        self.write(|_| ());
    }

    /// Returns the next reply to a batch, in the order of the batches. Only the driver's task asks.
    pub(super) fn batch_reply(&self) -> Option<Result<Value, NoReply>> {
        self.requests.lock().batch_replies.pop_front()
    }

    /// A tick is over: fails the requests that have no reply for `most` whole ticks. Their replies, should they come, are
    /// ignored.
    pub(super) fn tick(&self, most: u64) {
        let (mut expired, mut is_any_batch) = (Vec::new(), false);
        let mut guard = self.requests.lock();
        let requests = &mut *guard;
        requests.tick += 1;
        let is_overdue = |request: &&mut Unanswered| request.tick + most < requests.tick;
        for request in requests.unanswered.iter_mut().take_while(is_overdue) {
            match request.recipient.take() {
                Some(Recipient::Caller(caller)) => expired.push(caller),
                Some(Recipient::Batches) => {
                    requests.batch_replies.push_back(Err(overdue()));
                    is_any_batch = true;
                }
                None => {}
            }
        }
        drop(guard);
        expired.into_iter().for_each(|caller| drop(caller.send(Err(overdue()))));
        if is_any_batch {
            self.wake_driver();
        }
    }

    /// Wakes the driver's task for replies to batches that it did not read.
    fn wake_driver(&self) {
        let driver = self.stream.lock().driver();
        driver.wake();
    }

    /// Returns how many requests have no reply.
    pub(super) fn unanswered(&self) -> usize {
        self.requests.lock().unanswered.len()
    }

    /// Returns how many replies have come so far.
    pub(super) fn replies(&self) -> u64 {
        self.requests.lock().replies
    }

    /// Closes the socket: every request without a reply fails, and every later one.
    pub(super) fn close(&self) {
        self.close_by(None);
    }

    /// Closes the socket; the first request without a reply gets `cause`.
    fn close_by(&self, cause: Option<RedisError>) {
        let mut requests = self.requests.lock();
        requests.is_closed = true;
        requests.output = Vec::new();
        let mut unanswered = std::mem::take(&mut requests.unanswered);
        drop(requests);
        let (io, driver) = self.stream.lock().close();
        let first = unanswered.pop_front().and_then(|first| first.recipient);
        if let (Some(Recipient::Caller(caller)), Some(cause)) = (first, cause) {
            let _ = caller.send(Err(NoReply::Failed(cause)));
        }
        drop((io, unanswered));
        driver.wake();
    }

    /// Adds requests by `add`, and writes all that was added, unless another caller does.
    fn write<T>(&self, add: impl FnOnce(&mut Requests) -> T) -> T {
        let mut requests = self.requests.lock();
        let added = add(&mut requests);
        if requests.is_writing {
            return added;
        }
        let mut writes = 0;
        while !requests.output.is_empty() && writes < MOST_WRITES {
            (requests.is_writing, writes) = (true, writes + 1);
            let output = std::mem::take(&mut requests.output);
            drop(requests);
            let emptied = self.stream.lock().write(output);
            requests = self.requests.lock();
            if requests.output.capacity() == 0 {
                requests.output = emptied;
            }
        }
        requests.is_writing = false;
        let is_left = !requests.output.is_empty();
        drop(requests);
        if is_left {
            self.wake_driver();
        }
        added
    }

    /// Reads replies, and delivers them. `hear` takes messages. Ends when the socket is closed.
    pub(super) fn drive(self: Arc<Self>, mut hear: impl FnMut(&PushKind, &[Value]) + Send + 'static) -> Driver {
        let (mut input, mut values, mut arrived) = (Input::default(), Vec::new(), Vec::new());
        Box::pin(poll_fn(move |context| {
            loop {
                let read = self.read(context, &mut input);
                let parsed = read.map(|read| read.and_then(|()| input.take_all(&mut values)));
                let matched = self.take(&mut values, &mut arrived);
                for arrival in arrived.drain(..) {
                    match arrival {
                        Arrival::Reply(caller, reply) => drop(caller.send(Ok(reply))),
                        Arrival::Message(kind, data) => hear(&kind, &data),
                    }
                }
                if let Err(cause) = ready!(parsed).and(matched) {
                    self.close_by(Some(cause));
                    return Poll::Ready(());
                }
            }
        }))
    }

    /// Reads what has come; also writes what the stream did not take before.
    fn read(&self, context: &mut Context<'_>, input: &mut Input) -> Poll<RedisResult<()>> {
        self.flush();
        let length = ready!(self.stream.lock().read(context, input.room()))?;
        input.add(length);
        Poll::Ready(Ok(()))
    }

    /// Takes replies and messages. Collects what the driver delivers.
    fn take(&self, values: &mut Vec<Value>, arrived: &mut Vec<Arrival>) -> RedisResult<()> {
        if values.is_empty() {
            return Ok(());
        }
        let mut requests = self.requests.lock();
        for value in values.drain(..) {
            arrived.extend(requests.arrived(value)?);
        }
        Ok(())
    }
}

fn closed() -> RedisError {
    driven_stream::closed().into()
}

fn overdue() -> NoReply {
    NoReply::Failed(io::Error::from(io::ErrorKind::TimedOut).into())
}

impl Requests {
    fn add_for_caller(&mut self, command: &Cmd, is_subscription: bool) -> PendingReply {
        let (caller, reply) = oneshot::channel();
        if let Err((Recipient::Caller(caller), refusal)) = self.add(command, Recipient::Caller(caller), is_subscription)
        {
            let _ = caller.send(Err(refusal));
        }
        PendingReply(reply)
    }

    /// Adds a request, or gives its recipient back with the reason why not.
    fn add(&mut self, command: &Cmd, recipient: Recipient, is_subscription: bool) -> Result<(), (Recipient, NoReply)> {
        if self.is_closed {
            return Err((recipient, NoReply::Unsent));
        }
        if self.unanswered.len() >= MOST_UNANSWERED {
            let refusal = RedisError::from((ErrorKind::Client, "too many requests have no reply"));
            return Err((recipient, NoReply::Failed(refusal)));
        }
        command.write_packed_command(&mut self.output);
        self.unanswered.push_back(Unanswered { recipient: Some(recipient), tick: self.tick, is_subscription });
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
    use std::io::Write;
    use std::time::Duration;

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
    use tokio::net::UnixStream;

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

    fn is_timeout(reply: Result<Value, NoReply>) -> bool {
        matches!(reply, Err(NoReply::Failed(error)) if error.is_timeout())
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
        // Written with the next request.
        socket.add_batch(&command("B")).unwrap();
        let [third, fourth] = socket.send_both(&command("C"), &command("D"));
        read(&mut server, &["A", "B", "C", "D"].map(command)).await;
        assert_eq!(socket.unanswered(), 4);
        server.write_all(b":1\r\n$3\r\nt").await.unwrap();
        assert_eq!(first.await.unwrap(), Value::Int(1));
        drop(third);
        server.write_all(b"wo\r\n:3\r\n:4\r\n").await.unwrap();
        assert_eq!(fourth.await.unwrap(), Value::Int(4), "also behind a request that was given up");
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
            assert_eq!(reply.await.unwrap(), Value::Int(number));
        }
    }

    /// Replies to each command with the number that it is.
    async fn echo(server: DuplexStream) {
        let (mut reader, mut writer) = tokio::io::split(server);
        let (mut input, mut taken) = (Vec::new(), 0);
        while reader.read_buf(&mut input).await.is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&input[taken..]).into_owned();
            let whole = text.rfind("\r\n").map_or(0, |end| end + 2);
            taken += whole;
            for number in text[..whole].lines().filter(|line| !line.starts_with(['*', '$'])) {
                writer.write_all(format!(":{number}\r\n").as_bytes()).await.unwrap();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn every_caller_gets_its_own_reply_whoever_wrote_its_request() {
        const CALLERS: usize = 8;
        // So small that most writes are cut off.
        let (socket, server) = socket(100);
        tokio::spawn(echo(server));
        let mut callers = tokio::task::JoinSet::new();
        let together = Arc::new(tokio::sync::Barrier::new(CALLERS));
        for caller in 0..CALLERS {
            let (socket, together) = (socket.clone(), together.clone());
            callers.spawn(async move {
                for number in (0..2_000).map(|round| (round * CALLERS + caller) as i64) {
                    // No later request of another caller writes what is left of an earlier one.
                    together.wait().await;
                    let reply = socket.send(&command(&number.to_string())).await;
                    assert_eq!(reply.unwrap(), Value::Int(number));
                }
            });
        }
        callers.join_all().await;
        assert_eq!((socket.unanswered(), socket.replies()), (0, 2_000 * CALLERS as u64));
    }

    #[tokio::test]
    async fn a_closed_socket_leaves_no_caller_waiting() {
        for close in [|socket: &Socket, _| socket.close(), |_: &Socket, server: DuplexStream| drop(server)] {
            let (socket, server) = socket(ROOM);
            let replies = [socket.send(&command("A")), socket.send(&command("B"))];
            close(&socket, server);
            for reply in replies {
                assert!(reply.await.is_err());
            }
            assert!(matches!(socket.send(&command("C")).await, Err(NoReply::Unsent)));
            assert!(matches!(socket.add_batch(&command("C")), Err(NoReply::Unsent)));
            assert_eq!(socket.ask(&command("D")).await.unwrap_err().kind(), ErrorKind::Io);
        }
    }

    /// A stream that breaks with its second write, and can still be read.
    struct Breaking {
        stream: UnixStream,
        is_written: bool,
    }

    impl AsyncWrite for Breaking {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            match std::mem::replace(&mut self.is_written, true) {
                false => Poll::Ready(Ok(bytes.len())),
                true => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncRead for Breaking {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            room: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, room)
        }
    }

    #[tokio::test]
    async fn what_came_before_a_broken_write_is_read() {
        let (stream, server) = UnixStream::pair().unwrap();
        let mut server = server.into_std().unwrap();
        let socket = Arc::new(Socket::new(Box::new(Breaking { stream, is_written: false })));
        tokio::spawn(socket.clone().drive(|_, _| ()));
        let first = socket.send(&command("A"));
        // The driver waits for a reply.
        tokio::task::yield_now().await;
        // The runtime does not see the reply before it polls the driver.
        server.write_all(b":1\r\n").unwrap();
        let second = socket.send(&command("B"));
        assert_eq!(first.await.unwrap(), Value::Int(1));
        assert!(matches!(second.await, Err(NoReply::Failed(_))), "it may have been carried out");
    }

    #[tokio::test]
    async fn an_overdue_request_fails_and_its_late_reply_is_ignored() {
        let (socket, mut server) = socket(ROOM);
        let overdue = socket.send(&command("A"));
        socket.add_batch(&command("B")).unwrap();
        socket.flush();
        socket.tick(2);
        let young = socket.send(&command("C"));
        socket.tick(2);
        assert_eq!(socket.unanswered(), 3);
        assert!(tokio::time::timeout(Duration::from_millis(10), overdue).await.is_err(), "not overdue yet");
        let overdue = socket.send(&command("D"));
        socket.tick(2);
        assert!(is_timeout(socket.batch_reply().unwrap()));
        server.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
        assert_eq!(young.await.unwrap(), Value::Int(3));
        assert!(socket.batch_reply().is_none());
        (0..3).for_each(|_| socket.tick(2));
        assert!(is_timeout(overdue.await));
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
            let is_reply = matches!(reply.await, Ok(Value::Int(1)));
            assert_eq!(is_reply, wrong.starts_with(':'));
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).await.unwrap();
            assert!(matches!(socket.send(&command("B")).await, Err(NoReply::Unsent)));
        }
    }
}
