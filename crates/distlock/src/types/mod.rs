//! The leaves: values that every ring uses. They import only each other. This list is the one list of them.

pub(crate) mod activity;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod finding;
pub(crate) mod history;
pub(crate) mod key;
pub(crate) mod manual_clock;
pub(crate) mod meter;
pub(crate) mod mode;
pub(crate) mod options;
pub(crate) mod owner;
pub(crate) mod random_bytes;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", test))]
pub(crate) mod record_json;
pub(crate) mod secret;
#[cfg(feature = "serde")]
pub(crate) mod serialize;
pub(crate) mod span;
pub(crate) mod sync;
pub(crate) mod tick;
pub(crate) mod ticket;
pub(crate) mod token;
pub(crate) mod watchdog;
