//! Runtimes: each is the thread that runs it.

use std::io;

use crate::task::JoinHandle;

/// Runs futures on the thread that asks.
#[derive(Debug)]
pub struct Runtime(Handle);

impl Runtime {
    /// Runs `future` to its end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        shuttle::future::block_on(future)
    }

    /// What spawns.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0
    }
}

/// What spawns; there is only one kind.
#[derive(Debug, Clone)]
pub struct Handle(());

impl Handle {
    /// Everybody has a runtime here.
    ///
    /// # Errors
    /// None.
    pub fn try_current() -> io::Result<Handle> {
        Ok(Handle(()))
    }

    /// Makes this the runtime of the thread. It is that already.
    pub fn enter(&self) -> EnterGuard<'_> {
        EnterGuard(self)
    }

    /// Runs `future` beside everything else.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        shuttle::future::spawn(future)
    }
}

/// For as long as it lives, the thread has the runtime.
#[derive(Debug)]
#[must_use = "the runtime is left when this is dropped"]
pub struct EnterGuard<'a>(#[expect(dead_code, reason = "only its lifetime counts")] &'a Handle);

/// Makes a runtime.
#[derive(Debug)]
pub struct Builder(());

impl Builder {
    /// The only kind.
    #[must_use]
    pub fn new_current_thread() -> Builder {
        Builder(())
    }

    /// Nothing to enable.
    pub fn enable_all(&mut self) -> &mut Builder {
        self
    }

    /// A runtime.
    ///
    /// # Errors
    /// None.
    pub fn build(&mut self) -> io::Result<Runtime> {
        Ok(Runtime(Handle(())))
    }
}
