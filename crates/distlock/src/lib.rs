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
//! - [`Locker`] takes locks; each handle is one owner, and a clone is another.
//! - [`read`](Locker::read), [`write`](Locker::write) and [`semaphore`](Locker::semaphore) allow several holders at
//!   once.
//! - [`LockGuard`] is a held lock: [`lost`](LockGuard::lost), [`check`](LockGuard::check) and [`run`](LockGuard::run)
//!   report the end of its lease before another owner is granted the lock, and
//!   [`fencing_token`](LockGuard::fencing_token) lets the resource refuse late writes.
//! - [`Error`] says what happened, to which lock, held by whom, and what to do next.
//! - [`fencing`] has what a resource needs to check fencing tokens.
//! - [`backend`] is the contract for engines; [`backend::memory`] is for tests, with scripted faults.
//!
//! # Features
//! `config` (default): [`Config`] from TOML. `redis`, `etcd`, `postgres`: the engines of these names. `tls`: encrypted
//! connections. `metrics`: counters, gauges and histograms for the `metrics` facade. `spans`: `tracing` spans around
//! acquiring, holding and renewing. `blocking`: `Blocking`, the same requests and guards for threads without async.
//! `serde`: tokens, keys, holders, leaders, reasons, error kinds and listings in serde's formats.

// docs.rs marks what needs a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]
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
    //! An engine implements [`Backend`]; each "Behaviour" paragraph there is a promise that the conformance suite
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
    #[doc = include_str!("../../../docs/primitives.md")]
    mod primitives {}
}

pub use api::ask::{AskRequest, Asked};
#[cfg(feature = "blocking")]
pub use api::blocking::Blocking;
pub use api::election::{CampaignRequest, Election, Leader, Leaders, Leadership};
pub use api::fencing;
pub use api::guard::{HoldState, LockGuard};
pub use api::inspect::{Change, Inspect, Watch};
pub use api::locker::{Locker, LockerBuilder};
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
