//! Receives the messages of one master of a cluster.
//!
//! On a connection of its own: when a hash slot moves, the server ends its subscriptions unasked. A connection with other
//! traffic would take that for a reply. So this one interprets no replies, and is opened again when that happens.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::contract::Attachment;
use crate::engines::redis::error::{Stage, classify_at};
use crate::engines::redis::protocol::time::COMMAND_TIMEOUT;
use crate::engines::redis::wire::driver::Driver;
use crate::engines::redis::wire::open::warn_of_polling;
use crate::engines::redis::wire::options::{Options, Protocol};
use crate::engines::redis::wire::probe::is_refused_right;
use crate::engines::shared::waiting::Waiting;
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, Result};

/// How long a claim waits for its subscription; without one it polls.
const SUBSCRIBE_WAIT: Duration = Duration::from_millis(500);
/// How long an unused subscription is kept. Waiters use it three times in a heartbeat, which is 30 s at most.
const LINGER: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause before dialling again.
const DIAL_AGAIN: Duration = Duration::from_millis(100);

/// Receives messages about locks: each lock has a channel of its own.
pub(in crate::engines) struct Subscriber {
    subscriptions: Arc<Subscriptions>,
    task: JoinHandle<()>,
}

/// The channels that are wanted, and whether the subscription to each stands.
struct Subscriptions {
    options: Arc<Options>,
    waiting: Arc<Waiting>,
    clock: Clock,
    channels: Mutex<HashMap<String, Channel>>,
    /// There is a channel to subscribe to.
    wanted: Notify,
    /// Changes when a subscription stands or was refused.
    settled: watch::Sender<()>,
    /// Whether the server has refused the command or the right to a channel.
    refused: AtomicBool,
}

struct Channel {
    stands: bool,
    asked: Moment,
}

impl Subscriber {
    pub(in crate::engines) fn start(
        options: Arc<Options>,
        waiting: Arc<Waiting>,
        attachment: &Attachment,
    ) -> Subscriber {
        let subscriptions = Arc::new(Subscriptions {
            options,
            waiting,
            clock: attachment.clock.clone(),
            channels: Mutex::default(),
            wanted: Notify::new(),
            settled: watch::Sender::new(()),
            refused: AtomicBool::new(false),
        });
        // tidy-allow(spawn): hears on the keeper's runtime, so that a blocked application misses nothing
        let task = attachment.keeper_runtime.spawn(subscriptions.clone().run());
        Subscriber { subscriptions, task }
    }

    /// Returns whether messages about the lock with this fence come in now.
    pub(in crate::engines) fn hears(&self, fence: &str) -> bool {
        let now = self.subscriptions.clock.now();
        let mut channels = self.subscriptions.channels();
        let Some(channel) = channels.get_mut(&self.subscriptions.options.sharded_channel(fence)) else { return false };
        channel.asked = now;
        channel.stands
    }

    /// Returns whether the server has refused the command or the right to a channel.
    pub(in crate::engines) fn is_refused(&self) -> bool {
        self.subscriptions.refused.load(Ordering::Relaxed)
    }

