//! One connection that was opened, and everything asked over it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub, PubSubSink, PubSubStream};
use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult,
    Value,
};
use tokio::sync::{OnceCell, SetOnce};

use crate::engines::redis::combiner::{self, Answer, Combiner, Kind, Request};
use crate::engines::redis::dial::{BoxStream, Dialer};
use crate::engines::redis::fault::{Stage, classify, classify_at, is_demoted, is_no_script};
use crate::engines::redis::guard::{Guard, Look};
use crate::engines::redis::options::{Options, Protocol};
use crate::engines::redis::script::{Dialect, Reply, Script, garbled, nonce};
use crate::engines::redis::server_clock::{Leap, Reading, ServerClock, Trust};
use crate::engines::redis::waiting::Waiting;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};

/// How long a request may take before it counts as unanswered.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// How many requests wait to be written before the next one waits for them.
const PIPELINE: usize = 4096;

/// What a session runs on: poll it, or nothing moves.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One open connection.
pub(super) struct Session {
    connection: MultiplexedConnection,
    /// Set when it must not be used any more.
    dead: SetOnce<()>,
    in_flight: AtomicUsize,
    answers: AtomicU64,
    server_clock: Arc<ServerClock>,
    /// Whom a leap of the server's clock concerns: those who wait by this connection.
    waiting: Option<Arc<Waiting>>,
    /// Which server it is.
    pub(super) place: Arc<str>,
    /// Set when the server says that it is no master any more.
    demoted: SetOnce<()>,
    /// Whether messages for waiters come in.
    pub(super) hears: bool,
    /// The second connection, where the protocol needs one to listen on.
    listener: Option<tokio::sync::Mutex<PubSubSink>>,
    dialect: Dialect,
    guard: Option<Arc<Guard>>,
    combiner: Combiner,
    /// The server's id of this life of its, once somebody has asked. A connection does not outlive it.
    life: OnceCell<String>,
}

