//! Locks in this process: the reference implementation of the contract, and what users test with.
//!
//! A [`Store`] is the server, a [`Memory`] one client of it. A store that is made in code is its maker's alone; the URL
//! `mem://` names one store of the process, and `mem://name` one for each name ([`Store::named`]). The store's clock can be moved by hand, and its answers
//! made to go wrong, so that a test sees in microseconds what a network does once a month.
//!
//! ```
//! use distlock::backend::memory::{Fault, Memory, Operation, Store};
//! use distlock::{ErrorKind, Locker};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
//! let store = Store::new();
//! let locker = Locker::new(Memory::on(&store))?;
//! let guard = locker.lock("invoice:42").await?;
//!
//! store.script(Operation::Release, Fault::LoseReply);
//! let outcome = guard.unlock().await;
//! assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unknown);
//! # Ok(()) }
//! ```

mod journals;
pub(crate) mod open;
mod queue;
mod script;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use self::journals::Journals;
use self::queue::{Locks, Sender};
use self::script::Script;
pub use self::script::{Fault, Operation};
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, Release, Renewal, Scope,
    Wake,
};
use crate::types::clock::{Clock, DEFAULT_DRIFT, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::LossReason;
use crate::types::history::{HistoryEntry, answer_all};
use crate::types::key::Key;
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::{AttemptId, FencingToken};

/// Where the locks are: shared by every [`Memory`] on it.
#[derive(Debug, Clone)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    locks: Mutex<Locks>,
    journals: Mutex<Journals>,
    script: Script,
    /// Whether others in this process find it: then its tokens count for the stores that come after it, too.
    is_public: bool,
}

/// The highest token of all public stores that this process has had. A public store begins with it, so tokens do not fall
/// when the last user of a store goes and another one comes.
static LAST_TOKEN: AtomicU64 = AtomicU64::new(0);

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new() -> Store {
        Store::with_clock(Clock::system())
    }

    /// An empty store whose leases run by `clock`.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Store {
        Store::begin(clock, None)
    }

    /// Returns the store that has this name in this process: the one of `mem://name`.
    ///
    /// It lasts as long as a client of it does. Then its locks and histories are gone; the tokens of the next store of any
    /// name are higher all the same.
    #[must_use]
    pub fn named(name: &str) -> Store {
        Store::public(Some(name))
    }

    /// Returns the store of `mem://name`, or that of `mem://`.
    pub(crate) fn public(name: Option<&str>) -> Store {
        static STORES: LazyLock<Mutex<HashMap<Option<String>, Weak<Shared>>>> = LazyLock::new(Mutex::default);
        let mut stores = STORES.lock();
        stores.retain(|_, store| store.strong_count() > 0);
        let name = name.map(str::to_owned);
        if let Some(store) = stores.get(&name).and_then(Weak::upgrade) {
            return Store(store);
        }
        // An earlier store of this name has no client any more, so every token of it is counted.
        let store = Store::begin(Clock::system(), Some(LAST_TOKEN.load(Ordering::SeqCst)));
        stores.insert(name, Arc::downgrade(&store.0));
        store
    }

    fn begin(clock: Clock, public_after: Option<u64>) -> Store {
        Store(Arc::new(Shared {
            clock,
            locks: Mutex::new(Locks::after(public_after.unwrap_or_default())),
            journals: Mutex::default(),
            script: Script::default(),
            is_public: public_after.is_some(),
        }))
    }

    /// Makes the next request for `operation` go wrong; several are used up one by one, in order.
    pub fn script(&self, operation: Operation, fault: Fault) {
        self.0.script.push(operation, fault);
    }

    /// Ends the lease of `key` now, as if its time were over. The holder is not told; the next waiter follows.
    pub fn expire(&self, key: &Key) {
        self.locks(|locks, now| locks.expire(key, now));
    }

    /// Gives `key` to somebody else without a word to its holder, as a server that lost its data would.
    pub fn steal(&self, key: &Key) {
        self.locks(|locks, now| locks.steal(key, now));
    }

    /// Whether nothing at all is left: no holder, no waiter, no half-done attempt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks(|locks, now| locks.is_empty(now))
    }

    fn journals(&self) -> MutexGuard<'_, Journals> {
        self.0.journals.lock()
    }

    fn locks<T>(&self, action: impl FnOnce(&mut Locks, Moment) -> T) -> T {
        let mut locks = self.0.locks.lock();
        let done = action(&mut locks, self.0.clock.now());
        if self.0.is_public {
            LAST_TOKEN.fetch_max(locks.last_token(), Ordering::SeqCst);
        }
        done
    }
}

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}

