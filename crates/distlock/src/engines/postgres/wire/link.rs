//! A connection that is opened again when it has died.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::engines::postgres::protocol::requests::Statement;
use crate::engines::postgres::state::server_clock::ServerClock;
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::options::Options;
use crate::types::error::{Error, Result};
use crate::types::sync::Mutex;

/// Opens a connection when one is asked for and there is none.
pub(in crate::engines) struct Link {
    options: Arc<Options>,
    clock: Arc<ServerClock>,
    /// Where the connection runs.
    runtime: Handle,
    prepare: fn(&Options) -> Vec<&Statement>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// The outcome of the dialling that is under way.
    dialling: Option<watch::Receiver<Option<Error>>>,
    is_shut: bool,
}

impl Link {
    pub(in crate::engines) fn new(
        options: &Arc<Options>,
        clock: &Arc<ServerClock>,
        runtime: &Handle,
        prepare: fn(&Options) -> Vec<&Statement>,
    ) -> Link {
        let (options, clock, runtime) = (options.clone(), clock.clone(), runtime.clone());
        Link { options, clock, runtime, prepare, state: Arc::default() }
    }

    /// Returns the connection if it is open.
    pub(in crate::engines) fn now(&self) -> Option<Arc<Connection>> {
        self.state.lock().connection.clone().filter(|connection| !connection.is_closed())
    }

    /// Returns the connection, opening it if need be, but waits no longer than `wait`.
    pub(in crate::engines) async fn connection(&self, wait: Duration) -> Result<Arc<Connection>> {
        if let Some(open) = self.now() {
            return Ok(open);
        }
        let mut dialling = self.dial()?;
        let done = tokio::time::timeout(wait, dialling.changed()).await;
        match (self.now(), done) {
            (Some(open), _) => Ok(open),
            (None, Err(_)) => Err(Error::unavailable("postgres: the connection is being opened")),
            (None, Ok(Err(_))) => Err(Error::unavailable("postgres: the runtime of the connection has ended")),
            (None, Ok(Ok(()))) => {
                let failed = dialling.borrow().as_ref().map(Error::duplicate);
                Err(failed.unwrap_or_else(|| Error::unavailable("postgres: the connection broke at once")))
            }
        }
    }

    /// Starts to dial, unless that is under way.
    fn dial(&self) -> Result<watch::Receiver<Option<Error>>> {
        let mut state = self.state.lock();
        if state.is_shut {
            return Err(Error::closed());
        }
        if let Some(dialling) = state.dialling.as_ref().filter(|dialling| dialling.has_changed().is_ok()) {
            return Ok(dialling.clone());
        }
        // A pool may need the old one back before it can lend another.
        state.connection = None;
        let (done, dialling) = watch::channel(None);
        state.dialling = Some(dialling.clone());
        let (options, clock, shared, prepare) =
            (self.options.clone(), self.clock.clone(), self.state.clone(), self.prepare);
        // tidy-allow(spawn): several callers may wait for it, and the socket belongs to the link's runtime
        self.runtime.spawn(async move {
            let opened = Connection::open(&options, &clock, &prepare(&options), None).await;
            let mut state = shared.lock();
            state.dialling = None;
            let failed = match opened {
                Ok(connection) if !state.is_shut => {
                    state.connection = Some(Arc::new(connection));
                    None
                }
                Ok(_) => Some(Error::closed()),
                Err(error) => Some(error),
            };
            drop(state);
            done.send_replace(failed);
        });
        Ok(dialling)
    }

    /// Closes the connection, for good.
    pub(in crate::engines) fn shut(&self) {
        let mut state = self.state.lock();
        state.is_shut = true;
        state.connection = None;
    }
}
