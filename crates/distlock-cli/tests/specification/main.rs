//! The specification of the command line, row by row, on the real program and the real locks of this machine.
//!
//! The loss of a lock with a lease is in tests/supervision.rs, where a harness loses locks on demand: exit code 79
//! instead of the child's, `--on-lost`, `--signal`, `--kill-after`, the lease that ends while the wrapper is stopped,
//! the child that must not continue after SIGCONT, and that each signal is forwarded exactly once. The terminal is in
//! tests/terminal.rs, most usage errors are in tests/usage.rs. None of them is repeated here.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod machine;

mod background;
mod child;
mod configuration;
mod console;
mod doctor;
mod election;
mod exclusion;
mod first_minutes;
mod inspection;
mod messages;
mod modes;
mod namespaces;
mod nesting;
mod once;
mod outcome;
mod reach;
mod relay;
mod repeats;
mod secrets;
mod servers;
mod signals;
mod silence;
mod trials;
mod visibility;
mod waiting;
