//! The rows of the failure catalogue about PostgreSQL, each on a real server.
#![cfg(feature = "postgres")]

#[path = "postgres_faults/ambiguity.rs"]
mod ambiguity;
#[path = "postgres_faults/bench.rs"]
mod bench;
#[path = "setups/client_pool.rs"]
mod client_pool;
#[path = "postgres_faults/clocks.rs"]
mod clocks;
#[path = "postgres_faults/fencing.rs"]
mod fencing;
#[path = "postgres_faults/input.rs"]
mod input;
#[path = "postgres_faults/lean.rs"]
mod lean;
#[path = "postgres_faults/orders.rs"]
mod orders;
#[path = "postgres_faults/pool.rs"]
mod pool;
#[path = "postgres_faults/processes.rs"]
mod processes;
#[path = "postgres_faults/replicas.rs"]
mod replicas;
#[path = "postgres_faults/server.rs"]
mod server;
#[path = "postgres_faults/tables.rs"]
mod tables;
#[path = "postgres_faults/ticks.rs"]
mod ticks;
#[path = "postgres_faults/upgrade.rs"]
mod upgrade;

distlock_testkit::child!();
