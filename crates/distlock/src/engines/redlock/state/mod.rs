pub(crate) mod attempts;
pub(crate) mod claim_votes;
