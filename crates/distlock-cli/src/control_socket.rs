//! The socket on which a background holder accepts requests.
//!
//! It is a file in a directory below the lock directory that only this user may enter; its name is the public half of
//! the token. The directory is opened and checked before use, and every file in it is reached through that descriptor:
//! no other process can replace the directory, and its path may be longer than a socket address.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use distlock::backend::file::default_dir;
use distlock::{Error, ErrorKind};
use rustix::fs::{AtFlags, Mode, OFlags};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::control_request::{ControlAnswer, ControlRequest};
use crate::hold_token::HoldToken;

/// How long a client may take to send its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait for the holder's answer: longer than an engine takes to give up on a server.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The longest line that is read.
const LONGEST_LINE: u64 = 16 * 1024;

/// A socket without a listener is removed at this age: a new socket has no listener for a moment.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// How often to retry when the directory is removed in between.
const MAX_TRIES: usize = 16;

/// A holder's socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    directory: Directory,
    name: String,
    listener: UnixListener,
}

impl ControlSocket {
    /// Listens for clients that have `token`. Removes the sockets of killed holders.
    pub(crate) fn listen(token: &HoldToken) -> Result<ControlSocket, Error> {
        let path = directory_path()?;
        let broken = |error| {
            let message = format!("cannot create the holder's socket in {}: {error}", path.display());
            Error::new(ErrorKind::Backend, message)
                .with_source(error)
                .with_help("it must be a directory that you may write to")
        };
        let name = token.socket_name();
        for _ in 0..MAX_TRIES {
            let directory = match Directory::make(&path) {
                // The last holder removed the directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                made => made.map_err(broken)?,
            };
            match UnixListener::bind(directory.inside(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(broken(error)),
                Ok(listener) => {
                    let socket = ControlSocket { directory, name, listener };
                    socket.publish().map_err(broken)?;
                    return Ok(socket);
                }
            }
        }
        Err(broken(io::ErrorKind::NotFound.into()))
    }

    fn publish(&self) -> io::Result<()> {
        std::fs::set_permissions(self.directory.inside(&self.name), PermissionsExt::from_mode(0o600))?;
        self.directory.sweep(&self.name);
        Ok(())
    }

    /// Returns the next request and the stream for its answer. Drops connections without a valid request.
    ///
    /// # Cancel safety
    /// None: an accepted connection is lost.
    pub(crate) async fn next(&self) -> io::Result<(ControlRequest, UnixStream)> {
        loop {
            let (mut stream, _) = self.listener.accept().await?;
            let line = timeout(REQUEST_LIMIT, read_line(&mut stream)).await;
            if let Some(request) = line.ok().and_then(Result::ok).and_then(|line| ControlRequest::decode(&line)) {
                return Ok((request, stream));
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.directory.remove(&self.name);
    }
}

/// Sends an answer. Errors are ignored: the client did not wait.
pub(crate) async fn answer(mut stream: UnixStream, answer: &ControlAnswer) {
    let _ = timeout(REQUEST_LIMIT, stream.write_all(answer.encode().as_bytes())).await;
}

/// Sends the request to the holder that has its token.
///
/// # Errors
/// Kind `NotHeld` when there is no such holder any more, or it says so; `Unknown` when it does not answer.
pub(crate) async fn ask(request: &ControlRequest) -> Result<Duration, Error> {
    let not_held = |why: String| Error::new(ErrorKind::NotHeld, why);
    let path = directory_path()?;
    let gone = || not_held("it is no longer held with this token".into());
    let directory = match Directory::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone()),
        opened => opened.map_err(|error| {
            Error::new(ErrorKind::Auth, format!("cannot use {}: {error}", path.display())).with_source(error)
        })?,
    };
    let name = request.token.socket_name();
    let mut stream = match UnixStream::connect(directory.inside(&name)).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            directory.remove(&name);
            return Err(not_held("its holder was killed".into()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(gone()),
        Err(error) => return Err(Error::unavailable(format!("its holder cannot be reached: {error}"))),
    };
    let talk = async {
        stream.write_all(request.encode().as_bytes()).await?;
        read_line(&mut stream).await
    };
    match timeout(ANSWER_LIMIT, talk).await {
        Err(_) => Err(Error::unknown(format!("its holder did not answer within {ANSWER_LIMIT:?}"))),
        // The holder ended before it handled this request.
        Ok(Err(_)) => Err(gone()),
        Ok(Ok(line)) => match ControlAnswer::decode(&line) {
            Some(ControlAnswer::Done(ttl)) => Ok(ttl),
            Some(ControlAnswer::NotHeld(why)) => Err(not_held(why)),
            Some(ControlAnswer::Unknown(why)) => Err(Error::unknown(why)),
            None => Err(gone()),
        },
    }
}

/// Reads up to the end of the line or of the stream.
pub(crate) async fn read_line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST_LINE)).read_line(&mut line).await?;
    Ok(line)
}

fn directory_path() -> Result<PathBuf, Error> {
    let uid = rustix::process::geteuid().as_raw();
    // An ending that lock files, queues and long names do not have.
    Ok(default_dir()?.join(format!("{uid}.holders")))
}

/// The open directory of this user's sockets.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl Directory {
    fn make(path: &Path) -> io::Result<Directory> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Directory::open(path),
        }
    }

    /// Opens the directory, and refuses one that other users may enter: they could answer in a holder's place.
    fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&descriptor)?;
        if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            let problem = "the directory belongs to another user, or other users may enter it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        Ok(Directory { path: path.to_owned(), descriptor })
    }

    fn inside(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.descriptor.as_raw_fd()))
    }

    /// Removes a socket, and the directory with the last one.
    fn remove(&self, name: &str) {
        // A missing socket is fine, and a directory with other sockets stays.
        let _ = rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty());
        let _ = std::fs::remove_dir(&self.path);
    }

    /// Removes the sockets without a listener, except `own`.
    fn sweep(&self, own: &str) {
        let Ok(entries) = std::fs::read_dir(self.inside("")) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_name() != own) {
            let changed = entry.metadata().and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            let is_old = changed.elapsed().is_ok_and(|age| age >= STALE_AFTER);
            let refused = || {
                let tried = std::os::unix::net::UnixStream::connect(entry.path());
                tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            };
            if is_old && refused() {
                let _ = rustix::fs::unlinkat(&self.descriptor, entry.file_name(), AtFlags::empty());
            }
        }
    }
}
