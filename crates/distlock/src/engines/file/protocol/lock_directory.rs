//! The lock directory, and where it is by default.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::types::error::{Error, ErrorKind, Result};

use crate::engines::file::error::file_error;
use crate::engines::file::wire::lock_file::{Links, LockFile};

const RUN: &str = "/run/distlock";
const TMP: &str = "/tmp";

/// Returns the directory of this user's locks, which is made if it is not there.
///
/// `DISTLOCK_LOCK_DIR` if that is set, else `/run/distlock/<uid>`, else `/tmp/distlock-<uid>` where this user may not
/// write to `/run`. Variables of the login session never matter: cron and a login shell must meet at the same locks.
/// A service with `PrivateTmp=yes` has another `/tmp`, which [`private_mount`](crate::backend::file::private_mount)
/// detects.
///
/// # Errors
/// Kind `Config` when `DISTLOCK_LOCK_DIR` is not an absolute path. Kind `Auth` when one of the other two is not a
/// directory of this user alone: another user could then remove locks. Kind `Backend`, with the [`io::Error`] as
/// source, when the directory cannot be made.
pub fn default_dir() -> Result<PathBuf> {
    choose(std::env::var_os("DISTLOCK_LOCK_DIR"), Path::new(RUN), Path::new(TMP))
}

fn choose(chosen: Option<OsString>, run: &Path, tmp: &Path) -> Result<PathBuf> {
    if let Some(dir) = chosen.filter(|dir| !dir.is_empty()).map(PathBuf::from) {
        if !dir.is_absolute() {
            let message = format!("DISTLOCK_LOCK_DIR: {} is not an absolute path", dir.display());
            return Err(Error::new(ErrorKind::Config, message));
        }
        std::fs::create_dir_all(&dir).map_err(|error| file_error("create lock directory", &dir, error))?;
        return Ok(dir);
    }
    let uid = rustix::process::geteuid().as_raw();
    let [in_run, in_tmp] = private_dirs(run, tmp, uid);
    match make(&in_run) {
        Ok(()) => return private(&in_run, uid).map(|()| in_run),
        Err(error) if is_out_of_reach(&error) => {}
        Err(error) => return Err(file_error("create lock directory", &in_run, error)),
    }
    make(&in_tmp).map_err(|error| file_error("create lock directory", &in_tmp, error))?;
    private(&in_tmp, uid).map(|()| in_tmp)
}

/// Returns the default directories of a user, which must be the user's alone.
fn private_dirs(run: &Path, tmp: &Path, uid: u32) -> [PathBuf; 2] {
    [run.join(uid.to_string()), tmp.join(format!("distlock-{uid}"))]
}

/// Whether `dir` is the default directory of this user in `/tmp`; a service may have a private `/tmp`.
pub(crate) fn is_in_tmp(dir: &Path) -> bool {
    let [_, in_tmp] = private_dirs(Path::new(RUN), Path::new(TMP), rustix::process::geteuid().as_raw());
    dir == in_tmp
}

fn make(dir: &Path) -> io::Result<()> {
    let create = || match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Only root can make the parent; for other users the package or tmpfiles.d does it. Another process may
            // have made it just now.
            let _ = dir.parent().map(|parent| DirBuilder::new().mode(0o755).create(parent));
            create()
        }
        made => made,
    }
}

fn is_out_of_reach(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
}

