//! The libraries.

mod distributed_lock;
mod ours;
mod rslock;

pub(crate) use self::distributed_lock::DistributedLock;
pub(crate) use self::ours::Ours;
pub(crate) use self::rslock::Rslock;
