//! What this client knows: claims on their way, first leases, names of locks, the server's clock.

pub(super) mod first_leases;
pub(super) mod known_names;
pub(super) mod sending;
pub(super) mod server_clock;
