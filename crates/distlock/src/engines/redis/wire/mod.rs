//! Connections to the servers: opening, supervising, routing and batching.

mod batcher;
pub(in crate::engines) mod calls;
pub(in crate::engines) mod cluster;
pub(in crate::engines) mod connection;
mod driven_stream;
mod driver;
pub(in crate::engines) mod hash_slot;
mod input;
pub(in crate::engines) mod join_all;
pub(in crate::engines) mod link;
mod link_state;
mod log_in;
pub(in crate::engines) mod natives;
mod open;
pub(in crate::engines) mod options;
pub(in crate::engines) mod probe;
pub(in crate::engines) mod renewals;
mod replicas;
pub(in crate::engines) mod sentinels;
pub(in crate::engines) mod server_clock;
pub(in crate::engines) mod server_connections;
pub(in crate::engines) mod server_identity;
pub(in crate::engines) mod servers;
mod socket;
mod subscriber;
mod text_call;