impl Session {
    /// Dials, logs in, makes sure that this is a server to write to, and listens for `waiting` if there is somebody to
    /// listen for. In this order, so that nothing is asked over a connection that is not ready.
    pub(super) async fn open(
        options: &Options,
        waiting: Option<Arc<Waiting>>,
        server_clock: &Arc<ServerClock>,
    ) -> Result<(Arc<Session>, Driver)> {
        let server = options.find().await?;
        match options.protocol {
            Some(protocol) => open_as(options, &server, waiting, server_clock, protocol).await,
            None => match open_as(options, &server, waiting.clone(), server_clock, Protocol::Resp3).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    open_as(options, &server, waiting, server_clock, Protocol::Resp2).await
                }
                outcome => outcome,
            },
        }
    }

    /// Runs a script; `fill` adds the number of keys, the keys, the nonce it is given, and the other arguments.
    pub(super) async fn run(&self, script: &Script, fill: impl Fn(&mut Cmd, u64)) -> Result<Reply> {
        let nonce = nonce();
        let fill = |command: &mut Cmd| {
            fill(command, nonce);
            if let Some(guard) = &self.guard {
                guard.fill(command, self.server_clock.now());
            }
        };
        let mut command = script.by_hash(self.dialect);
        fill(&mut command);
        let answer = match self.ask(&command).await {
            Err(failure) if failure.is_no_script() => {
                // The same call on the same connection: nothing of it was carried out.
                let mut command = script.by_text(self.dialect);
                fill(&mut command);
                self.ask(&command).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|failure| failure.of(script.name, &self.place))?;
        Reply::check(answer, nonce).inspect_err(|error| self.distrust(error))
    }

    /// Like [`run`](Session::run), for a node that a request was sent to although it does not serve the slot yet.
    pub(super) async fn run_asking(&self, script: &Script, fill: impl Fn(&mut Cmd, u64)) -> Result<Reply> {
        let nonce = nonce();
        // By text: one that the node does not know could not be sent again, for the permission is used up by then.
        let mut command = script.by_text(self.dialect);
        fill(&mut command, nonce);
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command);
        let _in_flight = InFlight::enter(&self.in_flight);
        let mut connection = self.connection.clone();
        let answers = tokio::select! {
            biased;
            answers = connection.send_packed_commands(&both, 0, 2) => answers,
            _ = self.dead.wait() => return Err(Failure::Dead.of(script.name, &self.place)),
        };
        let answer = answers.and_then(|mut answers| answers.pop().unwrap_or(Value::Nil).extract_error());
        let answer = answer.map_err(|error| Failure::Redis(error).of(script.name, &self.place))?;
        Reply::check(answer, nonce).inspect_err(|_| self.kill())
    }

    /// Sends one claim or release, by itself or with others that are asked for at the same time.
    pub(super) async fn gather(&self, kind: Kind, request: Request) -> Result<Answer> {
        match self.dialect {
            // Only what shares a slot could share a call.
            Dialect::Sharded => self.call(kind, &request).await,
            Dialect::Plain | Dialect::Guarded => self.combiner.ask(self, kind, request).await,
        }
    }

    /// Sends one claim or release by itself.
    pub(super) async fn call(&self, kind: Kind, request: &Request) -> Result<Answer> {
        let requests = || std::iter::once(request);
        let (command, nonce) = self.pack(kind, requests(), false);
        let parts = match self.ask_parts(&command, nonce).await {
            Err(failure) if failure.is_no_script() => {
                // The same call on the same connection: nothing of it was carried out.
                let (command, nonce) = self.pack(kind, requests(), true);
                self.ask_parts(&command, nonce).await
            }
            parts => parts,
        };
        let answers = parts.and_then(|parts| self.read(kind, parts, 1));
        let mut answers = answers.map_err(|failure| failure.of(kind.script().name, &self.place))?;
        answers.pop().unwrap_or_else(|| Err(garbled()))
    }

    /// The call for some requests, and its nonce.
    pub(super) fn pack<'a>(
        &self,
        kind: Kind,
        requests: impl Iterator<Item = &'a Request> + Clone,
        by_text: bool,
    ) -> (Cmd, u64) {
        let nonce = nonce();
        let script = kind.script();
        let mut command = if by_text { script.by_text(self.dialect) } else { script.by_hash(self.dialect) };
        combiner::fill(&mut command, nonce, requests);
        if let Some(guard) = &self.guard {
            guard.fill(&mut command, self.server_clock.now());
        }
        (command, nonce)
    }

    /// Sends a call; what comes back behind its nonce.
    pub(super) async fn ask_parts(&self, command: &Cmd, nonce: u64) -> std::result::Result<Vec<Value>, Failure> {
        let answer = self.ask_whole(command).await?;
        Reply::check(answer, nonce).map(Reply::rest).map_err(|error| {
            self.distrust(&error);
            Failure::Garbled
        })
    }

    /// The answers to `count` requests that shared a call. Each has its own error.
    pub(super) fn read(
        &self,
        kind: Kind,
        parts: Vec<Value>,
        count: usize,
    ) -> std::result::Result<Vec<Result<Answer>>, Failure> {
        let mut parts = parts.into_iter();
        let server_us = match (kind, parts.len().checked_sub(count)) {
            (Kind::Release, Some(0)) => 0,
            (Kind::Claim, Some(1)) => match parts.next() {
                Some(Value::Int(now)) => u64::try_from(now).map_err(|_| Failure::Garbled)?,
                _ => return Err(Failure::Garbled),
            },
            _ if count == 0 => return Ok(Vec::new()),
            _ => return Err(Failure::Garbled),
        };
        let read = |outcome| match outcome {
            Value::ServerError(error) => Err(self.refused(error.into()).of(kind.script().name, &self.place)),
            outcome => Ok(Answer { server_us, outcome }),
        };
        Ok(parts.map(read).collect())
    }

    /// Where one answer is not ours, none can be trusted.
    fn distrust(&self, error: &Error) {
        tracing::warn!(target: "distlock", error = %error, "a connection to redis is given up");
        self.kill();
    }

    /// Takes what the server refused a request by.
    fn refused(&self, error: RedisError) -> Failure {
        if is_demoted(&error) {
            let _ = self.demoted.set(());
        }
        Failure::Redis(error)
    }

    /// Sends one command.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value> {
        self.ask(command).await.map_err(|failure| failure.of("a command", &self.place))
    }

    async fn ask(&self, command: &Cmd) -> std::result::Result<Value, Failure> {
        self.ask_whole(command).await?.extract_error().map_err(|error| self.refused(error))
    }

    /// Sends one command; parts of the answer may be errors.
    async fn ask_whole(&self, command: &Cmd) -> std::result::Result<Value, Failure> {
        let _in_flight = InFlight::enter(&self.in_flight);
        let mut connection = self.connection.clone();
        let answer = tokio::select! {
            biased;
            answer = connection.send_packed_command(command) => answer,
            _ = self.dead.wait() => return Err(Failure::Dead),
        };
        if !answer.as_ref().is_err_and(RedisError::is_io_error) {
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        match answer {
            Ok(Value::ServerError(error)) => Err(self.refused(error.into())),
            answer => answer.map_err(|error| self.refused(error)),
        }
    }

    /// What the server calls this life of its: another after each restart.
    pub(super) async fn life(&self) -> Result<&str> {
        let ask = || async {
            let mut command = redis::cmd("INFO");
            let info = redis::from_redis_value::<String>(self.send(command.arg("server")).await?);
            let info = info.map_err(|error| Error::unavailable(format!("redis: INFO is not understood: {error}")))?;
            let id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
            id.map(|id| id.trim().to_owned()).ok_or_else(|| Error::unavailable("redis: the server tells no run_id"))
        };
        self.life.get_or_try_init(ask).await.map(String::as_str)
    }

    /// Returns when the server has said that it is no master any more.
    pub(super) async fn demoted(&self) {
        self.demoted.wait().await;
    }

    /// Whether the connection answers, the listening one included.
    pub(super) async fn ping(&self) -> bool {
        if let Some(listener) = &self.listener
            && listener.lock().await.ping::<Value>().await.is_err()
        {
            return false;
        }
        // Not PING: this shows as well whether the server's clock leapt while nobody claimed anything.
        let sent = self.server_clock.now();
        match self.ask(&redis::cmd("TIME")).await.map(read_time) {
            Ok(Ok(server_us)) => {
                self.saw_clock(sent, server_us);
                true
            }
            // A server that is busy, or does not let us ask, does answer.
            Err(failure) => failure.is_answer(),
            Ok(Err(_)) => false,
        }
    }

    /// Looks how long the leases of others are, if that matters.
    pub(super) async fn watch_canary(&self) {
        if let Some(guard) = &self.guard
            && let Ok(canary) = self.ask(&guard.ask()).await
        {
            guard.learn(&canary, Look::Again, self.server_clock.now());
        }
    }

    /// How many requests are on their way.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many answers have come so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Fails everything that is asked, now and later.
    pub(super) fn kill(&self) {
        let _ = self.dead.set(());
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.initialized()
    }

    pub(super) async fn died(&self) {
        self.dead.wait().await;
    }

    /// What the server's clock shows at the latest when a request sent now has timed out.
    pub(super) fn not_after(&self, now: Moment) -> u64 {
        self.server_clock.latest(now, COMMAND_TIMEOUT)
    }

    /// The server's clock showed `server_us` in the answer that just came to what was sent at `sent`.
    /// Answers what that answer is worth.
    pub(super) fn saw_clock(&self, sent: Moment, server_us: u64) -> Trust {
        let reading = Reading { sent, received: self.server_clock.now(), server_us };
        let leap = self.server_clock.saw(reading);
        if let (Some(leap), Some(waiting)) = (leap, &self.waiting) {
            warn_of(leap);
            // Forward: the lease they wait for may be over.
            waiting.wake_all();
        }
        self.server_clock.trust(reading)
    }
}

