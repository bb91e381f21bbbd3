//! The rows of the failure catalogue about a single Redis server, each on a real one.
#![cfg(feature = "redis")]

#[path = "redis_faults/ambiguity.rs"]
mod ambiguity;
#[path = "redis_faults/bench.rs"]
mod bench;
#[path = "redis_faults/clocks.rs"]
mod clocks;
#[path = "redis_faults/cluster.rs"]
mod cluster;
#[path = "redis_faults/commands.rs"]
mod commands;
#[path = "redis_faults/fence.rs"]
mod fence;
#[path = "redis_faults/groups.rs"]
mod groups;
#[path = "redis_faults/guard.rs"]
mod guard;
#[path = "redis_faults/hung_master.rs"]
mod hung_master;
#[path = "redis_faults/lean.rs"]
mod lean;
#[path = "redis_faults/links.rs"]
mod links;
#[path = "redis_faults/log.rs"]
mod log;
mod log_kit;
#[path = "redis_faults/native_release.rs"]
mod native_release;
#[path = "redis_faults/natives.rs"]
mod natives;
#[path = "redis_faults/partition.rs"]
mod partition;
#[path = "redis_faults/queue.rs"]
mod queue;
#[path = "redis_faults/reach.rs"]
mod reach;
mod reach_kit;
mod reach_queue_kit;
mod redis_faults_kit;
#[path = "redis_faults/reference.rs"]
mod reference;
#[path = "redis_faults/refusals.rs"]
mod refusals;
#[path = "redis_faults/replicas.rs"]
mod replicas;
#[path = "redis_faults/rights.rs"]
mod rights;
#[path = "redis_faults/sentinel.rs"]
mod sentinel;
#[path = "redis_faults/server.rs"]
mod server;
#[path = "redis_faults/short_ways.rs"]
mod short_ways;
#[path = "redis_faults/stale.rs"]
mod stale;
#[path = "redis_faults/strangers.rs"]
mod strangers;
#[path = "redis_faults/time.rs"]
mod time;
#[path = "redis_faults/together.rs"]
mod together;

distlock_testkit::child!();