/// One client of a [`Store`].
#[derive(Debug)]
pub struct Memory {
    store: Store,
    attachment: OnceLock<Attachment>,
}

impl Memory {
    /// The only client of a store of its own.
    #[must_use]
    pub fn new() -> Memory {
        Memory::on(&Store::new())
    }

    /// A client of `store`.
    #[must_use]
    pub fn on(store: &Store) -> Memory {
        Memory { store: store.clone(), attachment: OnceLock::new() }
    }

    fn drift(&self) -> f64 {
        self.attachment.get().map_or(DEFAULT_DRIFT, |attachment| attachment.drift)
    }

    /// The client's own clock, which may be another than the store's.
    fn now(&self) -> Moment {
        self.attachment.get().map_or(&self.store.0.clock, |attachment| &attachment.clock).now()
    }

    fn sender(&self) -> Sender {
        Sender { sent: self.now(), losses: self.attachment.get().map(|attachment| attachment.losses.clone()) }
    }

    async fn request<T>(&self, operation: Operation, apply: impl FnOnce(&mut Locks, Moment) -> Result<T>) -> Result<T> {
        self.store.0.script.play(operation, &self.store.0.clock, || self.store.locks(apply)).await
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl Backend for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        let all = Capabilities::new(Scope::Process);
        let all = Capabilities { fair: true, leases: true, wakes: true, inspects: true, breaks: true, ..all };
        let all = Capabilities { shares: true, slots: true, reenters: true, ..all };
        Capabilities { delays: true, amends: true, adopts: true, claim_all: true, history: true, ..all }
    }

    fn attach(&self, attachment: Attachment) {
        let _ = self.attachment.set(attachment);
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let sender = self.sender();
        self.request(Operation::Claim, |locks, now| locks.claim(claim, sender, now)).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let sender = self.sender();
        self.request(Operation::Claim, |locks, now| Ok(locks.claim_all(claims, &sender, now))).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        let Some(turn) = self.store.locks(|locks, _| locks.turn_of(claim)) else { return Wake::Retry };
        turn.notified().await;
        let received = self.now();
        self.store
            .locks(|locks, now| locks.handed(claim, received, self.drift(), now).map_or(Wake::Retry, Wake::Granted))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let start = self.now();
        let renew_all = |locks: &mut Locks, now| leases.iter().map(|lease| locks.renew(lease, start, now)).collect();
        match self.request(Operation::Renew, |locks, now| Ok(renew_all(locks, now))).await {
            Ok(renewals) => Vec::into_iter(renewals).map(Ok).collect(),
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.request(Operation::Release, |locks, now| Ok(locks.release(claim, now))).await
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        self.request(Operation::Renew, |locks, now| Ok(locks.amend(&lease.claim, now))).await
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        let sender = self.sender();
        self.request(Operation::Claim, |locks, now| match locks.adopt(from, token, claim, &sender, now) {
            Some((grant, before)) => {
                before.inspect(|losses| losses.push(from, LossReason::Adopted));
                Ok(grant)
            }
            None => Err(Error::new(ErrorKind::NotHeld, format!("nobody holds it with token {token}"))),
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.request(Operation::Inspect, |locks, now| Ok(locks.list(prefix, now))).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.request(Operation::Inspect, |locks, now| Ok(locks.get(key, now))).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        self.request(Operation::ForceRelease, |locks, now| {
            let broken = locks.force_release(key, token, now);
            if broken.is_empty() {
                return Err(Error::new(ErrorKind::NotHeld, format!("nobody holds it with token {token}")));
            }
            for (losses, attempt) in broken {
                losses.inspect(|losses| losses.push(attempt, LossReason::Broken));
            }
            Ok(())
        })
        .await
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        let add_all = |_: &mut Locks, _| {
            let mut journals = self.store.journals();
            entries.iter().for_each(|(key, entry)| journals.add(key, entry.clone(), most as usize));
            Ok(())
        };
        answer_all(&self.request(Operation::WriteHistory, add_all).await, entries.len())
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        self.request(Operation::Inspect, |_, _| Ok(self.store.journals().last(key, most as usize))).await
    }
}
