//! Taking a lock, holding it and ending it, on any engine.

pub(crate) mod acquire;
mod agenda;
mod attempt;
pub(crate) mod family;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod holds;
pub(crate) mod keeper;
pub(crate) mod pending_release;
pub(crate) mod release;
pub(crate) mod reporter;
pub(crate) mod shards;
#[cfg(feature = "blocking")]
pub(crate) mod waits;
