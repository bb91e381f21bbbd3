//! What is stored in etcd and how it is asked for: key layout, values, admission rules, typed requests and replies.

pub(crate) mod lease_id;
pub(crate) mod messages;
pub(crate) mod methods;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod queue;
pub(crate) mod queue_key;
pub(crate) mod reentry_requests;
pub(crate) mod standing;
pub(crate) mod value;
