//! The lower bounds: the fewest requests that a lock can be made of, on the same client crates, with no fencing token, no
//! loss signal and no renewal.

mod etcd;
mod redis_pair;
mod redis_queue;

pub(crate) use self::etcd::{EtcdPair, EtcdQueue};
pub(crate) use self::redis_pair::{RedisPair, RedlockPair};
pub(crate) use self::redis_queue::RedisQueue;
