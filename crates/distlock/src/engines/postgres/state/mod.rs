//! What this client knows: its waiting attempts, its unanswered claims, names of locks, the server's clock.

pub(super) mod first_leases;
pub(super) mod known_names;
pub(super) mod late_claims;
pub(super) mod server_clock;
pub(super) mod waiting;
