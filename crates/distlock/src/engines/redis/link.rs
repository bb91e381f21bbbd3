//! A connection that is always there: opened, watched, and opened again when it dies.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::contract::Attachment;
use crate::engines::redis::link_state::{LinkState, State, Trouble};
use crate::engines::redis::options::Options;
use crate::engines::redis::sentinels::Sentinels;
use crate::engines::redis::server_clock::ServerClock;
use crate::engines::redis::session::Session;
use crate::engines::redis::waiting::Waiting;
use crate::types::error::{Error, ErrorKind, Result};

/// How often the connection is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long the server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_millis(350);
/// How long the callers' runtime may take to run a task that does nothing.
const HOME_TIMEOUT: Duration = Duration::from_millis(50);
/// Ticks between two pings while somebody waits for a message, and while nobody does.
const PING_WHEN_WAITING: u32 = 3;
const PING_WHEN_IDLE: u32 = 10;
/// Ticks between two looks at the restart guard's canary.
const CANARY_EVERY: u32 = 10;
/// The pause before dialling again: doubles from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(400);

/// One supervised connection. Dropping it closes it.
pub(super) struct Link {
    state: Arc<LinkState>,
    supervisor: JoinHandle<()>,
    clock: Arc<ServerClock>,
    /// Which server it is, as far as that is known before it is dialled.
    place: Arc<str>,
}

impl Link {
    /// Begins to connect. The keeper's runtime runs the supervision; the connection itself runs on `home` as long as that is well:
    /// where the callers are, a request needs no change of threads.
    pub(super) fn start(
        options: Arc<Options>,
        waiting: Option<Arc<Waiting>>,
        attachment: &Attachment,
        home: Handle,
    ) -> Link {
        let (state, clock) = (Arc::new(LinkState::new()), Arc::new(ServerClock::new(attachment)));
        let (refuge, place) = (attachment.keeper_runtime.clone(), options.dialer.place.clone());
        let supervisor =
            Supervisor { options, waiting, clock: clock.clone(), home, refuge, state: Supervised(state.clone()) };
        // tidy-allow(spawn): supervises the connection on the keeper's runtime
        Link { state, supervisor: attachment.keeper_runtime.spawn(supervisor.run()), clock, place }
    }

    /// What is known of the server's clock, over all connections so far.
    pub(super) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    /// The connection, if it is open now.
    pub(super) fn now(&self) -> Option<Arc<Session>> {
        match self.state.now() {
            State::Up(session) if !session.is_dead() => Some(session),
            _ => None,
        }
    }

    /// The connection, once it is open; waits for `patience` at the longest. Nothing was sent when this fails.
    pub(super) async fn session(&self, patience: Duration) -> Result<Arc<Session>> {
        if let Some(session) = self.now() {
            return Ok(session);
        }
        let settled = self.state.wait_for(|state| match state {
            State::New => false,
            State::Up(session) => !session.is_dead(),
            State::Down(trouble) => trouble.is_final(),
            State::Closed => true,
        });
        match tokio::time::timeout(patience, settled).await {
            Ok(State::Up(session)) => Ok(session),
            Ok(State::Down(trouble)) => Err(trouble.error()),
            Ok(_) => Err(Error::closed()),
            Err(_) => Err(self.trouble()),
        }
    }

    /// Returns when the connection is open or the first attempt to open it has failed.
    pub(super) async fn first(&self, patience: Duration) -> Result<()> {
        let settled = self.state.wait_for(|state| !matches!(state, State::New));
        match tokio::time::timeout(patience, settled).await {
            Ok(State::Down(trouble)) => Err(trouble.error()),
            Ok(State::Closed) => Err(Error::closed()),
            Ok(_) => Ok(()),
            Err(_) => Err(self.trouble()),
        }
    }

