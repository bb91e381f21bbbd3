//! The connections to one server.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::Attachment;
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::link::Link;
use crate::engines::redis::wire::options::Options;
use crate::engines::redis::wire::replicas::Replicas;
use crate::engines::redis::wire::subscriber::Subscriber;
use crate::engines::shared::waiting::Waiting;
use crate::types::error::Result;

/// One connection for claims and releases, one for renewals, and others for messages and replicas where these need one.
pub(in crate::engines) struct ServerConnections {
    /// Claims, releases, and messages unless there is a subscriber.
    pub(in crate::engines) main: Link,
    /// Renewals, and releases when the other one is down: they never wait behind claims, unless this one is down.
    pub(in crate::engines) reserved: Link,
    /// For messages over channels that have hash slots.
    subscriber: Option<Subscriber>,
    /// There when replicas must have a grant before it counts.
    pub(in crate::engines) replicas: Option<Replicas>,
}

impl ServerConnections {
    /// Connects to a server that has all locks.
    pub(in crate::engines) fn alone(
        options: &Arc<Options>,
        waiting: &Arc<Waiting>,
        attachment: &Attachment,
    ) -> ServerConnections {
        ServerConnections::start(options, Some(waiting.clone()), None, attachment)
    }

    /// Connects to one master of a cluster.
    pub(in crate::engines) fn of_cluster(
        options: &Arc<Options>,
        waiting: &Arc<Waiting>,
        attachment: &Attachment,
    ) -> ServerConnections {
        let subscriber = Subscriber::start(options.clone(), waiting.clone(), attachment);
        ServerConnections::start(options, None, Some(subscriber), attachment)
    }

    fn start(
        options: &Arc<Options>,
        waiting: Option<Arc<Waiting>>,
        subscriber: Option<Subscriber>,
        attachment: &Attachment,
    ) -> ServerConnections {
        // The callers' runtime, if there is one. Should it end or block, the link moves to the keeper's.
        let runtime = attachment.caller_runtime.as_ref().unwrap_or(&attachment.keeper_runtime).clone();
        let replicas = (options.wait_replicas > 0).then(|| {
            Replicas::new(options.wait_replicas, Link::start(options.clone(), None, attachment, runtime.clone()))
        });
        let main = Link::start(options.clone(), waiting, attachment, runtime);
        let reserved = Link::start(options.clone(), None, attachment, attachment.keeper_runtime.clone());
        ServerConnections { main, reserved, subscriber, replicas }
    }

    /// Returns whether messages about a lock come in now.
    pub(in crate::engines) fn hears(&self, connection: &Connection, names: &Names) -> bool {
        self.hears_at(connection, || names.fence())
    }

    /// The same, given what returns the lock's own fence.
    pub(in crate::engines) fn hears_at(&self, connection: &Connection, fence: impl FnOnce() -> String) -> bool {
        match &self.subscriber {
            None => connection.hears(),
            Some(subscriber) => connection.publishes && subscriber.hears(&fence()),
        }
    }

    /// Subscribes to messages about a lock where that needs a subscription. Returns whether they come in.
    pub(in crate::engines) async fn begin_to_hear(&self, names: &Names) -> bool {
        match &self.subscriber {
            None => false,
            Some(_) if !self.publishes() => false,
            Some(subscriber) => subscriber.listen(&names.fence()).await,
        }
    }

    /// Returns the connection for a release if it is open now, as [`for_release`](ServerConnections::for_release) has it.
    pub(in crate::engines) fn open_for_release(&self) -> Option<Arc<Connection>> {
        self.main.now().or_else(|| self.reserved.now())
    }

    /// Returns whether messages can come in, as far as is known.
    pub(in crate::engines) fn may_hear(&self) -> bool {
        match &self.subscriber {
            None => self.main.now().is_none_or(|connection| connection.hears()),
            Some(subscriber) => self.publishes() && !subscriber.is_refused(),
        }
    }

    fn publishes(&self) -> bool {
        self.main.now().is_none_or(|connection| connection.publishes)
    }

    /// Returns the connection for a release: that of its claim, so that it arrives after the claim; the reserved one
    /// while that is closed.
    pub(in crate::engines) async fn for_release(&self, wait: Duration) -> Result<Arc<Connection>> {
        match self.open_for_release() {
            Some(connection) => Ok(connection),
            None => self.main.connection(wait).await,
        }
    }

    /// Returns the connection for a renewal: the reserved one, or the main one while that is closed.
    pub(in crate::engines) async fn for_renewal(&self, wait: Duration) -> Result<Arc<Connection>> {
        match self.reserved.now().or_else(|| self.main.now()) {
            Some(connection) => Ok(connection),
            None => self.reserved.connection(wait).await,
        }
    }

    /// Returns when both are open or could not be opened.
    pub(in crate::engines) async fn first(&self, wait: Duration) -> Result<()> {
        self.main.first(wait).await?;
        self.reserved.first(wait).await?;
        match &self.replicas {
            Some(replicas) => replicas.first(wait).await,
            None => Ok(()),
        }
    }

    pub(in crate::engines) fn close(&self) {
        self.main.close();
        self.reserved.close();
        if let Some(replicas) = &self.replicas {
            replicas.close();
        }
    }
}
