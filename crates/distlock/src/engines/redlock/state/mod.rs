//! What this client knows: its attempts, and the votes of one round. Neither awaits nor reads a clock.

pub(crate) mod attempts;
pub(crate) mod backoff;
pub(crate) mod claim_votes;
pub(crate) mod contended;
pub(crate) mod known_note;
pub(crate) mod leaps;
pub(crate) mod node_set;
pub(crate) mod quorum;
pub(crate) mod release_votes;
pub(crate) mod renew_votes;
