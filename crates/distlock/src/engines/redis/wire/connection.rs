//! One open connection to a server, and the commands and scripts that it runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use redis::aio::PubSubSink;
use redis::{Cmd, RedisError, Value};
use tokio::sync::SetOnce;

use crate::engines::redis::error::{Stage, classify_at, is_demoted, is_no_script};
use crate::engines::redis::protocol::names::Fences;
use crate::engines::redis::protocol::script::{Dialect, PRELOADED, Reply, Script, garbled, nonce, read_time};
use crate::engines::redis::protocol::time::COMMAND_TIMEOUT;
use crate::engines::redis::state::restart_guard::{Look, RestartGuard};
use crate::engines::redis::wire::batcher::Batcher;
use crate::engines::redis::wire::natives::{CompareAndDelete, Natives};
use crate::engines::redis::wire::options::Options;
use crate::engines::redis::wire::probe::{Probe, is_refused_right};
use crate::engines::redis::wire::server_clock::{Leap, Reading, ServerClock, Trust};
use crate::engines::redis::wire::socket::{NoReply, Socket};
use crate::engines::shared::waiting::Waiting;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::finding::version;

/// The first version whose `SET` knows what the lean script of claims asks of it.
const LEAN_SINCE: [u32; 3] = [6, 2, 0];

/// One open connection.
pub(in crate::engines) struct Connection {
    /// Tells connections of this process apart.
    pub(in crate::engines) id: u64,
    pub(super) socket: Arc<Socket>,
    /// Set when the connection must not be used any more.
    dead: SetOnce<()>,
    server_clock: Arc<ServerClock>,
    /// The waiters that a leap of the server's clock concerns: those of this connection.
    waiting: Option<Arc<Waiting>>,
    /// The server's address, for messages.
    pub(in crate::engines) place: Arc<str>,
    /// Set when the server says that it is no master any more.
    demoted: SetOnce<()>,
    listening: Listening,
    pub(super) dialect: Dialect,
    loads_scripts: bool,
    /// Which keys are the fences on this server.
    pub(in crate::engines) fences: Fences,
    /// Whether the server can run the lean script of claims.
    pub(in crate::engines) claims_lean: bool,
    guard: Option<Arc<RestartGuard>>,
    pub(super) batcher: Batcher,
    /// The native commands of the server, as far as this connection's user may send them.
    pub(super) natives: Natives,
    /// Set when the right to send them was taken away.
    lost_natives: AtomicBool,
    /// Whether scripts may publish.
    pub(super) publishes: bool,
    /// The server's `run_id`, once a caller has asked for it. A connection does not outlive it.
    run_id: OnceLock<String>,
}

/// How messages for waiters come in.
pub(super) enum Listening {
    /// They do not.
    No,
    /// Over the connection itself.
    Here,
    /// Over a second connection, which the old protocol needs.
    Beside(tokio::sync::Mutex<PubSubSink>),
}

impl Connection {
    pub(super) fn new(
        socket: Arc<Socket>,
        options: &Options,
        place: Arc<str>,
        server_clock: Arc<ServerClock>,
        waiting: Option<Arc<Waiting>>,
        listening: Listening,
        found: Probe,
    ) -> Connection {
        let Probe { identity, mute, natives } = found;
        let knows_lean = identity.version.is_some_and(|its| version(&its) >= LEAN_SINCE);
        Connection {
            id: nonce(),
            socket,
            dead: SetOnce::new(),
            server_clock,
            waiting,
            place,
            demoted: SetOnce::new(),
            listening,
            dialect: options.dialect(),
            loads_scripts: options.loads_scripts,
            fences: options.fences(),
            claims_lean: knows_lean && options.guard.is_none() && options.wait_replicas == 0,
            guard: options.guard.clone(),
            batcher: Batcher::default(),
            natives,
            lost_natives: AtomicBool::new(false),
            publishes: mute.is_none(),
            run_id: OnceLock::new(),
        }
    }

    /// Runs a script; `fill` adds the number of keys, the keys, the nonce that it is given, and the other arguments.
    pub(in crate::engines) async fn run(&self, script: &Script, fill: impl Fn(&mut Cmd, u64)) -> Result<Reply> {
        match self.try_run(script, false, &fill).await? {
            Some(reply) => Ok(reply),
            // The same call on the same connection: the server carried out nothing of the first one.
            None => self.try_run(script, true, &fill).await?.ok_or_else(garbled),
        }
    }

