//! What users call.

pub(crate) mod ask;
#[cfg(feature = "blocking")]
pub(crate) mod blocking;
pub(crate) mod builder;
pub(crate) mod election;
pub mod fencing;
pub(crate) mod guard;
pub(crate) mod inspect;
pub(crate) mod locker;
pub(crate) mod multi;
pub(crate) mod once;
pub(crate) mod once_guard;
pub(crate) mod request;
pub(crate) mod semaphore;
