//! Taking a lock, holding it and ending it, on any engine.

pub(crate) mod acquire;
pub(crate) mod family;
pub(crate) mod hold;
pub(crate) mod holds;
pub(crate) mod journal;
pub(crate) mod keeper;
pub(crate) mod observed;
pub(crate) mod pending_release;
pub(crate) mod release;
pub(crate) mod shards;
