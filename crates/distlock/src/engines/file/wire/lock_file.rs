//! An open file whose flock is the lock.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

/// The type of NFS in `statfs`.
pub(crate) const NFS: u64 = 0x6969;

/// How often an operation starts again when another process changes its files. Each time that process has made
/// progress.
pub(crate) const CHANGED_FILE_TRIES: usize = 64;

/// The identity of a file, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    dev: u64,
    ino: u64,
}

impl FileId {
    fn of(stat: &Stat) -> FileId {
        FileId { dev: stat.st_dev, ino: stat.st_ino }
    }

    /// Whether the kernel lists the file with these numbers.
    pub(crate) fn is(self, major: u32, minor: u32, ino: u64) -> bool {
        (rustix::fs::major(self.dev), rustix::fs::minor(self.dev), self.ino) == (major, minor, ino)
    }
}

/// What to do about a symbolic link at the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Opens the link's target, as flock(1) does.
    Follow,
    /// Fails. Where only distlock's files belong, a link is a trap.
    Refuse,
}

/// What keeps a file from being locked exclusively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Another descriptor has it exclusively.
    Holder,
    /// Other descriptors share it: readers, or an inspection, which lasts for a moment.
    Sharers,
}

/// An open file whose flock is the lock. Dropping it frees the lock.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    id: FileId,
    owner: u32,
    writable: bool,
    /// A child has a copy of the descriptor.
    inherited: AtomicBool,
}

impl LockFile {
    /// Opens the file; makes it if it is not there. A file or directory that may only be read is opened for reading.
    pub(crate) fn open(path: &Path, links: Links) -> io::Result<LockFile> {
        // Without CREATE first: in a sticky directory the kernel refuses CREATE for the files of other users.
        Self::open_existing(path, links)?.map_or_else(|| Self::create(path, links), Ok)
    }

    /// Opens the file as [`open`](LockFile::open) does, if it is there.
    pub(crate) fn open_existing(path: &Path, links: Links) -> io::Result<Option<LockFile>> {
        match Self::open_with(path, links, OFlags::RDWR) {
            Err(Errno::NOENT) => Ok(None),
            opened => Self::or_readable(path, links, opened).map(Some),
        }
    }

    /// Opens the file as [`open`](LockFile::open) does, and always passes CREATE.
    pub(crate) fn create(path: &Path, links: Links) -> io::Result<LockFile> {
        Self::or_readable(path, links, Self::open_with(path, links, OFlags::RDWR | OFlags::CREATE))
    }

    fn or_readable(path: &Path, links: Links, opened: rustix::io::Result<LockFile>) -> io::Result<LockFile> {
        let opened = opened.or_else(|error| match error {
            Errno::ACCESS | Errno::PERM | Errno::ISDIR | Errno::ROFS | Errno::TXTBSY => {
                Self::open_with(path, links, OFlags::RDONLY).map_err(|_| error)
            }
            other => Err(other),
        });
        opened.map_err(io::Error::from)
    }

    /// Makes the file. Fails when it is there already.
    pub(crate) fn create_new(path: &Path) -> io::Result<LockFile> {
        let access = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Self::open_with(path, Links::Refuse, access).map_err(io::Error::from)
    }

    /// Opens the file for reading if it is there.
    pub(crate) fn open_to_read(path: &Path, links: Links) -> io::Result<Option<LockFile>> {
        match Self::open_with(path, links, OFlags::RDONLY) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn open_with(path: &Path, links: Links, access: OFlags) -> rustix::io::Result<LockFile> {
        // NONBLOCK: opening a pipe for reading would wait for its writer.
        let mut flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        flags.set(OFlags::NOFOLLOW, links == Links::Refuse);
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))?;
        let found = rustix::fs::fstat(&file)?;
        let writable = access.contains(OFlags::RDWR);
        Ok(LockFile {
            file: file.into(),
            id: FileId::of(&found),
            owner: found.st_uid,
            writable,
            inherited: AtomicBool::new(false),
        })
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Returns the user to whom the file belongs.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the file, to read and write its contents.
    pub(crate) fn contents(&self) -> &File {
        &self.file
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Takes the lock exclusively if it is free.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        is_locked(self.file.try_lock())
    }

    /// Takes the lock exclusively if it is free, and returns `None`; otherwise returns what is in the way.
    pub(crate) fn try_alone(&self) -> io::Result<Option<Obstacle>> {
        if self.try_lock()? {
            return Ok(None);
        }
        if !self.try_share()? {
            return Ok(Some(Obstacle::Holder));
        }
        // The obstacle may have gone meanwhile. A conversion that fails gives up the shared lock, too.
        if self.try_lock()? {
            return Ok(None);
        }
        self.file.unlock()?;
        Ok(Some(Obstacle::Sharers))
    }

    /// Takes the lock shared, unless another descriptor has it exclusively.
    pub(crate) fn try_share(&self) -> io::Result<bool> {
        is_locked(self.file.try_lock_shared())
    }

    /// Whether no other descriptor has the lock exclusively. Shares the lock for a moment: others may find it busy.
    pub(crate) fn probe(&self) -> io::Result<bool> {
        let free = self.try_share()?;
        self.file.unlock()?;
        Ok(free)
    }

    /// Whether `path` still names this file. A lock on a file that was removed or replaced excludes no other.
    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        match rustix::fs::stat(path) {
            Ok(stat) => Ok(FileId::of(&stat) == self.id),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the file still has a name.
    pub(crate) fn is_linked(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Returns a copy of the descriptor for a child to inherit; the lock is then free when the last copy is closed.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        let copy = self.file.try_clone()?;
        self.inherited.store(true, Ordering::Relaxed);
        Ok(copy.into())
    }

    pub(crate) fn is_inherited(&self) -> bool {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Whether the file is on NFS, where flock depends on the server's lock daemon and may be lost with it.
    pub(crate) fn is_on_nfs(&self) -> bool {
        #[allow(clippy::unnecessary_cast, reason = "the field's type differs between machines")]
        rustix::fs::fstatfs(&self.file).is_ok_and(|system| system.f_type as u64 == NFS)
    }

    /// Frees the lock now, for every copy of the descriptor.
    pub(crate) fn unlock(&self) {
        // A close frees the lock too, but later: a child between fork and exec has a copy, and inotify reports a
        // close a moment before the lock is free.
        let _ = self.file.unlock();
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if !self.is_inherited() {
            self.unlock();
        }
    }
}

fn is_locked(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
