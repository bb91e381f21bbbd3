//! The unix socket of the daemon.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use distlock_http::Refused;
use rustix::fs::OFlags;
use tokio::net::UnixListener;

/// A bound socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Locked for as long as the daemon lives, so that two daemons do not replace each other's sockets.
    _lock: File,
}

impl Socket {
    /// Binds `path` for this user alone. Replaces the socket of a daemon that is gone, and nothing else.
    pub(crate) fn bind(path: &Path) -> Result<(Socket, UnixListener), Refused> {
        let refuse = |problem: &dyn std::fmt::Display| Refused::new(format!("{}: {problem}", path.display()));
        let beside = lock_path(path);
        // A link could make this create or lock a file of its maker's choice.
        let no_links = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(no_links).open(&beside);
        let lock = lock.map_err(|error| Refused::new(format!("{}: {error}", beside.display())))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(refuse(&"another daemon listens there")),
            Err(TryLockError::Error(error)) => return Err(refuse(&error)),
        }
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(|error| refuse(&error))?;
        let socket = Socket { path: path.to_owned(), _lock: lock };
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(|error| refuse(&error))?;
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

// Not `.lock`: the lock directory has files of that ending, one for each lock.
fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".daemon");
    name.into()
}

fn remove_stale(path: &Path) -> Result<(), Refused> {
    let refuse = |problem: &dyn std::fmt::Display| Err(Refused::new(format!("{}: {problem}", path.display())));
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return refuse(&error),
        Ok(found) => found,
    };
    if !found.file_type().is_socket() {
        return refuse(&"the file exists and is not a socket; remove it, or choose another --socket");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).or_else(|error| refuse(&error))
        }
        Err(error) => refuse(&error),
        Ok(_) => refuse(&"another program listens there"),
    }
}
