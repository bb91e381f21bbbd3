//! For the model of this repository only: the rules of an attempt, as the engine runs them.

pub use crate::engines::etcd::protocol::queue_key::QueueKey;
pub use crate::engines::etcd::state::attempt::{AttemptState, LeaseHandle};
pub use crate::engines::etcd::state::effect::{
    AfterDeletion, Chore, Granted, LeaseGone, Lost, Move, NoAmendment, Renewed, SawDeletion, ToDelete, Wait,
};
pub use crate::engines::etcd::state::phase::{Leaving, Phase};
