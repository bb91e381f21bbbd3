//! The primitives of threads, so that the same code runs where a checker decides who goes first: see `races/`.

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Mutex, MutexGuard, PoisonError, atomic, mpsc},
    thread,
};
#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, PoisonError, atomic, mpsc},
    thread,
};