fn warn_of(leap: Leap) {
    tracing::warn!(target: "distlock", %leap, "the clock of redis was set: leases end at other times than agreed");
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Redis(RedisError),
    Dead,
    /// There is one, and it is not ours or makes no sense.
    Garbled,
}

impl Failure {
    /// The error of a request to `place`.
    pub(super) fn of(self, what: &str, place: &str) -> Error {
        match self {
            Failure::Redis(error) => classify_at(place, &error, Stage::Request),
            Failure::Dead => Error::unknown(format!("redis: {place}: the connection broke before {what} was answered")),
            Failure::Garbled => garbled(),
        }
    }

    /// Whether the server said so itself.
    fn is_answer(&self) -> bool {
        let kind = if let Failure::Redis(error) = self { Some(error.kind()) } else { None };
        matches!(kind, Some(redis::ErrorKind::Server(_) | redis::ErrorKind::Extension))
    }

    pub(super) fn is_no_script(&self) -> bool {
        matches!(self, Failure::Redis(error) if is_no_script(error))
    }
}

struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn open_as(
    options: &Options,
    server: &Dialer,
    waiting: Option<Arc<Waiting>>,
    server_clock: &Arc<ServerClock>,
    protocol: Protocol,
) -> Result<(Arc<Session>, Driver)> {
    let info = login(options, protocol);
    let mut config =
        AsyncConnectionConfig::new().set_response_timeout(Some(COMMAND_TIMEOUT)).set_pipeline_buffer_size(PIPELINE);
    if let (Protocol::Resp3, Some(waiting)) = (protocol, waiting.clone()) {
        config = config.set_push_sender(move |push: PushInfo| -> std::result::Result<(), ()> {
            hear_push(&waiting, &push);
            Ok(())
        });
    }
    let stream = dial(server).await?;
    let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
    let (connection, driver) = opened.map_err(|error| opening_failed(server, &error))?;
    let mut driver: Driver = Box::pin(driver);
    let session = tokio::select! {
        biased;
        session = prepare(options, server, waiting, server_clock, protocol, connection) => session?,
        () = &mut driver => {
            return Err(Error::unavailable(format!("redis: {}: the connection broke while it was opened", server.place)));
        }
    };
    let (session, listening) = session;
    let session = Arc::new(session);
    let driver = alongside(driver, listening);
    Ok((session.clone(), combining(session, driver)))
}

