//! A supervised connection: opened, watched, and opened again when it dies.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::contract::Attachment;
use crate::engines::redis::protocol::time::COMMAND_TIMEOUT;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::link_state::{LinkState, State, Trouble};
use crate::engines::redis::wire::open::{Ending, open};
use crate::engines::redis::wire::options::Options;
use crate::engines::redis::wire::sentinels::Sentinels;
use crate::engines::redis::wire::server_clock::ServerClock;
use crate::engines::shared::waiting::Waiting;
use crate::types::error::{Error, ErrorKind, Result};

/// How often the supervisor looks at the connection.
const TICK: Duration = Duration::from_millis(100);
/// How many of them a request may take.
const MOST_TICKS: u64 = COMMAND_TIMEOUT.as_millis() as u64 / TICK.as_millis() as u64;
/// How long the server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_millis(350);
/// How long the callers' runtime may take to run a task that does nothing.
const RUNTIME_TIMEOUT: Duration = Duration::from_millis(50);
/// Ticks between two pings while there are waiters, and while there are none.
const PING_WHEN_WAITING: u32 = 3;
const PING_WHEN_IDLE: u32 = 10;
/// Ticks between two reads of the restart guard's canary.
const CANARY_EVERY: u32 = 10;
/// The backoff before dialling again: doubles from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(400);

/// One supervised connection. Dropping it closes it.
pub(in crate::engines) struct Link {
    state: Arc<LinkState>,
    supervisor: JoinHandle<()>,
    clock: Arc<ServerClock>,
    /// The server's address, as far as it is known before it is dialled.
    place: Arc<str>,
}

impl Link {
    /// Begins to connect. The supervisor runs on the keeper's runtime. The connection itself runs on `runtime` while that
    /// works: on the callers' runtime a request needs no change of threads.
    pub(in crate::engines) fn start(
        options: Arc<Options>,
        waiting: Option<Arc<Waiting>>,
        attachment: &Attachment,
        runtime: Handle,
    ) -> Link {
        let (state, clock) = (Arc::new(LinkState::new()), Arc::new(ServerClock::new(attachment)));
        let (keeper_runtime, place) = (attachment.keeper_runtime.clone(), options.dialer.place.clone());
        let supervisor = Supervisor {
            options,
            waiting,
            clock: clock.clone(),
            runtime,
            keeper_runtime,
            state: Supervised(state.clone()),
        };
        // tidy-allow(spawn): supervises the connection on the keeper's runtime
        Link { state, supervisor: attachment.keeper_runtime.spawn(supervisor.run()), clock, place }
    }

    /// Returns what is known of the server's clock from all connections so far.
    pub(in crate::engines) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// Returns the connection if it is open now.
    pub(in crate::engines) fn now(&self) -> Option<Arc<Connection>> {
        match self.state.now() {
            State::Up(connection) if !connection.is_dead() => Some(connection),
            _ => None,
        }
    }

    /// Returns the connection when it is open; waits at most `wait`. Nothing was sent when this fails.
    pub(in crate::engines) async fn connection(&self, wait: Duration) -> Result<Arc<Connection>> {
        if let Some(connection) = self.now() {
            return Ok(connection);
        }
        let settled = self.state.wait_for(|state| match state {
            State::New => false,
            State::Up(connection) => !connection.is_dead(),
            State::Down(trouble) => trouble.is_final(),
            State::Closed => true,
        });
        match tokio::time::timeout(wait, settled).await {
            Ok(State::Up(connection)) => Ok(connection),
            Ok(State::Down(trouble)) => Err(trouble.error()),
            Ok(_) => Err(Error::closed()),
            Err(_) => Err(self.trouble()),
        }
    }

    /// Returns when the connection is open or the first attempt to open it has failed.
    pub(in crate::engines) async fn first(&self, wait: Duration) -> Result<()> {
        let settled = self.state.wait_for(|state| !matches!(state, State::New));
        match tokio::time::timeout(wait, settled).await {
            Ok(State::Down(trouble)) => Err(trouble.error()),
            Ok(State::Closed) => Err(Error::closed()),
            Ok(_) => Ok(()),
            Err(_) => Err(self.trouble()),
        }
    }

    pub(in crate::engines) fn close(&self) {
        self.supervisor.abort();
        if let State::Up(connection) = self.state.now() {
            connection.kill();
        }
    }

