//! Leases of the cluster: one for all locks of a locker family that ask for the same TTL.
//!
//! A shared lease is kept alive by one request per third of its TTL, however many locks hang on it. etcd offers a
//! stream for that; each request here opens and ends one of its own, so that a reply can only be the reply to its
//! request, and a request that is not answered is repeated elsewhere without any state to clean up.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::contract::Term;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse,
};
use crate::engines::etcd::protocol::methods::{LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE};
use crate::engines::etcd::wire::client::{Client, REQUEST_WAIT};
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, Result};

/// The shortest lease that etcd 3.4 gives.
const LEAST_SECONDS: u64 = 2;
/// How long an unused lease is kept for the next lock.
const LINGER: Duration = Duration::from_secs(30);
/// The same for one that takes no new locks: longer than a request may be on its way.
const RETIRED_LINGER: Duration = Duration::from_secs(10);
/// The longest pause between two requests for a lease that was not renewed when it should.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// One lease.
#[derive(Debug)]
pub(super) struct SharedLease {
    pub(super) id: i64,
    /// The length that was asked for; the term says what was granted.
    seconds: u64,
    state: watch::Sender<State>,
    /// A caller wants it renewed now.
    wanted: Notify,
    /// That caller has a term that began then.
    wanted_after: Mutex<Moment>,
    /// When a lock last needed it.
    used: Mutex<Moment>,
}

#[derive(Debug, Clone)]
struct State {
    /// The last answered request, with the TTL of its reply.
    term: Term,
    /// How many requests failed, ever: a caller that waits for a reply sees that there will be none.
    failures: u64,
    /// The server does not have it any more.
    gone: bool,
    /// No new locks: an unanswered request may still hang something on it.
    retired: bool,
}

impl SharedLease {
    pub(super) fn new(id: i64, seconds: u64, term: Term, now: Moment) -> Self {
        SharedLease {
            id,
            seconds,
            state: watch::Sender::new(State { term, failures: 0, gone: false, retired: false }),
            wanted: Notify::new(),
            wanted_after: Mutex::new(Moment::from_nanos(0)),
            used: Mutex::new(now),
        }
    }

    /// The last answered renewal.
    pub(super) fn term(&self) -> Term {
        self.state.borrow().term
    }

    /// Returns the last answered renewal, if the lease is there and that one began after `start`.
    pub(super) fn renewed_term(&self, start: Moment) -> Option<Term> {
        let state = self.state.borrow();
        (!state.gone && state.term.start > start).then_some(state.term)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state.borrow().gone
    }

    /// Whether a lock that asks for `ttl` is well served.
    pub(super) fn covers(&self, ttl: Duration) -> bool {
        self.seconds >= whole_seconds(ttl)
    }

    /// How long it was asked to be.
    pub(super) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// A lock needs the lease now.
    pub(super) fn touch(&self, now: Moment) {
        let mut used = lock(&self.used);
        *used = now.max(*used);
    }

    /// Takes no new locks; it is revoked when the last one has left.
    pub(super) fn retire(&self) {
        self.state.send_modify(|state| state.retired = true);
    }

    /// Renews the lease now, once for all callers that ask for it. Returns the new term; `None`: it is gone.
    pub(super) async fn renewed_after(&self, start: Moment) -> Result<Option<Term>> {
        let mut state = self.state.subscribe();
        let failures = {
            let state = state.borrow_and_update();
            if state.gone || state.term.start > start {
                return Ok((!state.gone).then_some(state.term));
            }
            state.failures
        };
        {
            let mut wanted_after = lock(&self.wanted_after);
            *wanted_after = start.max(*wanted_after);
        }
        self.wanted.notify_one();
        let news = |state: &State| state.gone || state.term.start > start || state.failures > failures;
        match state.wait_for(news).await {
            Ok(state) if state.gone => Ok(None),
            Ok(state) if state.term.start > start => Ok(Some(state.term)),
            _ => Err(Error::unknown("etcd did not answer the renewal of the lease")),
        }
    }