    pub(super) fn close(&self) {
        self.supervisor.abort();
        if let State::Up(session) = self.state.now() {
            session.kill();
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
    /// Who hears the messages of this connection.
    waiting: Option<Arc<Waiting>>,
    clock: Arc<ServerClock>,
    home: Handle,
    /// The runtime that is there when `home` is not.
    refuge: Handle,
    state: Supervised,
}

/// A state that is closed when nobody supervises the connection any more.
struct Supervised(Arc<LinkState>);

impl Drop for Supervised {
    fn drop(&mut self) {
        self.0.set(State::Closed);
    }
}

/// How a connection came to its end.
enum End {
    NeverOpen(Trouble),
    /// Its runtime is gone or does not run.
    Homeless,
    Died,
}

impl Supervisor {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.one_session().await {
                End::Died => {
                    pause = FIRST_PAUSE;
                    // Not at once: a server may open every connection and close it again.
                    tokio::time::sleep(pause).await;
                }
                End::Homeless => self.home = self.refuge.clone(),
                End::NeverOpen(trouble) => {
                    tracing::debug!(target: "distlock", error = trouble.text, "no connection to redis");
                    self.state.0.set(State::Down(trouble));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    /// Opens a connection, serves with it, and sees it die.
    async fn one_session(&self) -> End {
        let (opened, opening) = oneshot::channel();
        let life = live(self.options.clone(), self.waiting.clone(), self.clock.clone(), opened);
        // tidy-allow(spawn): drives the connection where its callers are; the supervisor aborts it
        let mut task = Running(self.home.spawn(life));
        // A little more than the dialling itself may take: who exceeds that has no runtime to run on.
        let limit = self.options.dial_timeout + PING_TIMEOUT;
        let session = match tokio::time::timeout(limit, opening).await {
            Ok(Ok(Ok(session))) => session,
            Ok(Ok(Err(trouble))) => return End::NeverOpen(trouble),
            Ok(Err(_)) | Err(_) => return End::Homeless,
        };
        // First, so that only those are woken whose claims went over an earlier connection.
        if let Some(waiting) = &self.waiting {
            waiting.wake_all();
        }
        self.state.0.set(State::Up(session.clone()));
        let end = self.watch(&session, &mut task.0).await;
        session.kill();
        let text = format!("redis: {}: the connection broke and is opened again", session.place);
        self.state.0.set(State::Down(Trouble { kind: ErrorKind::Unavailable, text }));
        end
    }

    /// Returns when the connection is of no more use.
    async fn watch(&self, session: &Session, task: &mut JoinHandle<()>) -> End {
        let mut seen = session.answers();
        let (mut quiet, mut ticks) = (0, 0_u32);
        let (mut read, mut unread) = (self.clock.readings(), 0);
        let mut switches = self.options.sentinels.as_ref().map(Sentinels::switches);
        loop {
            tokio::select! {
                biased;
                ended = &mut *task => {
                    return if ended.is_err() { End::Homeless } else { End::Died };
                }
                () = session.died() => return End::Died,
                () = session.demoted(), if switches.is_some() => return End::Died,
                () = changed(&mut switches) => if self.has_moved(session).await { return End::Died },
                () = tokio::time::sleep(TICK) => {}
            }
            ticks = ticks.wrapping_add(1);
            if ticks.is_multiple_of(CANARY_EVERY) {
                let _ = tokio::time::timeout(PING_TIMEOUT, session.watch_canary()).await;
            }
            let answers = session.answers();
            quiet = if std::mem::replace(&mut seen, answers) == answers { quiet + 1 } else { 0 };
            // Not every answer tells the time.
            let readings = self.clock.readings();
            unread = if std::mem::replace(&mut read, readings) == readings { unread + 1 } else { 0 };
            let waits = self.waiting.as_ref().is_some_and(|waiting| !waiting.is_empty());
            let due = match session.in_flight() {
                0 => quiet >= if waits { PING_WHEN_WAITING } else { PING_WHEN_IDLE },
                // Somebody waits for an answer, and for a whole tick none came.
                _ => quiet > 0,
            };
            if due || unread >= PING_WHEN_IDLE {
                unread = 0;
                let answers = matches!(tokio::time::timeout(PING_TIMEOUT, session.ping()).await, Ok(true));
                // A server that answers others in time is busy, and not away.
                if due && !answers {
                    return if self.home_runs().await { End::Died } else { End::Homeless };
                }
            }
        }
    }

    /// Whether somebody else is the master now.
    async fn has_moved(&self, session: &Session) -> bool {
        self.options.find().await.is_ok_and(|server| server.place != session.place)
    }

    /// Whether the runtime that drives the connection runs at all, or a task of the application blocks it.
    async fn home_runs(&self) -> bool {
        // tidy-allow(spawn): a probe that ends at once
        let mut probe = Running(self.home.spawn(async {}));
        matches!(tokio::time::timeout(HOME_TIMEOUT, &mut probe.0).await, Ok(Ok(())))
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
    opened: oneshot::Sender<std::result::Result<Arc<Session>, Trouble>>,
) {
    let limit = options.dial_timeout;
    let outcome = tokio::time::timeout(limit, Session::open(&options, waiting, &clock)).await;
    match outcome {
        Ok(Ok((session, driver))) => {
            if opened.send(Ok(session)).is_ok() {
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
