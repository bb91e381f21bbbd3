//! A distributed lock: only one process at a time does a job, on one machine or on many.
//!
//! ```
//! use distlock::Locker;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
//! let locker = Locker::connect("mem://").await?; // or redis://, redlock://, etcd://, postgres://, file://
//!
//! let guard = locker.lock("invoice:42").await?; // waits; drop the future to give up
//! let charged = guard.run(async { guard.fencing_token() }).await?; // the work is dropped if the lock is lost
//! guard.unlock().await?; // the only confirmed release
//! # assert_eq!(charged.get(), 1);
//! # Ok(()) }
//! ```
//!
//! # What to call
//!
//! | you want | call |
//! |---|---|
//! | the lock, waiting for it, or only if it is free | [`lock`](Locker::lock), [`try_lock`](Locker::try_lock) |
//! | many readers or one writer | [`read`](Locker::read), [`write`](Locker::write) |
//! | at most N holders | [`semaphore`](Locker::semaphore) |
//! | several locks without deadlock | [`lock_all`](Locker::lock_all) |
//! | a leader; a job once per hour | [`election`](Locker::election); [`once`](Locker::once) |
//! | work that is dropped when the lock is lost | [`run`](LockGuard::run), [`try_run`](LockGuard::try_run) |
//! | to be told of a loss | [`lost`](LockGuard::lost), [`check`](LockGuard::check) |
//! | a resource that refuses late writes | [`fencing_token`](LockGuard::fencing_token), [`fencing`] |
//! | to see and break locks | [`inspect`](Locker::inspect) |
//! | tests without a server, with a clock that you move | [`backend::memory`] |
//!
//! A [`Locker`] handle is one owner, and a clone is another. Requests are builders: `.ttl(…)`, `.wait(…)`, `.owner(…)`. By
//! default a lease lasts [10 s](DEFAULT_TTL) and is renewed until the unlock, and a wait has no limit.
//!
//! # What is promised
//!
//! One owner holds a lock at a time. A holder whose lease ends is told before the next owner is granted the lock. Each
//! grant has a higher fencing token than the one before. A lost reply is an [`Error`] of kind
//! [`Unknown`](ErrorKind::Unknown), neither success nor failure; [`ErrorKind`] says what to do for each kind. Dropping a
//! future or a guard at any point is safe: its lock or its place in the queue is released in the background.
//!
//! No lease can stop a process that is paused between its last check and its write: let the resource check the token.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `config` (default) | [`Config`] from TOML |
//! | `redis`, `etcd`, `postgres` | the engines of these names; `redis` also Redlock |
//! | `tls` | encrypted connections |
//! | `metrics`, `spans` | counters, gauges and histograms for the `metrics` facade; `tracing` spans |
//! | `blocking` | `Blocking`, the same requests and guards for threads without async |
//! | `serde` | tokens, keys, holders, leaders, reasons, error kinds and listings in serde's formats |
//!
//! A new engine implements [`backend::Backend`].

// docs.rs marks what needs a feature, and does not name the checker of races.
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(shuttle))))]
// `races/` compiles the library without its unit tests: they run here.
#![cfg(not(all(shuttle, test)))]

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
compile_error!("distlock runs on Linux and macOS: it needs a clock that counts the time while the machine sleeps");

mod api;
mod config;
mod contract;
mod core;
mod engines;
mod types;

pub mod backend {
    //! The contract between a locker and an engine, and the engines.
    //!
    //! Most programs need nothing from here: [`Locker::connect`](crate::Locker::connect) takes a URL. The builders of
    //! the engines are for options that a URL does not have, such as a stream or a channel of the application's own:
    //!
    //! ```
    //! use distlock::{Locker, backend::memory::{Memory, Store}};
    //!
    //! # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    //! let store = Store::new();
    //! let locker = Locker::new(Memory::on(&store))?;
    //! # locker.lock("a").await?.unlock().await }
    //! ```
    //!
    //! | engine | made by | feature |
    //! |---|---|---|
    //! | memory | `memory::Memory::on` | – |
    //! | file | `file::FileBackend::in_dir`, `host` | – (Linux) |
    //! | Redis | `redis::Redis::tcp`, `unix`, `sentinel`, `cluster`, `over` | `redis` |
    //! | Redlock | `redlock::Redlock::of` | `redis` |
    //! | etcd | `etcd::Etcd::builder`, `over` | `etcd` |
    //! | PostgreSQL | `postgres::Postgres::tcp`, `any_of`, `unix`, `over` | `postgres` |
    //!
    //! A new engine implements [`Backend`]; each "Behaviour" paragraph there is a promise that the conformance suite
    //! tests.

    pub use crate::contract::{
        Attachment, Backend, Busy, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, LockTicks, Losses,
        Release, Renewal, Scope, Term, TickNotes, Wake,
    };
    pub use crate::engines::*;
}

/// The pages whose snippets are doc tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../../../docs/mistakes.md")]
    mod mistakes {}
    #[doc = include_str!("../../../docs/primitives.md")]
    mod primitives {}
}

pub use api::ask::{AskRequest, Asked};
#[cfg(feature = "blocking")]
pub use api::blocking::Blocking;
pub use api::builder::LockerBuilder;
pub use api::election::{CampaignRequest, Election, Leader, Leaders, Leadership};
pub use api::fencing;
pub use api::guard::{HoldState, LockGuard};
pub use api::inspect::{Change, Inspect, Watch};
pub use api::locker::Locker;
pub use api::multi::{LockAllRequest, MultiGuard};
pub use api::once::{DEFAULT_KEEP, MAX_PERIOD, MIN_PERIOD, Once, OnceOutcome, OnceRequest};
pub use api::once_guard::OnceGuard;
pub use api::request::{LockRequest, RequestFuture, TryLockRequest, UnlockRequest};
pub use api::semaphore::Semaphore;
pub use config::connect::{examine, set_up, setup_sql};
pub use config::fields::Config;
pub use config::limits::DEFAULT_DIAL_TIMEOUT;
pub use config::redact::{redact, without_passwords};
pub use config::registry::Driver;
pub use types::clock::{Clock, DEFAULT_DRIFT, Moment};
pub use types::error::{Error, ErrorKind, Result};
pub use types::event::{Event, EventKind, LossReason, Observer};
pub use types::finding::{Finding, Severity};
pub use types::history::{HistoryEntry, HistoryKind, MAX_HISTORY};
pub use types::key::{Key, MAX_KEY_BYTES};
pub use types::manual_clock::ManualClock;
pub use types::mode::{MAX_SLOTS, Mode};
pub use types::options::{
    DEFAULT_MAX_RETRIES, DEFAULT_RETRY_INTERVAL, DEFAULT_TTL, MAX_RETRY_INTERVAL, MAX_TTL, MAX_WAIT,
    MIN_RETRY_INTERVAL, MIN_TTL,
};
pub use types::owner::{Holder, MAX_TEXT_BYTES, OwnerId, Process, Record};
pub use types::secret::Secret;
pub use types::tick::{ClockSkew, MAX_TICKS, Tick, TickNote};
pub use types::ticket::HoldTicket;
pub use types::token::{AttemptId, FencingToken};
pub use types::watchdog::Watchdog;
