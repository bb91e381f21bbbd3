//! A distributed lock to trust.

pub mod backend;
mod clock;
mod config;
mod error;
mod event;
mod key;
mod owner;
mod token;
mod url;

pub use clock::{Clock, DEFAULT_DRIFT, ManualClock, Moment};
pub use config::{Config, DEFAULT_DIAL_TIMEOUT, DEFAULT_RETRY_INTERVAL, DEFAULT_TTL, Driver, Secret, redact};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventKind, LossReason, Observer};
pub use key::{Key, MAX_KEY_BYTES};
pub use owner::{Holder, MAX_TEXT_BYTES, OwnerId, Process, Record};
pub use token::{AttemptId, FencingToken};
