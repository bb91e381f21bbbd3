//! A distributed lock to trust: fencing tokens, a loss signal in time, interchangeable engines.
//!
//! ```
//! use distlock::Locker;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
//! let locker = Locker::connect("mem://").await?;
//!
//! let guard = locker.lock("invoice:42").await?;
//! let charged = guard.run(async { guard.fencing_token() }).await?; // dropped if the lock is lost
//! guard.unlock().await?;
//! # assert_eq!(charged.get(), 1);
//! # Ok(()) }
//! ```
//!
//! - [`Locker`] takes locks; a handle is one owner, a clone another.
//! - [`read`](Locker::read), [`write`](Locker::write) and [`semaphore`](Locker::semaphore) let several hold it at once.
//! - [`LockGuard`] is a lock that is held: [`lost`](LockGuard::lost), [`check`](LockGuard::check) and
//!   [`run`](LockGuard::run) tell that its lease ended before another owner is granted it, and
//!   [`fencing_token`](LockGuard::fencing_token) is for the resource to refuse what comes late.
//! - [`Error`] says what happened, to which lock, held by whom, and what to do next.
//! - [`fencing`] is what a resource needs for that.
//! - [`backend`] is the contract for engines; [`backend::memory`] is for tests, with faults on order.
//!
//! # Features
//! `config` (default): [`Config`] from TOML. `redis`, `etcd`: the engines of these names. `tls`: encrypted connections. `metrics`: what is counted and measured, for the
//! `metrics` facade. `spans`: `tracing` spans around asking, holding and renewing.

// As races/ compiles it, the library is without its unit tests: they run here.
#![cfg(not(all(shuttle, test)))]

mod ask;
pub mod backend;
mod clock;
mod config;
mod connect;
mod election;
mod error;
mod event;
mod family;
pub mod fencing;
mod finding;
mod guard;
mod history;
mod hold;
mod holds;
mod inspect;
mod journal;
mod keeper;
mod key;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod listing;
mod locker;
mod meter;
mod mode;
mod multi;
mod observed;
mod options;
mod owner;
mod request;
mod semaphore;
mod shards;
mod span;
mod sync;
mod ticket;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod tls;
mod token;
mod url;
mod wait;
mod watchdog;

/// The pages whose snippets are run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../../../docs/primitives.md")]
    mod primitives {}
}

pub use ask::{AskRequest, Asked};
pub use clock::{Clock, DEFAULT_DRIFT, ManualClock, Moment};
pub use config::{Config, DEFAULT_DIAL_TIMEOUT, Driver, Secret, redact, without_passwords};
pub use connect::examine;
pub use election::{CampaignRequest, Election, Leader, Leaders, Leadership};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventKind, LossReason, Observer};
pub use finding::{Finding, Severity};
pub use guard::{HoldState, LockGuard};
pub use history::{HistoryEntry, HistoryKind, MAX_HISTORY};
pub use inspect::{Change, Inspect, Watch};
pub use key::{Key, MAX_KEY_BYTES};
pub use locker::{Locker, LockerBuilder};
pub use mode::{MAX_SLOTS, Mode};
pub use multi::{LockAllRequest, MultiGuard};
pub use options::{
    DEFAULT_MAX_RETRIES, DEFAULT_RETRY_INTERVAL, DEFAULT_TTL, MAX_RETRY_INTERVAL, MAX_TTL, MAX_WAIT,
    MIN_RETRY_INTERVAL, MIN_TTL,
};
pub use owner::{Holder, MAX_TEXT_BYTES, OwnerId, Process, Record};
pub use request::{LockRequest, RequestFuture, TryLockRequest, UnlockRequest};
pub use semaphore::Semaphore;
pub use ticket::HoldTicket;
pub use token::{AttemptId, FencingToken};
pub use watchdog::Watchdog;