    /// Runs a script by its hash, or by its text. Returns `None` when the server does not know the hash.
    pub(in crate::engines) async fn try_run(
        &self,
        script: &Script,
        by_text: bool,
        fill: impl Fn(&mut Cmd, u64),
    ) -> Result<Option<Reply>> {
        let nonce = nonce();
        let command = if by_text { script.by_text(self.dialect) } else { script.by_hash(self.dialect) };
        match self.ask(&self.call(command, |command| fill(command, nonce))).await {
            Err(failure) if !by_text && failure.is_no_script() => Ok(None),
            Err(failure) => Err(failure.of(script.name, &self.place)),
            Ok(reply) => Reply::check(reply, nonce).map(Some).inspect_err(|error| self.distrust(error)),
        }
    }

    /// Adds the arguments of a call, and those of the restart guard behind them.
    pub(super) fn call(&self, mut command: Cmd, fill: impl FnOnce(&mut Cmd)) -> Cmd {
        fill(&mut command);
        if let Some(guard) = &self.guard {
            guard.fill(&mut command, self.server_clock.now());
        }
        command
    }

    /// Like [`run`](Connection::run), for a node that a redirection named although it does not serve the hash slot yet.
    pub(in crate::engines) async fn run_asking(&self, script: &Script, fill: impl Fn(&mut Cmd, u64)) -> Result<Reply> {
        let nonce = nonce();
        // By text: after NOSCRIPT the call could not be repeated, because the first one uses up the permission.
        let mut command = script.by_text(self.dialect);
        fill(&mut command, nonce);
        let [_permission, reply] = self.socket.send_both(&redis::cmd("ASKING"), &command);
        let reply = self.replied(reply.await).map_err(|failure| failure.of(script.name, &self.place))?;
        Reply::check(reply, nonce).inspect_err(|_| self.kill())
    }

    /// Gives the server the scripts that it lacks, so that the first call of each finds them. Without the right to do so
    /// that call gives the server the text.
    pub(super) async fn load_scripts(&self) {
        if !self.loads_scripts {
            return;
        }
        let texts = PRELOADED.map(|script| script.hash_and_text(self.dialect));
        let mut ask = redis::cmd("SCRIPT");
        ask.arg("EXISTS");
        for (hash, _) in &texts {
            ask.arg(hash);
        }
        let Ok(Value::Array(known)) = self.ask(&ask).await else { return };
        for (_, text) in texts.iter().zip(known).filter(|(_, known)| *known == Value::Int(0)).map(|(text, _)| text) {
            if self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(text)).await.is_err() {
                return;
            }
        }
    }

    /// Gives the connection up: where one reply belongs to another request, none can be trusted.
    pub(super) fn distrust(&self, error: &Error) {
        tracing::warn!(target: "distlock", error = %error, "a connection to redis is given up");
        self.kill();
    }

    /// Takes the error by which the server refused a request.
    pub(super) fn refused(&self, error: RedisError) -> Failure {
        if is_demoted(&error) {
            let _ = self.demoted.set(());
        }
        Failure::Redis(error)
    }

    /// Sends one command.
    pub(in crate::engines) async fn send(&self, command: &Cmd) -> Result<Value> {
        self.ask(command).await.map_err(|failure| failure.of("a command", &self.place))
    }

    async fn ask(&self, command: &Cmd) -> std::result::Result<Value, Failure> {
        self.ask_whole(command).await?.extract_error().map_err(|error| self.refused(error))
    }

    /// Sends one command; parts of the reply may be errors.
    pub(super) async fn ask_whole(&self, command: &Cmd) -> std::result::Result<Value, Failure> {
        self.replied(self.socket.send(command).await)
    }

    /// Takes the reply to a command.
    pub(super) fn replied(&self, reply: std::result::Result<Value, NoReply>) -> std::result::Result<Value, Failure> {
        match reply {
            Ok(Value::ServerError(error)) => Err(self.refused(error.into())),
            Ok(value) => Ok(value),
            Err(no_reply) => Err(no_reply.into()),
        }
    }

    /// Returns the native command that releases a lock, if this connection can use one.
    pub(in crate::engines) fn native_release(&self) -> Option<CompareAndDelete> {
        self.natives.compare_and_delete.filter(|_| !self.lost_natives.load(Ordering::Relaxed))
    }

    /// Takes the failure of a native command: one that is refused is not sent again over this connection.
    pub(super) fn native_failed(&self, failure: &Failure) {
        if let Failure::Redis(error) = failure
            && is_refused_right(error)
        {
            self.lost_natives.store(true, Ordering::Relaxed);
        }
    }

    /// Our own clock.
    pub(super) fn now(&self) -> Moment {
        self.server_clock.now()
    }

    /// Returns the server's `run_id`, which is another after each restart. Callers ask for it side by side until it is known:
    /// one that is not polled for a while must not delay the others.
    pub(in crate::engines) async fn life(&self) -> Result<&str> {
        if let Some(run_id) = self.run_id.get() {
            return Ok(run_id);
        }
        let mut command = redis::cmd("INFO");
        let info = redis::from_redis_value::<String>(self.send(command.arg("server")).await?);
        let info = info.map_err(|error| Error::unavailable(format!("redis: INFO is not understood: {error}")))?;
        let id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        let id = id.ok_or_else(|| Error::unavailable("redis: the server tells no run_id"))?;
        Ok(self.run_id.get_or_init(|| id.trim().to_owned()))
    }

    /// Whether messages for waiters come in: they are listened for, and clients with our rights may send them.
    pub(in crate::engines) fn hears(&self) -> bool {
        self.publishes && !matches!(self.listening, Listening::No)
    }

    /// Returns when the server has said that it is no master any more.
    pub(super) async fn demoted(&self) {
        self.demoted.wait().await;
    }

    /// Returns whether the server replies, over the listening connection too.
    pub(super) async fn ping(&self) -> bool {
        if let Listening::Beside(listener) = &self.listening
            && listener.lock().await.ping::<Value>().await.is_err()
        {
            return false;
        }
        // Not PING: TIME also shows whether the server's clock leapt while no claim was made.
        let sent = self.server_clock.now();
        match self.ask(&redis::cmd("TIME")).await.map(read_time) {
            Ok(Ok(server_us)) => {
                self.saw_clock(sent, server_us);
                true
            }
            // A server that is busy, or refuses the command, is alive.
            Err(failure) => failure.is_reply(),
            Ok(Err(_)) => false,
        }
    }

    /// Reads the restart guard's canary, if there is a guard.
    pub(super) async fn watch_canary(&self) {
        if let Some(guard) = &self.guard
            && let Ok(canary) = self.ask(&guard.ask()).await
        {
            guard.learn(&canary, Look::Again, self.server_clock.now());
        }
    }

    /// Fails every request, pending and future.
    pub(super) fn kill(&self) {
        let _ = self.dead.set(());
        self.end_batches();
        self.socket.close();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.initialized()
    }

    /// Returns when the connection must not be used any more.
    pub(super) async fn died(&self) {
        self.dead.wait().await;
    }

    /// Returns what the server's clock shows at the latest when a request sent now has timed out.
    pub(in crate::engines) fn not_after(&self, now: Moment) -> u64 {
        self.server_clock.latest(now, COMMAND_TIMEOUT)
    }

    /// Takes the server's clock `server_us` from the reply that just came to a request sent at `sent`.
    /// Returns how far that reply can be trusted.
    pub(in crate::engines) fn saw_clock(&self, sent: Moment, server_us: u64) -> Trust {
        let reading = Reading { sent, received: self.server_clock.now(), server_us };
        let leap = self.server_clock.saw(reading);
        if let (Some(leap), Some(waiting)) = (leap, &self.waiting) {
            warn_of(leap);
            // Forward: the lease that they wait for may be over.
            waiting.wake_all();
        }
        self.server_clock.trust(reading)
    }
}

