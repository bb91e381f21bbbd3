//! Mutexes, atomics and threads, replaceable so that the race checker of `races/` can schedule them.

#[cfg(shuttle)]
use shuttle::sync as imp;
#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{MutexGuard, atomic, mpsc},
    thread,
};
#[cfg(not(shuttle))]
use std::sync as imp;
#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{MutexGuard, atomic, mpsc},
    thread,
};

/// A mutex that a panic does not poison: every table of the library is consistent whenever its mutex is free.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns a mutex around `value`.
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(imp::Mutex::new(value))
    }

    /// Waits for the mutex and locks it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(imp::PoisonError::into_inner)
    }
}
