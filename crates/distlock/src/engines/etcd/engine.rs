//! What all requests and tasks of one client share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::error::{Failure, Fault};
use super::protocol::names::Names;
use super::protocol::queue;
use super::seen_revision::SeenRevision;
use super::shared_lease::SharedLeases;
use super::state::attempts::{Attempt, Attempts};
use super::state::entry::Entries;
use super::state::hold_watch::HoldWatch;
use super::wire::batcher::Batcher;
use super::wire::client::Client;
use super::wire::tasks::Tasks;
use super::wire::watches::Watches;
use crate::contract::{Attachment, Losses};
use crate::engines::shared::contention::Contention;
use crate::types::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::sync::Mutex;
use crate::types::token::AttemptId;

/// One client of a cluster. Its verbs are in the files named after them.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) client: Arc<Client>,
    pub(super) clock: Clock,
    pub(super) names: Names,
    pub(super) leases: SharedLeases,
    pub(super) attempts: Attempts,
    /// The locks that other attempts wanted too a moment ago.
    pub(super) contention: Contention,
    pub(super) entries: Entries,
    pub(super) watches: Watches,
    pub(super) hold_watch: Mutex<HoldWatch>,
    pub(super) batcher: Batcher,
    pub(super) seen_revision: SeenRevision,
    /// The lease that histories are written on today.
    pub(super) history_lease: Mutex<Option<i64>>,
    pub(super) tasks: Arc<Tasks>,
    losses: OnceLock<Losses>,
    dial_timeout: Duration,
}

impl Engine {
    pub(super) fn new(client: Client, names: Names, dial_timeout: Duration) -> Self {
        let (client, clock, tasks) = (Arc::new(client), Clock::system(), Arc::new(Tasks::default()));
        Engine {
            batcher: Batcher::new(client.clone(), clock.clone(), tasks.clone()),
            client,
            clock,
            watches: Watches::new(names.all("")),
            hold_watch: Mutex::default(),
            names,
            leases: SharedLeases::default(),
            attempts: Attempts::default(),
            contention: Contention::new(),
            entries: Entries::default(),
            seen_revision: SeenRevision::default(),
            history_lease: Mutex::default(),
            tasks,
            losses: OnceLock::new(),
            dial_timeout,
        }
    }

    pub(super) fn attach(&self, attachment: Attachment) {
        self.client.run_on(&attachment.keeper_runtime, attachment.caller_runtime.as_ref());
        let _ = self.losses.set(attachment.losses);
    }

    /// Reads a key that every user may read, and waits for the reply.
    pub(super) async fn ready(&self) -> Result<()> {
        let probe = self.names.all("distlock-probe");
        let reply = tokio::time::timeout(self.dial_timeout, queue::read(&self.client, &probe)).await;
        match reply.unwrap_or_else(|_| Err(Failure::timeout())) {
            Ok(_) => Ok(()),
            // A read changes nothing, so its outcome is never unknown.
            Err(failure) if failure.fault == Fault::Unknown => Err(failure.into_refusal().into()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Revokes the leases that no hold needs, and stops.
    pub(super) async fn close(&self) -> Result<()> {
        // A hold that is left was kept on purpose; its lease ends by itself.
        let kept = self.attempts.leases_of_holds();
        let outcome = self.leases.revoke_all_but(&kept, &self.client).await;
        self.tasks.stop();
        outcome.map_err(Error::from)
    }

    /// Returns the key in the queue of this client's hold of `key` that was made at `created`.
    pub(super) fn key_of(&self, key: &Key, created: i64) -> Option<Vec<u8>> {
        let lock = self.names.lock(key);
        match self.attempts.find(&lock, created) {
            Some(attempt) => Some(attempt.key().to_vec()),
            None => Some(self.entries.find(&lock, created)?.head().key.clone()),
        }
    }

    /// Tells the core that a hold is lost.
    pub(super) fn tell_loss(&self, attempt: AttemptId, reason: LossReason) {
        if let Some(losses) = self.losses.get() {
            losses.push(attempt, reason);
        }
    }

    /// Returns whether a key that is not given up hangs on `lease`.
    pub(super) fn needs(&self, lease: i64) -> bool {
        self.attempts.need(lease) || self.entries.need(lease)
    }

    /// Runs `task` on the keeper's runtime until it is done or the engine stops.
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        self.tasks.run(self.client.runtime(), task)
    }

    /// Returns the result of `task`, which goes on when the caller's future is dropped or not polled.
    pub(super) fn finish<'a, T, E>(
        &'a self,
        task: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send + 'a
    where
        T: Send + 'static,
        E: From<Failure> + Send + 'static,
    {
        self.tasks.finish(self.client.runtime(), Box::pin(task))
    }

    /// The same for a short request: `task` runs where the caller does, which saves two changes of threads, unless
    /// other attempts depend on it. If that runtime ends first, so does `task`.
    pub(super) fn finish_near<'a, T, E>(
        &'a self,
        is_alone: bool,
        task: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send + 'a
    where
        T: Send + 'static,
        E: From<Failure> + Send + 'static,
    {
        let runtime = if is_alone { self.client.home().1 } else { self.client.runtime() };
        self.tasks.finish(runtime, Box::pin(task))
    }

    /// Returns whether `attempt` most likely is the only one that wants its lock.
    pub(super) fn is_alone(&self, attempt: &Attempt) -> bool {
        attempt.mode() == Mode::Exclusive
            && !self.attempts.has_company(attempt)
            && !self.contention.is_recent(attempt.lock(), self.clock.now())
    }
}
