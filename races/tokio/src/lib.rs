//! As much of tokio as the library needs, on shuttle's scheduler: what runs, waits or tells others is a step that the
//! scheduler may put anywhere.
//!
//! Tokio's own primitives do not need a runtime of tokio's, and are used as they are; where they let others go on, there
//! is a [`sync::step`] before. Time is not modelled: a timeout may come whenever somebody has to wait.

pub mod runtime;
pub mod sync;
pub mod task;
pub mod time;

pub use tokio::{io, net};

#[doc(hidden)]
pub use tokio::select as select_in_order;

/// `tokio::select!`, always in the order in which the branches are written: tokio would throw dice that no schedule
/// records.
#[macro_export]
macro_rules! select {
    (biased; $($branches:tt)*) => { $crate::select_in_order! { biased; $($branches)* } };
    ($($branches:tt)*) => { $crate::select_in_order! { biased; $($branches)* } };
}
