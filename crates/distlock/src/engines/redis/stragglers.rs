//! Claims and adoptions that were not answered.
//!
//! Such a request may arrive after its attempt was released over another connection. It would take the lock, or a place in
//! the queue, for an attempt that is over. So the attempt is released again and again until no request of it can come any more.

use crate::types::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::contract::{Attachment, Claim};
use crate::engines::redis::names::Names;
use crate::engines::redis::release::release;
use crate::engines::redis::servers::Servers;
use crate::engines::redis::session::{COMMAND_TIMEOUT, Session};
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, Result};
use crate::types::token::AttemptId;

/// How long after it was sent a claim may be carried out. The server refuses it after the first of the two; by how much
/// it may be wrong about that, the second covers: what was known of its clock is as old as an answer.
const LATEST: Duration = COMMAND_TIMEOUT.saturating_add(COMMAND_TIMEOUT);
/// How long closing waits for releases that are under way: nearly as long as they take, and less than the core waits.
const CLOSING: Duration = Duration::from_millis(1800);
/// The pause before the second release; doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The claims of one engine that were not answered.
pub(super) struct Stragglers {
    servers: Arc<Servers>,
    clock: Clock,
    runtime: Handle,
    /// The last of each attempt. An attempt that nobody releases is forgotten when there are many.
    astray: Mutex<BTreeMap<AttemptId, Straggler>>,
    releases: Mutex<JoinSet<()>>,
}

struct Straggler {
    sent: Moment,
    over: Weak<Session>,
}

impl Stragglers {
    pub(super) fn new(servers: Arc<Servers>, attachment: &Attachment) -> Stragglers {
        let (clock, runtime) = (attachment.clock.clone(), attachment.keeper_runtime.clone());
        Stragglers { servers, clock, runtime, astray: Mutex::default(), releases: Mutex::default() }
    }

    /// Sends a request by which `claims` may get what they ask for, over one connection, and takes note unless it is
    /// answered.
    pub(super) async fn follow<T>(
        &self,
        claims: &[Claim],
        over: &Arc<Session>,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let sent = self.clock.now();
        let mut flight = Flight { stragglers: self, claims, sent, over, is_over: false };
        let outcome = request.await;
        flight.is_over = !outcome.as_ref().is_err_and(Error::may_be_applied);
        outcome
    }

    /// `attempt` was released by the connection `over`, and is never claimed with again.
    pub(super) fn released(&self, names: Names, attempt: AttemptId, over: &Arc<Session>) {
        let straggler = {
            let mut astray = self.astray.lock();
            // On one connection the release came after the claim.
            let may_come = |straggler: &Straggler| straggler.over.as_ptr() != Arc::as_ptr(over);
            if astray.get(&attempt).is_some_and(may_come) { astray.remove(&attempt) } else { None }
        };
        let Some(straggler) = straggler else { return };
        let until = straggler.sent.after(LATEST);
        let again = release_until(self.servers.clone(), self.clock.clone(), names, attempt, until);
        let mut releases = self.releases.lock();
        while releases.try_join_next().is_some() {}
        // tidy-allow(spawn): goes on beside everything else, on the keeper's runtime; ends with the engine
        releases.spawn_on(again, &self.runtime);
    }

    /// Returns when no attempt that was released can get anything any more, or after [`CLOSING`].
    pub(super) async fn settle(&self) {
        let mut releases = std::mem::take(&mut *self.releases.lock());
        let all = async { while releases.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSING, all).await.is_err() {
            tracing::debug!(target: "distlock", "closed while a claim may still come: its lease ends it");
        }
    }

    fn note(&self, flight: &Flight<'_>) {
        let mut astray = self.astray.lock();
        for claim in flight.claims {
            if astray.len().is_power_of_two() {
                astray.retain(|_, straggler| flight.sent.since(straggler.sent) < LATEST);
            }
            astray.insert(claim.attempt, Straggler { sent: flight.sent, over: Arc::downgrade(flight.over) });
        }
    }
}

async fn release_until(servers: Arc<Servers>, clock: Clock, names: Names, attempt: AttemptId, until: Moment) {
    let mut pause = FIRST_PAUSE;
    let mut now = clock.now();
    while now < until {
        clock.sleep_until(now.after(pause).min(until)).await;
        pause *= 2;
        now = clock.now();
        if let Err(error) = release(&servers, &names, attempt).await {
            tracing::debug!(target: "distlock", %error, "a claim that may come late was not released again");
        }
    }
}

/// Claims on their way.
struct Flight<'a> {
    stragglers: &'a Stragglers,
    claims: &'a [Claim],
    sent: Moment,
    over: &'a Arc<Session>,
    is_over: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.stragglers.note(self);
        }
    }
}
