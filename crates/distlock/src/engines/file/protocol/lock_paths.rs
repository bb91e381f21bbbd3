//! The paths of the files of one lock.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engines::file::error::file_error;
use crate::engines::file::protocol::lock_directory::LockDirectory;
use crate::engines::file::protocol::lock_names;
use crate::engines::file::protocol::own_directory;
use crate::engines::file::wire::lock_file::{Links, LockFile};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;

/// The directory of the anchors of locks at paths of their own. It has no suffix, so no key's file has this name.
const PATHS: &str = "paths";

/// The paths of the files of one lock.
#[derive(Debug, Clone)]
pub(crate) struct LockPaths {
    /// The file whose flock is the lock.
    pub(crate) lock: PathBuf,
    /// The side file: counter and holder, when the lock's file has foreign contents. `None` in the lock directory,
    /// where only distlock's files belong.
    pub(crate) side: Option<PathBuf>,
    /// The directory of the tickets.
    pub(crate) queue: PathBuf,
    /// The directory of the shared holders.
    pub(crate) shared_holders: PathBuf,
    /// A second file that a holder locks, in the lock directory: if the lock's file is removed while held, this one
    /// excludes the next holder. `None` for paths too long to have one, and where a link is in its way.
    pub(crate) anchor: Option<PathBuf>,
    pub(crate) history: PathBuf,
    /// The notes of its ticks.
    pub(crate) ticks: PathBuf,
    pub(crate) links: Links,
    directory: Arc<LockDirectory>,
}

impl LockPaths {
    /// Opens the lock's file; makes it if it is not there.
    pub(crate) fn open(&self) -> Result<LockFile> {
        if self.side.is_none() {
            return self.directory.open(&self.lock);
        }
        LockFile::open(&self.lock, self.links).map_err(|error| file_error("create lock file", &self.lock, error))
    }

    /// Opens the lock's file for reading if it is there.
    pub(crate) fn open_to_read(&self) -> Result<Option<LockFile>> {
        LockFile::open_to_read(&self.lock, self.links).map_err(|error| file_error("read lock file", &self.lock, error))
    }

    /// Opens the anchor. `None` where that fails: then the lock is as safe from removal of its file as flock(1) is.
    pub(crate) fn open_anchor(&self) -> Option<LockFile> {
        let path = self.anchor.as_ref()?;
        self.directory
            .open(path)
            .inspect_err(|error| {
                tracing::debug!(target: "distlock", %error, "a lock without an anchor");
            })
            .ok()
    }

    /// Whether `file` is still the anchor.
    pub(crate) fn has_anchor(&self, file: &LockFile) -> bool {
        self.anchor.as_ref().is_some_and(|path| file.is_at(path).unwrap_or(false))
    }

    /// Whether `file` is still the lock's file.
    pub(crate) fn has(&self, file: &LockFile) -> Result<bool> {
        file.is_at(&self.lock).map_err(|error| file_error("look at", &self.lock, error))
    }
}

/// Maps keys to paths.
#[derive(Debug, Clone)]
pub(crate) struct PathLayout {
    directory: Arc<LockDirectory>,
    /// A key with a slash is the path of its file.
    keys_are_paths: bool,
    /// Where relative paths start: the working directory of the process when the engine was made. The process may
    /// change it while it holds a lock, and then read the history of the same one. `None` where that directory is
    /// gone.
    started_in: Option<PathBuf>,
}

impl PathLayout {
    pub(crate) fn new(dir: PathBuf, keys_are_paths: bool) -> PathLayout {
        let started_in = std::env::current_dir().ok();
        let dir = match &started_in {
            Some(started_in) => started_in.join(dir),
            None => dir,
        };
        PathLayout { directory: Arc::new(LockDirectory::new(dir)), keys_are_paths, started_in }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the paths of `key`'s files. Makes no file. Fails where a symbolic link is in the way.
    pub(crate) fn find(&self, key: &Key) -> Result<LockPaths> {
        if self.keys_are_paths && key.as_str().contains('/') {
            return self.at_path(key);
        }
        let inside_dir = lock_names::path_of(key);
        let lock = self.dir().join(&inside_dir);
        own_directory::refuse_links(self.dir(), &inside_dir)
            .map_err(|error| file_error("reach", &lock, error).with_key(key))?;
        let beside = |suffix| with_suffix(&lock, lock_names::LOCK, suffix);
        Ok(LockPaths {
            side: None,
            queue: beside(lock_names::QUEUE),
            shared_holders: beside(lock_names::SHARED_HOLDERS),
            anchor: Some(beside(lock_names::ANCHOR)),
            history: beside(lock_names::HISTORY),
            ticks: beside(lock_names::TICKS),
            links: Links::Refuse,
            directory: self.directory.clone(),
            lock,
        })
    }

    fn at_path(&self, key: &Key) -> Result<LockPaths> {
        let named = Path::new(key.as_str());
        let started = self.started_in.as_ref().map_or_else(|| named.to_owned(), |started_in| started_in.join(named));
        let lock = std::path::absolute(started).map_err(|error| file_error("find", named, error))?;
        // Opened through a symbolic link or not, the same file must have the same counter and the same queue.
        let real = match lock.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => not_there_yet(&lock),
            found => found,
        };
        let real = real.map_err(|error| file_error("create lock file", &lock, error))?;
        if real.file_name().is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "key: the root directory cannot be a lock").with_key(key));
        }
        let anchor = Key::escape(real.as_os_str().as_bytes())
            .map(|path| Path::new(PATHS).join(lock_names::path_of(&path)))
            .ok()
            .filter(|path| own_directory::refuse_links(self.dir(), path).is_ok())
            .map(|path| with_suffix(&self.dir().join(path), lock_names::LOCK, lock_names::ANCHOR));
        let beside = |suffix| with_suffix(&real, "", suffix);
        Ok(LockPaths {
            lock,
            side: Some(beside(".distlock")),
            queue: beside(".distlock.q"),
            shared_holders: beside(".distlock.in"),
            anchor,
            history: beside(".distlock.log"),
            ticks: beside(".distlock.ticks"),
            links: Links::Follow,
            directory: self.directory.clone(),
        })
    }
}

fn not_there_yet(path: &Path) -> io::Result<PathBuf> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    // To open a link whose target is missing makes the target.
    let target = std::fs::read_link(path).map_or_else(|_| path.to_owned(), |target| dir.join(target));
    let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(target.parent().unwrap_or(Path::new("/")).canonicalize()?.join(name))
}

/// Returns `path` with the suffix `old` of its name replaced by `new`.
fn with_suffix(path: &Path, old: &str, new: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let stem = name.strip_suffix(old.as_bytes()).unwrap_or(name);
    path.with_file_name(OsStr::from_bytes(&[stem, new.as_bytes()].concat()))
}