pub(super) fn warn_of(leap: Leap) {
    tracing::warn!(target: "distlock", %leap, "the clock of redis was set: leases end at other times than agreed");
}

/// Why a request has no reply.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Redis(RedisError),
    /// The connection broke before the request was sent.
    Unsent,
    /// The connection broke before the request was answered.
    Dead,
    /// The reply belongs to another request or cannot be parsed.
    Garbled,
}

impl From<NoReply> for Failure {
    fn from(no_reply: NoReply) -> Failure {
        match no_reply {
            NoReply::Unsent => Failure::Unsent,
            NoReply::Closed => Failure::Dead,
            NoReply::Failed(error) => Failure::Redis(error),
        }
    }
}

impl Failure {
    /// Returns the error of the request `what` to `place`.
    pub(super) fn of(self, what: &str, place: &str) -> Error {
        match self {
            Failure::Redis(error) => classify_at(place, &error, Stage::Request),
            Failure::Unsent => {
                Error::unavailable(format!("redis: {place}: the connection broke before {what} was sent"))
            }
            Failure::Dead => Error::unknown(format!("redis: {place}: the connection broke before {what} was answered")),
            Failure::Garbled => garbled(),
        }
    }

    /// Whether the server itself sent this error.
    fn is_reply(&self) -> bool {
        let kind = if let Failure::Redis(error) = self { Some(error.kind()) } else { None };
        matches!(kind, Some(redis::ErrorKind::Server(_) | redis::ErrorKind::Extension))
    }

    pub(super) fn is_no_script(&self) -> bool {
        matches!(self, Failure::Redis(error) if is_no_script(error))
    }
}
