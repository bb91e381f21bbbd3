//! A distributed lock to trust.

pub mod backend;
mod clock;
mod config;
mod connect;
mod error;
mod event;
mod family;
mod guard;
mod holds;
mod inspect;
mod keeper;
mod key;
mod locker;
mod options;
mod owner;
mod request;
mod token;
mod url;
mod wait;

pub use clock::{Clock, DEFAULT_DRIFT, ManualClock, Moment};
pub use config::{Config, DEFAULT_DIAL_TIMEOUT, Driver, Secret, redact};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventKind, LossReason, Observer};
pub use guard::{HoldState, LockGuard};
pub use inspect::{Change, Inspect, Watch};
pub use key::{Key, MAX_KEY_BYTES};
pub use locker::{Locker, LockerBuilder};
pub use options::{
    DEFAULT_MAX_RETRIES, DEFAULT_RETRY_INTERVAL, DEFAULT_TTL, MAX_RETRY_INTERVAL, MAX_TTL, MAX_WAIT,
    MIN_RETRY_INTERVAL, MIN_TTL,
};
pub use owner::{Holder, MAX_TEXT_BYTES, OwnerId, Process, Record};
pub use request::{LockRequest, RequestFuture, TryLockRequest, UnlockRequest};
pub use token::{AttemptId, FencingToken};