    /// Subscribes. Returns whether messages come in.
    pub(in crate::engines) async fn listen(&self, fence: &str) -> bool {
        let name = self.subscriptions.options.sharded_channel(fence);
        let mut settled = self.subscriptions.settled.subscribe();
        let asked = self.subscriptions.clock.now();
        self.subscriptions.channels().entry(name.clone()).or_insert(Channel { stands: false, asked });
        self.subscriptions.wanted.notify_one();
        let stands = async {
            loop {
                match self.subscriptions.channels().get(&name) {
                    Some(channel) if channel.stands => return true,
                    Some(_) => {}
                    // Refused.
                    None => return false,
                }
                if settled.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(SUBSCRIBE_WAIT, stands).await.unwrap_or(false)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Subscriptions {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        self.channels.lock()
    }

    async fn run(self: Arc<Self>) {
        loop {
            // Without contention no claim waits, and no connection is needed.
            while self.channels().is_empty() {
                self.wanted.notified().await;
            }
            if let Err(error) = self.listen_once().await {
                tracing::debug!(target: "distlock", error = %error, "no messages from a node of the cluster");
            }
            self.channels().values_mut().for_each(|channel| channel.stands = false);
            tokio::time::sleep(DIAL_AGAIN).await;
        }
    }

    /// Receives messages until the connection cannot be used any more.
    async fn listen_once(self: &Arc<Self>) -> Result<()> {
        let over = Arc::new(Notify::new());
        let (mut connection, mut driver) = self.open(over.clone()).await?;
        let mut subscribed = Vec::new();
        let mut tick = tokio::time::interval(TICK);
        loop {
            let step = async {
                tokio::select! {
                    () = over.notified() => return false,
                    () = self.wanted.notified() => {}
                    _ = tick.tick() => {
                        let ping = redis::cmd("PING");
                        let ping = tokio::time::timeout(PING_TIMEOUT, connection.send_packed_command(&ping));
                        if !matches!(ping.await, Ok(Ok(_))) {
                            return false;
                        }
                        self.forget_unused(&mut connection, &mut subscribed).await;
                    }
                }
                self.subscribe(&mut connection, &mut subscribed).await
            };
            tokio::select! {
                goes_on = step => if !goes_on { return Ok(()) },
                () = &mut driver => return Ok(()),
            }
        }
    }

    async fn open(self: &Arc<Self>, over: Arc<Notify>) -> Result<(MultiplexedConnection, Driver)> {
        let subscriptions = self.clone();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(COMMAND_TIMEOUT)).set_push_sender(
            move |push: PushInfo| -> std::result::Result<(), ()> {
                if !subscriptions.heard(&push) {
                    over.notify_one();
                }
                Ok(())
            },
        );
        let opening = async {
            let stream = self.options.dialer.open("redis").await?;
            let login = self.options.login(Protocol::Resp3);
            let opened = MultiplexedConnection::new_with_config(&login, stream, config).await;
            let (connection, driver) =
                opened.map_err(|error| classify_at(&self.options.dialer.place, &error, Stage::Opening))?;
            Ok((connection, Box::pin(driver) as Driver))
        };
        let opened = tokio::time::timeout(self.options.dial_timeout, opening).await;
        let place = &self.options.dialer.place;
        opened.unwrap_or_else(|_| Err(Error::unavailable(format!("redis: {place} does not answer"))))
    }

    /// Takes a push. Returns false when a subscription ended that is still wanted.
    fn heard(&self, push: &PushInfo) -> bool {
        let name = |at: usize| match push.data.get(at) {
            Some(Value::BulkString(name)) => std::str::from_utf8(name).ok(),
            _ => None,
        };
        match (&push.kind, name(0)) {
            (PushKind::SMessage, Some(_)) => {
                if let Some(Value::BulkString(message)) = push.data.get(1) {
                    self.waiting.hear(message, self.clock.now());
                }
                true
            }
            (PushKind::SSubscribe, Some(name)) => {
                if let Some(channel) = self.channels().get_mut(name) {
                    channel.stands = true;
                }
                self.settled.send_replace(());
                true
            }
            (PushKind::SUnsubscribe, Some(name)) => {
                let is_wanted = self.channels().remove(name).is_some();
                if is_wanted {
                    // The hash slot has moved: its waiters claim again, and are redirected.
                    self.waiting.wake_all();
                }
                !is_wanted
            }
            (PushKind::Disconnection, _) => {
                self.waiting.wake_all();
                false
            }
            _ => true,
        }
    }

    /// Subscribes to new channels. Returns false when the connection cannot be used any more.
    async fn subscribe(&self, connection: &mut MultiplexedConnection, subscribed: &mut Vec<String>) -> bool {
        let is_new = |name: &&String| !subscribed.contains(name);
        let new: Vec<String> = self.channels().keys().filter(is_new).cloned().collect();
        for name in new {
            let mut command = redis::cmd("SSUBSCRIBE");
            command.arg(&name);
            match connection.send_packed_command(&command).await.and_then(Value::extract_error) {
                Ok(_) => subscribed.push(name),
                Err(error) if error.is_io_error() => return false,
                Err(error) => {
                    // Moved, or no right to it: its waiters poll.
                    tracing::debug!(target: "distlock", error = %error, "no channel for a lock");
                    if is_refused_right(&error) {
                        self.refused.store(true, Ordering::Relaxed);
                        warn_of_polling(&error.to_string());
                    }
                    self.channels().remove(&name);
                    self.settled.send_replace(());
                }
            }
        }
        true
    }

    async fn forget_unused(&self, connection: &mut MultiplexedConnection, subscribed: &mut Vec<String>) {
        let now = self.clock.now();
        let is_unused = |channel: &Channel| now.since(channel.asked) > LINGER;
        let unused: Vec<String> = {
            let mut channels = self.channels();
            let unused: Vec<_> = channels.iter().filter(|(_, c)| is_unused(c)).map(|(name, _)| name.clone()).collect();
            channels.retain(|_, channel| !is_unused(channel));
            unused
        };
        for name in unused {
            subscribed.retain(|other| *other != name);
            let mut command = redis::cmd("SUNSUBSCRIBE");
            command.arg(&name);
            let _ = connection.send_packed_command(&command).await;
        }
    }
}
