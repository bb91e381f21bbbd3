//! The connection on which messages for waiters come in.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::engines::postgres::protocol::requests::column;
use crate::engines::postgres::state::server_clock::ServerClock;
use crate::engines::postgres::state::waiting::Waiting;
use crate::engines::postgres::wire::connection::{Connection, Notified};
use crate::engines::postgres::wire::options::Options;
use crate::types::error::Result;
use crate::types::sync::Mutex;
use crate::types::token::AttemptId;

/// How often an idle connection is asked for the time, which shows that it lives and that the clock has not leapt.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// The pauses between attempts to connect.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Listens for messages from the first waiter on.
pub(in crate::engines) struct Listener {
    shared: Arc<Shared>,
    runtime: Handle,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    options: Arc<Options>,
    clock: Arc<ServerClock>,
    waiting: Arc<Waiting>,
    state: watch::Sender<Hearing>,
}

/// Whether messages come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engines) enum Hearing {
    NotYet,
    /// A session of its own cannot be had: a pooler is in between.
    Never,
    On(Arc<str>),
}

impl Listener {
    pub(in crate::engines) fn new(
        options: &Arc<Options>,
        clock: &Arc<ServerClock>,
        waiting: &Arc<Waiting>,
        runtime: &Handle,
    ) -> Listener {
        let (options, clock, waiting) = (options.clone(), clock.clone(), waiting.clone());
        let shared = Arc::new(Shared { options, clock, waiting, state: watch::Sender::new(Hearing::NotYet) });
        Listener { shared, runtime: runtime.clone(), task: Mutex::default() }
    }

    /// Returns the channel on which this process listens.
    pub(in crate::engines) fn channel(&self) -> Option<Arc<str>> {
        match &*self.shared.state.borrow() {
            Hearing::On(channel) => Some(channel.clone()),
            _ => None,
        }
    }

    /// Returns whether no message will ever come in.
    pub(in crate::engines) fn is_deaf(&self) -> bool {
        *self.shared.state.borrow() == Hearing::Never
    }

    /// Begins to listen, and returns when messages come in, or do not within `wait`.
    pub(in crate::engines) async fn begin(&self, wait: Duration) -> bool {
        let mut state = self.shared.state.subscribe();
        {
            let mut task = self.task.lock();
            if task.is_none() {
                let shared = self.shared.clone();
                // tidy-allow(spawn): messages come in for every waiter, whatever becomes of the one that began it
                *task = Some(self.runtime.spawn(async move { shared.listen().await }));
            }
        }
        let settled = state.wait_for(|hearing| *hearing != Hearing::NotYet);
        match tokio::time::timeout(wait, settled).await {
            Ok(Ok(hearing)) => matches!(*hearing, Hearing::On(_)),
            _ => false,
        }
    }

    pub(in crate::engines) fn shut(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shut();
    }
}

impl Shared {
    async fn listen(&self) {
        let mut pause = SHORTEST_PAUSE;
        loop {
            if self.listen_once().await {
                pause = SHORTEST_PAUSE;
            }
            let was_on = self.state.send_replace(Hearing::NotYet) != Hearing::NotYet;
            if was_on {
                // They claim again, by polling until messages come in.
                self.waiting.wake_all();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Listens until the connection breaks. Returns whether messages could come in.
    async fn listen_once(&self) -> bool {
        let (sender, mut messages) = mpsc::unbounded_channel();
        let Ok(connection) = Connection::open(&self.options, &self.clock, &[], Some(&sender)).await else {
            return false;
        };
        drop(sender);
        if connection.is_pooled {
            drop(connection);
            self.state.send_replace(Hearing::Never);
            // Perhaps the pooler is taken away one day.
            tokio::time::sleep(LONGEST_PAUSE * 30).await;
            return false;
        }
        // Of its own session: a channel whose former session is not yet gone has that session's sign of life.
        let channel: Arc<str> = format!("distlock_{}", AttemptId::random()).into();
        if self.subscribe(&connection, &channel).await.is_err() {
            return false;
        }
        // In this order: a waiter that claims from now on need not claim once more.
        self.waiting.wake_all();
        self.state.send_replace(Hearing::On(channel.clone()));
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some(Notified { channel: at, text }) if *at == *channel => {
                        self.waiting.hear(&text, self.clock.now());
                    }
                    Some(_) => {}
                    None => return true,
                },
                () = self.clock.leapt() => self.waiting.wake_all(),
                () = tokio::time::sleep(ASKED_EVERY) => if self.ask_time(&connection).await.is_err() {
                    return true;
                },
            }
        }
    }

    async fn subscribe(&self, connection: &Connection, channel: &str) -> Result<()> {
        connection.execute(&format!("LISTEN \"{channel}\"")).await?;
        connection.query(&self.options.statements.listen_sign, &[&channel]).await.map(drop)
    }

    async fn ask_time(&self, connection: &Connection) -> Result<()> {
        let sent = self.clock.now();
        let rows = connection.query(&self.options.statements.clock, &[]).await?;
        if let Some(row) = rows.first() {
            connection.saw_clock(sent, column(row, 0)?);
        }
        Ok(())
    }
}
