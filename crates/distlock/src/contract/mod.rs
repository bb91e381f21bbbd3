//! The contract between the core and an engine.
//!
//! The core decides when to send a request; an engine carries it to where the locks are stored and reports its
//! outcome. Every request is idempotent: it carries the attempt's random id, and sending it twice has the effect of
//! sending it once.

mod attachment;
mod backend;
mod boxed;
mod capabilities;
mod claim;
mod grant;
mod lease;
mod lock_info;
mod ticks;

pub use attachment::{Attachment, Losses};
pub use backend::Backend;
pub(crate) use boxed::{BoxFuture, DynBackend};
pub use capabilities::{Capabilities, Scope};
pub(crate) use claim::SHORTEST_HEARTBEAT;
pub use claim::{Busy, Claim, Claimed, ClaimedAll, Wake};
pub use grant::{Grant, Term};
pub use lease::{Lease, Release, Renewal};
pub use lock_info::LockInfo;
pub use ticks::{LockTicks, TickNotes};
