//! The rows of the failure catalogue about a majority of Redis nodes, on three and five real ones.
#![cfg(feature = "redis")]

#[path = "redlock_faults/ambiguity.rs"]
mod ambiguity;
#[path = "redlock_faults/bench.rs"]
mod bench;
#[path = "redlock_faults/drops.rs"]
mod drops;
#[path = "redlock_faults/healing.rs"]
mod healing;
#[path = "redlock_faults/late.rs"]
mod late;
#[path = "redlock_faults/lean.rs"]
mod lean;
#[path = "redlock_faults/memory.rs"]
mod memory;
#[path = "redlock_faults/nodes.rs"]
mod nodes;
#[path = "redlock_faults/reach.rs"]
mod reach;
mod reach_kit;
mod redis_faults_kit;
#[path = "redlock_faults/time.rs"]
mod time;

distlock_testkit::child!();
