//! A distributed lock to trust.

pub mod backend;
mod clock;
mod error;
mod event;
mod key;
mod owner;
mod token;

pub use clock::{Clock, DEFAULT_DRIFT, ManualClock, Moment};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventKind, LossReason, Observer};
pub use key::{Key, MAX_KEY_BYTES};
pub use owner::{Holder, MAX_TEXT_BYTES, OwnerId, Process, Record};
pub use token::{AttemptId, FencingToken};