/// The session's driver, and the end of it when the listening connection ends.
fn alongside(driver: Driver, listening: Option<Driver>) -> Driver {
    match listening {
        None => driver,
        Some(listening) => Box::pin(async move {
            tokio::select! {
                () = driver => {}
                () = listening => {}
            }
        }),
    }
}

/// The session's driver, and beside it what gathers requests: one task, so that those need no change of tasks.
fn combining(session: Arc<Session>, mut driver: Driver) -> Driver {
    Box::pin(async move {
        tokio::select! {
            biased;
            () = session.combiner.run(&session) => {}
            () = &mut driver => {}
        }
    })
}

/// What is asked before the connection is open for use.
async fn prepare(
    options: &Options,
    server: &Dialer,
    waiting: Option<Arc<Waiting>>,
    server_clock: &Arc<ServerClock>,
    protocol: Protocol,
    mut connection: MultiplexedConnection,
) -> Result<(Session, Option<Driver>)> {
    let failed = |error: RedisError| opening_failed(server, &error);
    check_role(&mut connection, server).await?;
    if let Some(guard) = &options.guard {
        let canary = query(&mut connection, &guard.ask()).await.map_err(failed)?;
        guard.learn(&canary, Look::First, server_clock.now());
    }
    let sent = server_clock.now();
    let time = query(&mut connection, &redis::cmd("TIME")).await.map_err(failed)?;
    let reading = Reading { sent, received: server_clock.now(), server_us: read_time(time)? };
    let leap = server_clock.met(&server.place, reading);
    if let (Some(leap), Some(_)) = (leap, &waiting) {
        // Whoever waits is woken when the connection is open.
        warn_of(leap);
    }
    let (mut hears, mut listener, mut listening) = (false, None, None);
    match (waiting.clone(), protocol) {
        (None, _) => {}
        (Some(_), Protocol::Resp3) => {
            hears = may_listen(connection.subscribe(options.channel()).await, server)?;
        }
        (Some(waiting), Protocol::Resp2) => {
            let mut second = PubSub::new(&login(options, protocol), dial(server).await?).await.map_err(failed)?;
            hears = may_listen(second.subscribe(options.channel()).await, server)?;
            if hears {
                let (sink, stream) = second.split();
                listener = Some(tokio::sync::Mutex::new(sink));
                listening = Some(Box::pin(listen(stream, waiting)) as Driver);
            }
        }
    }
    let session = Session {
        connection,
        dead: SetOnce::new(),
        in_flight: AtomicUsize::new(0),
        answers: AtomicU64::new(0),
        server_clock: server_clock.clone(),
        waiting,
        place: server.place.clone(),
        demoted: SetOnce::new(),
        hears,
        listener,
        dialect: options.dialect(),
        guard: options.guard.clone(),
        combiner: Combiner::default(),
        life: OnceCell::new(),
    };
    Ok((session, listening))
}