/// Refuses a directory that another user may have put there, or may write to.
fn private(dir: &Path, uid: u32) -> Result<()> {
    let found = std::fs::symlink_metadata(dir).map_err(|error| file_error("look at", dir, error))?;
    let problem = if !found.is_dir() {
        "is not a directory".to_owned()
    } else if found.uid() != uid {
        format!("belongs to uid {}, not to uid {uid}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("may be written to by others (mode {:03o})", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(refused("the lock directory", dir, &problem))
}

fn refused(what: &str, path: &Path, problem: &str) -> Error {
    let message = format!("{what} {} {problem}", path.display());
    Error::new(ErrorKind::Auth, message).with_help("remove it, or name another one in DISTLOCK_LOCK_DIR")
}

/// The directory with an engine's locks.
///
/// A cleaner of `/tmp` may remove it while the engine runs, and another user may then put one of their own in its
/// place. So a private directory is checked again, but only when a file is made in it: an existing file shows by
/// itself who made it.
#[derive(Debug)]
pub(crate) struct LockDirectory {
    path: PathBuf,
    /// The user whose directory it must be; `None` where it may be any user's.
    owner: Option<u32>,
}

impl LockDirectory {
    pub(crate) fn new(path: PathBuf) -> LockDirectory {
        let uid = rustix::process::geteuid().as_raw();
        let is_private = private_dirs(Path::new(RUN), Path::new(TMP), uid).contains(&path);
        LockDirectory { path, owner: is_private.then_some(uid) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file at `path` in this directory; makes both if they are not there.
    pub(crate) fn open(&self, path: &Path) -> Result<LockFile> {
        let failed = |error| file_error("create lock file", path, error);
        let file = match LockFile::open_existing(path, Links::Refuse).map_err(failed)? {
            Some(file) => file,
            None => self.create(path)?,
        };
        // A file of root is no risk: root could change every file anyway.
        match self.owner.filter(|owner| ![*owner, 0].contains(&file.owner())) {
            None => Ok(file),
            Some(uid) => {
                Err(refused("the lock file", path, &format!("belongs to uid {}, not to uid {uid}", file.owner())))
            }
        }
    }

    fn create(&self, path: &Path) -> Result<LockFile> {
        if let Some(uid) = self.owner {
            make(&self.path).map_err(|error| file_error("create lock directory", &self.path, error))?;
            private(&self.path, uid)?;
        }
        let create = || LockFile::create(path, Links::Refuse);
        let created = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).and_then(|()| create())
            }
            created => created,
        };
        created.map_err(|error| file_error("create lock file", path, error))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::engines::file::tests::Scratch;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn the_variable_wins_and_must_be_absolute() {
        let scratch = Scratch::new();
        let chosen = scratch.path().join("a/b");
        let dir = choose(Some(chosen.clone().into()), scratch.path(), scratch.path()).unwrap();
        assert!(dir == chosen && dir.is_dir());
        let error = choose(Some("locks".into()), scratch.path(), scratch.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }

    #[test]
    fn run_comes_before_tmp_and_both_are_private() {
        let scratch = Scratch::new();
        let run = scratch.path().join("run");
        let dir = choose(None, &run, scratch.path()).unwrap();
        assert_eq!(dir, run.join(uid().to_string()));
        let out_of_reach = scratch.path().join("missing/run");
        let fallback = choose(Some("".into()), &out_of_reach, scratch.path()).unwrap();
        assert_eq!(fallback, scratch.path().join(format!("distlock-{}", uid())));
        for dir in [dir, fallback] {
            assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700, "{}", dir.display());
        }
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let scratch = Scratch::new();
        let missing = scratch.path().join("missing/run");
        let dir = scratch.path().join(format!("distlock-{}", uid()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).unwrap();
        let error = choose(None, &missing, scratch.path()).unwrap_err();
        assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("mode 770"), "{error}");
    }

    #[test]
    fn a_symlink_and_a_stranger_s_directory_are_refused() {
        let scratch = Scratch::new();
        let missing = scratch.path().join("missing/run");
        let dir = scratch.path().join(format!("distlock-{}", uid()));
        symlink(scratch.path(), &dir).unwrap();
        let error = choose(None, &missing, scratch.path()).unwrap_err();
        assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("not a directory"), "{error}");
        let error = private(scratch.path(), uid() + 1).unwrap_err();
        assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("belongs to uid"), "{error}");
    }

    #[test]
    fn a_directory_that_was_taken_away_is_made_as_at_first() {
        let scratch = Scratch::new();
        let (run, moved) = (scratch.path().join("run"), scratch.path().join("moved"));
        let dir = run.join("home");
        let directory = LockDirectory { path: dir.clone(), owner: Some(uid()) };
        let [file, long] = [dir.join("a.lock"), dir.join("b.d/b.lock")];
        for path in [&file, &long, &file] {
            directory.open(path).unwrap();
            assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700, "{}", path.display());
            std::fs::remove_dir_all(&run).unwrap();
        }
        std::fs::create_dir(&run).unwrap();
        symlink(&moved, &dir).unwrap();
        assert_eq!(directory.open(&file).unwrap_err().kind(), ErrorKind::Auth, "a link to nothing");
        std::fs::create_dir(&moved).unwrap();
        assert_eq!(directory.open(&file).unwrap_err().kind(), ErrorKind::Auth, "a link to a directory");
        std::fs::remove_file(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(directory.open(&file).unwrap_err().kind(), ErrorKind::Auth, "others may write to it");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count() + std::fs::read_dir(&moved).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_somebody_else_made_is_refused_in_a_private_directory_alone() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a.lock");
        std::fs::write(&path, "").unwrap();
        // To the engine that looks as if another user had put the directory and the file there.
        let stranger = rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(uid() + 1)), None).is_ok();
        let owner = if stranger { uid() } else { uid() + 1 };
        let directory = |owner| LockDirectory { path: scratch.path().to_owned(), owner };
        let error = directory(Some(owner)).open(&path).unwrap_err();
        assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("belongs to uid"), "{error}");
        assert!(directory(None).open(&path).is_ok());
    }

    #[test]
    fn only_the_directories_that_nobody_named_are_private() {
        let [run, tmp] = private_dirs(Path::new(RUN), Path::new(TMP), uid());
        let private = [run, tmp, "/var/lib/locks".into()].map(|dir| LockDirectory::new(dir).owner);
        assert_eq!(private, [Some(uid()), Some(uid()), None]);
    }
}