    /// Sends one keep-alive. Returns false when the lease is known to be gone.
    async fn keep_alive(&self, client: &Client, clock: &Clock) -> bool {
        let term = self.term();
        let start = clock.now();
        // A sixth: within a third of the TTL a silent server is left, and the next one has been asked.
        let patience = (term.ttl / 6).clamp(Duration::from_millis(100), Duration::from_secs(3));
        let request = LeaseKeepAliveRequest { id: self.id };
        let answer: Result<LeaseKeepAliveResponse, Failure> = client.call(LEASE_KEEP_ALIVE, request, patience).await;
        match answer {
            Ok(answer) if answer.id == self.id && answer.ttl > 0 => {
                let ttl = Duration::from_secs(answer.ttl.unsigned_abs());
                self.state.send_modify(|state| state.term = Term { start, ttl });
                true
            }
            Ok(answer) if answer.id == self.id => self.lose(),
            Err(failure) if failure.fault == Fault::LeaseGone => self.lose(),
            Ok(_) | Err(_) => {
                self.state.send_modify(|state| state.failures += 1);
                true
            }
        }
    }

    pub(super) async fn revoke(&self, client: &Client) -> Result<(), Failure> {
        let request = LeaseRevokeRequest { id: self.id };
        match client.call::<_, LeaseRevokeResponse>(LEASE_REVOKE, request, Duration::from_secs(2)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.fault == Fault::LeaseGone => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// The server says that there is no such lease.
    pub(super) fn lose(&self) -> bool {
        self.state.send_modify(|state| state.gone = true);
        false
    }

    /// Whether no lock needs it any more. That it was not used for long is not enough: a process that was stopped finds
    /// so of what it holds.
    fn is_idle(&self, now: Moment, is_needed: impl Fn() -> bool) -> bool {
        if now >= self.idle_from() && is_needed() {
            self.touch(now);
        }
        now >= self.idle_from()
    }

    fn idle_from(&self) -> Moment {
        let linger = if self.state.borrow().retired { RETIRED_LINGER } else { LINGER };
        lock(&self.used).after(linger)
    }
}

impl State {
    fn takes_locks(&self) -> bool {
        !self.gone && !self.retired
    }
}

/// The leases of one client.
#[derive(Debug, Default)]
pub(super) struct SharedLeases {
    /// Few: one for each TTL that is asked for.
    open: Mutex<Vec<Arc<SharedLease>>>,
    /// The leases that are being granted, by their length: a thousand tasks that start together share one, or its
    /// failure.
    coming: Mutex<HashMap<u64, watch::Receiver<Option<Granted>>>>,
}

/// What became of a request for a lease.
type Granted = Result<Arc<SharedLease>, Failure>;

impl SharedLeases {
    /// A lease for a lock that asks for `ttl`. A new one must be [opened](SharedLeases::open), which is left to
    /// `begin`.
    pub(super) async fn get(
        &self,
        ttl: Duration,
        clock: &Clock,
        begin: impl FnOnce(watch::Sender<Option<Granted>>),
    ) -> Granted {
        let seconds = whole_seconds(ttl);
        if let Some(lease) = self.find(seconds, clock.now()) {
            return Ok(lease);
        }
        let mut coming = {
            let mut coming = lock(&self.coming);
            if let Some(lease) = self.find(seconds, clock.now()) {
                return Ok(lease);
            }
            let ask = || {
                let (tell, told) = watch::channel(None);
                begin(tell);
                told
            };
            coming.entry(seconds).or_insert_with(ask).clone()
        };
        let granted = coming.wait_for(Option::is_some).await.ok().and_then(|granted| granted.clone());
        granted.unwrap_or_else(|| Err(Failure::new(Fault::Refused, "the engine was closed")))
    }

    /// Asks for a lease, and tells all who wait for it what became of that. It must be [kept](keep) from then on.
    pub(super) async fn open(
        &self,
        ttl: Duration,
        tell: watch::Sender<Option<Granted>>,
        client: &Client,
        clock: &Clock,
    ) -> Granted {
        let seconds = whole_seconds(ttl);
        let granted = grant(seconds, client, clock).await.map(Arc::new);
        let mut coming = lock(&self.coming);
        lock(&self.open).extend(granted.iter().cloned());
        coming.remove(&seconds);
        tell.send_replace(Some(granted.clone()));
        granted
    }

    fn find(&self, seconds: u64, now: Moment) -> Option<Arc<SharedLease>> {
        let open = lock(&self.open);
        let fits = |lease: &&Arc<SharedLease>| lease.seconds == seconds && lease.state.borrow().takes_locks();
        let lease = open.iter().find(fits)?;
        lease.touch(now);
        Some(lease.clone())
    }

    /// Takes no new locks on a lease, unless one has asked for it in this moment. Returns whether it is closed.
    fn close_unused(&self, lease: &SharedLease, now: Moment) -> bool {
        let mut open = lock(&self.open);
        if now < lease.idle_from() {
            return false;
        }
        open.retain(|other| other.id != lease.id);
        true
    }

    /// Forgets a lease that is gone.
    pub(super) fn forget(&self, lease: &SharedLease) {
        lock(&self.open).retain(|other| other.id != lease.id);
    }

    /// Ends all leases but those that are `kept`, and with them whatever still hangs on them.
    pub(super) async fn revoke_all_but(&self, kept: &[i64], client: &Client) -> Result<(), Failure> {
        let all = std::mem::take(&mut *lock(&self.open));
        let mut outcome = Ok(());
        for lease in all.iter().filter(|lease| !lease.is_gone() && !kept.contains(&lease.id)) {
            outcome = outcome.and(lease.revoke(client).await);
        }
        outcome
    }
}

async fn grant(seconds: u64, client: &Client, clock: &Clock) -> Result<SharedLease, Failure> {
    let start = clock.now();
    let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX), id: 0 };
    let granted: LeaseGrantResponse = client.call(LEASE_GRANT, request, REQUEST_WAIT).await.map_err(|failure| {
        // A lease whose id is not known holds no lock and ends by itself: nothing that matters was done.
        if failure.fault == Fault::Unknown { failure.into_refusal() } else { failure }
    })?;
    let ttl = Duration::from_secs(granted.ttl.max(0).unsigned_abs());
    Ok(SharedLease::new(granted.id, seconds, Term { start, ttl }, clock.now()))
}

