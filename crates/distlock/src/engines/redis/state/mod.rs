//! What this client knows of its attempts and leases.

pub(in crate::engines) mod restart_guard;
pub(in crate::engines) mod sending;
