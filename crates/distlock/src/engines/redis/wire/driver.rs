//! The I/O of a connection.

use std::future::Future;
use std::pin::Pin;

/// The I/O of a connection: nothing moves unless it is polled.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;