/// A lease for one key alone, which other clients may keep alive too. It must be [kept](keep_for_others).
pub(super) async fn private(ttl: Duration, client: &Client, clock: &Clock) -> Result<Arc<SharedLease>, Failure> {
    Ok(Arc::new(grant(whole_seconds(ttl), client, clock).await?))
}

/// Such a lease of another client; `None` when it is gone.
pub(super) async fn known(id: i64, client: &Client, clock: &Clock) -> Result<Option<Arc<SharedLease>>, Failure> {
    let start = clock.now();
    let answer: Result<LeaseKeepAliveResponse, Failure> =
        client.call(LEASE_KEEP_ALIVE, LeaseKeepAliveRequest { id }, REQUEST_WAIT).await;
    match answer {
        Ok(answer) if answer.id == id && answer.ttl > 0 => {
            let seconds = answer.ttl.unsigned_abs();
            let term = Term { start, ttl: Duration::from_secs(seconds) };
            Ok(Some(Arc::new(SharedLease::new(id, seconds, term, clock.now()))))
        }
        Ok(_) => Ok(None),
        Err(failure) if failure.fault == Fault::LeaseGone => Ok(None),
        // At most it lives a little longer, for the entries that keep it alive anyway.
        Err(failure) if failure.fault == Fault::Unknown => Err(failure.into_refusal()),
        Err(failure) => Err(failure),
    }
}

/// When the next request for a lease is due.
struct Pace<'a> {
    lease: &'a SharedLease,
    client: &'a Client,
    clock: &'a Clock,
    /// The last one failed.
    failed: bool,
}

impl<'a> Pace<'a> {
    fn new(lease: &'a SharedLease, client: &'a Client, clock: &'a Clock) -> Self {
        Pace { lease, client, clock, failed: false }
    }

