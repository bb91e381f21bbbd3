//! The connections to the nodes, and the requests in flight.

pub(crate) mod batch;
pub(crate) mod calls;
pub(crate) mod claim_limit;
pub(crate) mod nodes;
pub(crate) mod send;