    fn trouble(&self) -> Error {
        match self.state.now() {
            State::Down(trouble) => trouble.error(),
            _ => Error::unavailable(format!("redis: {} does not answer", self.place)),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

struct Supervisor {
    options: Arc<Options>,
    /// The waiters that the messages of this connection are for.
    waiting: Option<Arc<Waiting>>,
    clock: Arc<ServerClock>,
    runtime: Handle,
    /// Takes over when `runtime` does not run.
    keeper_runtime: Handle,
    state: Supervised,
}

/// A state that is closed when its supervisor ends.
struct Supervised(Arc<LinkState>);

impl Drop for Supervised {
    fn drop(&mut self) {
        self.0.set(State::Closed);
    }
}

/// Why a connection ended.
enum End {
    NeverOpen(Trouble),
    /// Its runtime is gone or does not run.
    RuntimeGone,
    Died,
}

impl Supervisor {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.serve_once().await {
                End::Died => {
                    pause = FIRST_PAUSE;
                    // Not at once: a server may open every connection and close it again.
                    tokio::time::sleep(pause).await;
                }
                End::RuntimeGone => self.runtime = self.keeper_runtime.clone(),
                End::NeverOpen(trouble) => {
                    tracing::debug!(target: "distlock", error = trouble.text, "no connection to redis");
                    self.state.0.set(State::Down(trouble));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    /// Opens a connection, and returns when it has died.
    async fn serve_once(&self) -> End {
        let (opened, opening) = oneshot::channel();
        let life = live(self.options.clone(), self.waiting.clone(), self.clock.clone(), opened);
        // tidy-allow(spawn): drives the connection where its callers are; the supervisor aborts it
        let mut task = Running(self.runtime.spawn(life));
        // A little more than the dialling itself may take: when that is exceeded, the runtime does not run.
        let limit = self.options.dial_timeout + PING_TIMEOUT;
        let connection = match tokio::time::timeout(limit, opening).await {
            Ok(Ok(Ok(connection))) => connection,
            Ok(Ok(Err(trouble))) => return End::NeverOpen(trouble),
            Ok(Err(_)) | Err(_) => return End::RuntimeGone,
        };
        // First, so that only waiters whose claims went over an earlier connection are woken.
        if let Some(waiting) = &self.waiting {
            waiting.wake_all();
        }
        // Also when this is dropped: requests expire only while this runs.
        let ending = Ending(connection.clone());
        self.state.0.set(State::Up(connection.clone()));
        let end = tokio::select! {
            end = self.watch(&connection, &mut task.0) => end,
            end = expire(&connection) => match end {},
        };
        drop(ending);
        let text = format!("redis: {}: the connection broke and is opened again", connection.place);
        self.state.0.set(State::Down(Trouble { kind: ErrorKind::Unavailable, text }));
        end
    }

    /// Returns when the connection cannot be used any more.
    async fn watch(&self, connection: &Connection, task: &mut JoinHandle<()>) -> End {
        let mut seen = connection.socket.replies();
        let (mut quiet, mut ticks) = (0, 0_u32);
        let (mut read, mut unread) = (self.clock.readings(), 0);
        let mut switches = self.options.sentinels.as_ref().map(Sentinels::switches);
        loop {
            tokio::select! {
                biased;
                ended = &mut *task => {
                    return if ended.is_err() { End::RuntimeGone } else { End::Died };
                }
                () = connection.died() => return End::Died,
                () = connection.demoted(), if switches.is_some() => return End::Died,
                () = changed(&mut switches) => if self.has_moved(connection).await { return End::Died },
                () = tokio::time::sleep(TICK) => {}
            }
            ticks = ticks.wrapping_add(1);
            if ticks.is_multiple_of(CANARY_EVERY) {
                let _ = tokio::time::timeout(PING_TIMEOUT, connection.watch_canary()).await;
            }
            let replies = connection.socket.replies();
            quiet = if std::mem::replace(&mut seen, replies) == replies { quiet + 1 } else { 0 };
            // Not every reply tells the time.
            let readings = self.clock.readings();
            unread = if std::mem::replace(&mut read, readings) == readings { unread + 1 } else { 0 };
            let waits = self.waiting.as_ref().is_some_and(|waiting| !waiting.is_empty());
            let due = match connection.socket.unanswered() {
                0 => quiet >= if waits { PING_WHEN_WAITING } else { PING_WHEN_IDLE },
                // A request is unanswered, and no reply came for a whole tick.
                _ => quiet > 0,
            };
            if due || unread >= PING_WHEN_IDLE {
                unread = 0;
                let is_alive = matches!(tokio::time::timeout(PING_TIMEOUT, connection.ping()).await, Ok(true));
                // A server that replies to other requests in time is busy, not gone.
                if due && !is_alive {
                    return if self.runtime_runs().await { End::Died } else { End::RuntimeGone };
                }
            }
        }
    }

    /// Returns whether another server is the master now.
    async fn has_moved(&self, connection: &Connection) -> bool {
        self.options.find().await.is_ok_and(|server| server.place != connection.place)
    }

    /// Returns whether the runtime that drives the connection runs, or a task of the application blocks it.
    async fn runtime_runs(&self) -> bool {
        // tidy-allow(spawn): a probe that ends at once
        let mut probe = Running(self.runtime.spawn(async {}));
        matches!(tokio::time::timeout(RUNTIME_TIMEOUT, &mut probe.0).await, Ok(Ok(())))
    }
}

/// Has the connection's requests expire. By a schedule of its own: the supervisor may wait for a reply itself. After a stop
/// of the process one tick is over, not many: the replies that came meanwhile are read first.
async fn expire(connection: &Connection) -> std::convert::Infallible {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        connection.socket.tick(MOST_TICKS);
    }
}

async fn changed(switches: &mut Option<watch::Receiver<()>>) {
    if let Some(switches) = switches
        && switches.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A task that ends when it is dropped.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a connection and drives it to its end.
async fn live(
    options: Arc<Options>,
    waiting: Option<Arc<Waiting>>,
    clock: Arc<ServerClock>,
    opened: oneshot::Sender<std::result::Result<Arc<Connection>, Trouble>>,
) {
    let limit = options.dial_timeout;
    let outcome = tokio::time::timeout(limit, open(&options, waiting, &clock)).await;
    match outcome {
        Ok(Ok((connection, driver))) => {
            if opened.send(Ok(connection)).is_ok() {
                driver.await;
            }
        }
        Ok(Err(error)) => {
            let _ = opened.send(Err(Trouble { kind: error.kind(), text: error.to_string() }));
        }
        Err(_) => {
            let text = format!("redis: {} did not answer within {limit:?}", options.dialer.place);
            let _ = opened.send(Err(Trouble { kind: ErrorKind::Unavailable, text }));
        }
    }
}