    /// Waits until a request is due, or a caller wants one, or it is `until`. Returns whether one is to be sent.
    async fn wait(&self, until: Moment) -> bool {
        let Term { start, ttl } = self.lease.term();
        if self.failed {
            let pause = (ttl / 20).min(LONGEST_PAUSE);
            self.clock.sleep_until(self.clock.now().after(pause).min(until)).await;
        }
        let due = start.after(ttl / 3);
        tokio::select! {
            () = self.lease.wanted.notified() => {}
            () = self.clock.sleep_until(due.min(until)) => {}
        }
        // A caller that asked while the last request was on its way was served by it.
        let is_wanted = *lock(&self.lease.wanted_after) >= self.lease.term().start;
        is_wanted || self.clock.now() >= due
    }

    /// Sends one. Returns false when the lease is known to be gone.
    async fn keep_alive(&mut self) -> bool {
        let failures = self.lease.state.borrow().failures;
        let is_there = self.lease.keep_alive(self.client, self.clock).await;
        self.failed = self.lease.state.borrow().failures > failures;
        is_there
    }
}

/// Keeps a lease alive as long as this client needs it, and leaves it to the others then. Returns when that is so, or
/// when it is gone.
pub(super) async fn keep_for_others(lease: &SharedLease, client: &Client, clock: &Clock, is_needed: impl Fn() -> bool) {
    let mut state = lease.state.subscribe();
    let mut pace = Pace::new(lease, client, clock);
    loop {
        let is_due = tokio::select! {
            _ = state.wait_for(|state| state.gone) => return,
            is_due = pace.wait(Moment::NEVER) => is_due,
        };
        if is_due && (lease.is_idle(clock.now(), &is_needed) || !pace.keep_alive().await) {
            lease.lose();
            return;
        }
    }
}

/// Keeps a lease alive as long as it is needed. Returns whether it is to be revoked then; otherwise it is gone.
pub(super) async fn keep(
    lease: &SharedLease,
    leases: &SharedLeases,
    client: &Client,
    clock: &Clock,
    is_needed: impl Fn() -> bool,
) -> bool {
    let mut pace = Pace::new(lease, client, clock);
    loop {
        let is_due = pace.wait(lease.idle_from()).await;
        if lease.is_idle(clock.now(), &is_needed) && leases.close_unused(lease, clock.now()) {
            return true;
        }
        if is_due && !pace.keep_alive().await {
            return false;
        }
    }
}

fn whole_seconds(ttl: Duration) -> u64 {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    seconds.max(LEAST_SECONDS)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::contract::{Backend, Claim, Claimed, Lease, Renewal};
    use crate::engines::etcd::Etcd;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    #[tokio::test]
    async fn a_lease_with_a_hold_is_not_idle_however_long_its_process_was_stopped() {
        let server = EtcdServer::start();
        let (clock, time) = Clock::manual();
        let mut etcd = Etcd::builder([server.address().to_string()]).build().unwrap();
        Arc::get_mut(&mut etcd.engine).unwrap().clock = clock;
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let claim = Claim::new(Key::new("a").unwrap(), Duration::from_secs(60), false, Arc::new(record));
        let Claimed::Granted(grant) = etcd.claim(&claim).await.unwrap() else { panic!("it is free") };
        let lease = etcd.engine.attempts.get(claim.attempt).unwrap().lease();
        for stop in 0..5 {
            let start = lease.term().start;
            time.jump(Duration::from_secs(35));
            let mut state = lease.state.subscribe();
            let state = state.wait_for(|state| state.gone || state.term.start > start).await.unwrap();
            assert!(!state.gone, "revoked in the middle of a hold, after stop {stop}");
            drop(state);
            let renewed = etcd.renew(&[Lease::new(claim.clone(), grant.token)]).await.pop();
            assert!(matches!(renewed, Some(Ok(Renewal::Renewed(_)))), "{renewed:?}");
        }
        assert!(!server.etcdctl().run(&["get", "--prefix", "a/"]).is_empty());
    }
}
