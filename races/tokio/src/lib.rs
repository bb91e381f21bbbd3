//! The subset of tokio that the library needs, on shuttle's scheduler: running, waiting and notifying are steps that
//! the scheduler may reorder.
//!
//! Tokio's own primitives work without tokio's runtime and are used as they are; a [`sync::step`] precedes each
//! operation that wakes others. Time is not modelled: a timeout may fire whenever a future has to wait.

pub mod runtime;
pub mod sync;
pub mod task;
pub mod time;

pub use tokio::{io, net};

#[doc(hidden)]
pub use tokio::select as select_in_order;

/// `tokio::select!` with a fixed order of the branches: tokio would choose at random, which no schedule records.
#[macro_export]
macro_rules! select {
    (biased; $($branches:tt)*) => { $crate::select_in_order! { biased; $($branches)* } };
    ($($branches:tt)*) => { $crate::select_in_order! { biased; $($branches)* } };
}
