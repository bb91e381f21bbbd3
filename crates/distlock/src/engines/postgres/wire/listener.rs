//! The connection on which messages for waiters come in.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::engines::postgres::protocol::requests::column;
use crate::engines::postgres::state::server_clock::ServerClock;
use crate::engines::postgres::wire::connection::{Connection, Notified};
use crate::engines::postgres::wire::options::Options;
use crate::engines::shared::waiting::Waiting;
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
    /// A session of its own cannot be had: a pooler is in between, or all connections are lent.
    Never,
    On(Arc<str>),
    /// For good: the engine is closed.
    Shut,
}

impl Listener {
    pub(in crate::engines) fn new(
        options: &Arc<Options>,
        clock: &Arc<ServerClock>,
        waiting: &Arc<Waiting>,
        runtime: &Handle,
    ) -> Listener {
        let (options, clock, waiting) = (options.clone(), clock.clone(), waiting.clone());
        let state = if options.can_listen() { Hearing::NotYet } else { Hearing::Never };
        let shared = Arc::new(Shared { options, clock, waiting, state: watch::Sender::new(state) });
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

    /// Begins to listen, and returns when messages come in, or do not within `wait`. A listener that is shut stays so.
    pub(in crate::engines) async fn begin(&self, wait: Duration) -> bool {
        let mut state = self.shared.state.subscribe();
        {
            let mut task = self.task.lock();
            if task.is_none() && self.shared.options.can_listen() && *state.borrow() != Hearing::Shut {
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

    /// Ends listening, for good.
    pub(in crate::engines) fn shut(&self) {
        // Under the task's lock: a claim that is under way begins before this, or not at all.
        let mut task = self.task.lock();
        self.shared.state.send_replace(Hearing::Shut);
        if let Some(task) = task.take() {
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
            if self.turn(Hearing::NotYet) {
                // They claim again, by polling until messages come in.
                self.waiting.wake_all();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Changes the state, unless the listener is shut. Returns whether it was another.
    fn turn(&self, to: Hearing) -> bool {
        self.state.send_if_modified(|state| {
            let is_change = *state != Hearing::Shut && *state != to;
            if is_change {
                *state = to;
            }
            is_change
        })
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
            self.turn(Hearing::Never);
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
        self.turn(Hearing::On(channel.clone()));
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some(Notified { channel: at, text }) if *at == *channel => {
                        self.waiting.hear(text.as_bytes(), self.clock.now());
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

#[cfg(test)]
mod tests {
    use std::future::{IntoFuture, pending};
    use std::io;

    use tokio::io::DuplexStream;
    use tokio::sync::Notify;

    use super::*;
    use crate::contract::Attachment;
    use crate::engines::postgres::Postgres;
    use crate::types::clock::Clock;

    const LONG: Duration = Duration::from_secs(30);

    /// Tells when a dial has begun, and when it was dropped.
    #[derive(Default)]
    struct Dial {
        began: Notify,
        ended: Notify,
    }

    struct Ended(Arc<Dial>);

    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.ended.notify_one();
        }
    }

    /// Returns a listener to a server whose connections are never opened.
    fn listener(dial: &Arc<Dial>) -> Listener {
        let dial = dial.clone();
        let open = move || {
            let ended = Ended(dial.clone());
            dial.began.notify_one();
            async move {
                let _ended = ended;
                pending::<io::Result<DuplexStream>>().await
            }
        };
        let engine = Postgres::over("a test", open).user("u").dial_timeout(LONG * 10).build().unwrap();
        let runtime = tokio::runtime::Handle::current();
        let clock = Arc::new(ServerClock::new(Clock::system(), 0.0));
        let waiting = Arc::new(Waiting::new(&Attachment::standalone(&runtime)));
        Listener::new(&engine.options, &clock, &waiting, &runtime)
    }

    async fn in_time<F: IntoFuture>(what: F) -> F::Output {
        tokio::time::timeout(LONG, what.into_future()).await.expect("in time")
    }

    #[tokio::test]
    async fn a_listener_that_is_shut_ends_its_connection_and_is_never_begun_again() {
        let dial = Arc::new(Dial::default());
        let listener = Arc::new(listener(&dial));
        let beginning = tokio::spawn({
            let listener = listener.clone();
            async move { listener.begin(LONG * 10).await }
        });
        in_time(dial.began.notified()).await;
        listener.shut();
        in_time(dial.ended.notified()).await;
        assert!(!in_time(beginning).await.unwrap(), "a claim that waits for it is told at once");
        assert!(!in_time(listener.begin(LONG * 10)).await);
        assert!(listener.task.lock().is_none(), "no task is left, which nothing would end");
        assert!(!listener.shared.turn(Hearing::NotYet), "a task that is being ended changes nothing");
        assert!(listener.channel().is_none() && !listener.is_deaf());
    }
}
