//! Runtimes: each runtime is the thread that runs it.

use std::io;

use crate::task::JoinHandle;

/// Runs futures on the calling thread.
#[derive(Debug)]
pub struct Runtime(Handle);

impl Runtime {
    /// Runs `future` to completion.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        shuttle::future::block_on(future)
    }

    /// Returns the handle for spawning.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0
    }
}

/// A handle for spawning; there is only one kind.
#[derive(Debug, Clone)]
pub struct Handle(());

impl Handle {
    /// Returns the handle; every thread has a runtime here.
    ///
    /// # Errors
    /// None.
    pub fn try_current() -> io::Result<Handle> {
        Ok(Handle(()))
    }

    /// Makes this the runtime of the thread, which it already is.
    pub fn enter(&self) -> EnterGuard<'_> {
        EnterGuard(self)
    }

    /// Runs `future` concurrently.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        shuttle::future::spawn(future)
    }
}

/// Marks the thread as inside the runtime.
#[derive(Debug)]
#[must_use = "the runtime is left when this is dropped"]
pub struct EnterGuard<'a>(#[expect(dead_code, reason = "only its lifetime counts")] &'a Handle);

/// Builds a runtime.
#[derive(Debug)]
pub struct Builder(());

impl Builder {
    /// Returns the only kind of builder.
    #[must_use]
    pub fn new_current_thread() -> Builder {
        Builder(())
    }

    /// Does nothing: there is nothing to enable.
    pub fn enable_all(&mut self) -> &mut Builder {
        self
    }

    /// Builds the runtime.
    ///
    /// # Errors
    /// None.
    pub fn build(&mut self) -> io::Result<Runtime> {
        Ok(Runtime(Handle(())))
    }
}
