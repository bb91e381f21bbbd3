//! How the engine is made.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::error::file_error;
use super::inspect;
use super::protocol::lock_paths::PathLayout;
use super::state::State;
use crate::types::clock::Clock;
use crate::types::error::Result;
use crate::types::key::Key;

/// Locks among the processes of this machine, by flock(2).
///
/// There is no lease: the kernel frees a lock the moment its holder is gone, and never before. A lock's file stays when
/// the lock is released, since the fencing counter is in it. `docs/backends/file.md` says which files there are, and
/// what is not guaranteed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("distlock-doc-{}", std::process::id()));
/// use distlock::{Locker, backend::file::FileBackend};
///
/// let locker = Locker::new(FileBackend::in_dir(&dir)?)?;
/// let guard = locker.lock("nightly").await?;
/// assert!(dir.join("nightly.lock").exists());
/// # guard.unlock().await?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok(()) }
/// ```
///
/// Clones are handles to the same engine.
#[derive(Clone)]
pub struct FileBackend(pub(super) Arc<State>);

impl FileBackend {
    /// Returns an engine whose locks are all files in `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// Kind `Backend`, with the [`std::io::Error`] as source, when the directory cannot be made.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Result<FileBackend> {
        let dir = dir.into();
        let made = std::fs::create_dir_all(&dir).and_then(|()| dir.canonicalize());
        let dir = made.map_err(|error| file_error("create lock directory", &dir, error))?;
        Ok(FileBackend::build(PathLayout::new(dir, false), Clock::system()))
    }

    /// Returns an engine for which a key with a `/` is the path of its lock file, so that `flock PATH` and the engine
    /// exclude each other. Any other key is a file in `dir`, which is made when it is first needed.
    ///
    /// A file with contents of its own is only ever locked; counter and holder are then in `PATH.distlock`. An empty
    /// file takes them itself. A relative path, of a key or `dir`, starts at the directory in which the process is
    /// when this is called.
    #[must_use]
    pub fn host(dir: impl Into<PathBuf>) -> FileBackend {
        FileBackend::build(PathLayout::new(dir.into(), true), Clock::system())
    }

    /// Sets the clock that the engine reads. Call it before anything else.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> FileBackend {
        FileBackend::build(self.0.layout.clone(), clock)
    }

    fn build(layout: PathLayout, clock: Clock) -> FileBackend {
        FileBackend(Arc::new(State::new(layout, clock)))
    }

    /// Returns the processes that hold `key`'s file by flock(2), distlock's or not.
    ///
    /// # Errors
    /// If the file or the kernel's list of locks cannot be read; the source is the [`std::io::Error`].
    pub fn holder_pids(&self, key: &Key) -> Result<Vec<u32>> {
        inspect::holder_pids(&self.0, key)
    }
}

impl fmt::Debug for FileBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBackend").field("dir", &self.0.layout.dir()).finish_non_exhaustive()
    }
}
