//! The connections to one server.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::Attachment;
use crate::engines::redis::ears::Ears;
use crate::engines::redis::link::Link;
use crate::engines::redis::names::Names;
use crate::engines::redis::options::Options;
use crate::engines::redis::replicas::Replicas;
use crate::engines::redis::session::Session;
use crate::engines::redis::waiting::Waiting;
use crate::types::error::Result;

/// One connection for claims and releases, one for renewals, and others for messages and for replicas where they need one.
pub(super) struct Pair {
    /// Claims, releases, and messages unless there are ears.
    pub(super) main: Link,
    /// Renewals, and releases when the other one is down: they never wait behind claims, unless this one is down.
    pub(super) reserved: Link,
    /// For messages over channels that have slots.
    ears: Option<Ears>,
    /// Where replicas must have a grant before it counts.
    pub(super) replicas: Option<Replicas>,
}

impl Pair {
    /// To a server that does not share its locks with others.
    pub(super) fn alone(options: &Arc<Options>, waiting: &Arc<Waiting>, attachment: &Attachment) -> Pair {
        Pair::start(options, Some(waiting.clone()), None, attachment)
    }

    /// To one master of a cluster.
    pub(super) fn of_cluster(options: &Arc<Options>, waiting: &Arc<Waiting>, attachment: &Attachment) -> Pair {
        let ears = Ears::start(options.clone(), waiting.clone(), attachment);
        Pair::start(options, None, Some(ears), attachment)
    }

    fn start(
        options: &Arc<Options>,
        waiting: Option<Arc<Waiting>>,
        ears: Option<Ears>,
        attachment: &Attachment,
    ) -> Pair {
        // The callers' runtime, if there is one. Should it end or block, the link moves to the keeper's.
        let home = attachment.caller_runtime.as_ref().unwrap_or(&attachment.keeper_runtime).clone();
        let replicas = (options.wait_replicas > 0).then(|| {
            Replicas::new(options.wait_replicas, Link::start(options.clone(), None, attachment, home.clone()))
        });
        let main = Link::start(options.clone(), waiting, attachment, home);
        let reserved = Link::start(options.clone(), None, attachment, attachment.keeper_runtime.clone());
        Pair { main, reserved, ears, replicas }
    }

    /// Whether messages about a lock come in now.
    pub(super) fn hears(&self, session: &Session, names: &Names) -> bool {
        match &self.ears {
            None => session.hears,
            Some(ears) => ears.hears(&names.fence()),
        }
    }

    /// Makes sure that messages about a lock come in, if that is possible and was not so before.
    pub(super) async fn begin_to_hear(&self, names: &Names) -> bool {
        match &self.ears {
            None => false,
            Some(ears) => ears.listen(&names.fence()).await,
        }
    }

    /// The connection for a release: the one its claim went over, so that it comes after it; the reserved one when that
    /// is not there.
    pub(super) async fn for_release(&self, patience: Duration) -> Result<Arc<Session>> {
        match self.main.now().or_else(|| self.reserved.now()) {
            Some(session) => Ok(session),
            None => self.main.session(patience).await,
        }
    }

    /// The connection for a renewal: its own, or the other one while that is being opened again.
    pub(super) async fn for_renewal(&self, patience: Duration) -> Result<Arc<Session>> {
        match self.reserved.now().or_else(|| self.main.now()) {
            Some(session) => Ok(session),
            None => self.reserved.session(patience).await,
        }
    }

    /// Returns when both are open or could not be opened.
    pub(super) async fn first(&self, patience: Duration) -> Result<()> {
        self.main.first(patience).await?;
        self.reserved.first(patience).await?;
        match &self.replicas {
            Some(replicas) => replicas.first(patience).await,
            None => Ok(()),
        }
    }

    pub(super) fn close(&self) {
        self.main.close();
        self.reserved.close();
        if let Some(replicas) = &self.replicas {
            replicas.close();
        }
    }
}