pub(super) async fn dial(server: &Dialer) -> Result<BoxStream> {
    server.open().await.map_err(|error| {
        Error::unavailable(format!("redis: cannot reach {}: {error}", server.place)).with_source(error)
    })
}

pub(super) fn login(options: &Options, protocol: Protocol) -> RedisConnectionInfo {
    let version = match protocol {
        Protocol::Resp2 => ProtocolVersion::RESP2,
        Protocol::Resp3 => ProtocolVersion::RESP3,
    };
    let mut info = RedisConnectionInfo::default()
        .set_protocol(version)
        .set_db(i64::from(options.database))
        .set_skip_set_lib_name();
    if let Some(username) = &options.username {
        info = info.set_username(username);
    }
    if let Some(password) = &options.password {
        info = info.set_password(password);
    }
    info
}

/// A replica would refuse every claim: better to say so at once, and to look for the master.
async fn check_role(connection: &mut MultiplexedConnection, server: &Dialer) -> Result<()> {
    match query(connection, &redis::cmd("ROLE")).await {
        Ok(Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role != b"master" => {
                let role = String::from_utf8_lossy(role);
                Err(Error::unavailable(format!("redis: the server is no master (its role is {role})")))
            }
            _ => Ok(()),
        },
        // Without the right to ask, the first claim tells.
        Ok(_) => Ok(()),
        Err(error) if classify(&error, Stage::Request).kind() == ErrorKind::Auth => Ok(()),
        Err(error) => Err(opening_failed(server, &error)),
    }
}

async fn query(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}

pub(super) fn read_time(time: Value) -> Result<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time)
        .map_err(|error| Error::unavailable(format!("redis: its clock cannot be read: {error}")))?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// Whether the subscription stands. Without the right to it waiters poll; other failures are failures.
fn may_listen(subscribed: RedisResult<()>, server: &Dialer) -> Result<bool> {
    match subscribed.map_err(|error| opening_failed(server, &error)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Auth => {
            static ONCE: std::sync::Once = std::sync::Once::new();
            ONCE.call_once(|| {
                tracing::warn!(target: "distlock", error = %error, "redis refuses the wake-up channel: waiters poll");
            });
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn opening_failed(server: &Dialer, error: &RedisError) -> Error {
    classify_at(&server.place, error, Stage::Opening)
}

fn hear_push(waiting: &Waiting, push: &PushInfo) {
    if let (PushKind::Message, [_, Value::BulkString(message)]) = (&push.kind, &push.data[..]) {
        waiting.hear(message);
    }
}

async fn listen(mut stream: PubSubStream, waiting: Arc<Waiting>) {
    let next = |stream: &mut PubSubStream, context: &mut std::task::Context<'_>| {
        futures_core::Stream::poll_next(Pin::new(stream), context)
    };
    while let Some(message) = std::future::poll_fn(|context| next(&mut stream, context)).await {
        waiting.hear(message.get_payload_bytes());
    }
}
