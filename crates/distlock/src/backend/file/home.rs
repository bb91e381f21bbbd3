//! Where this user's locks are when nobody says otherwise.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

use super::fault::fault;

/// The directory of this user's locks, made if it is not there.
///
/// `DISTLOCK_LOCK_DIR` if that is set, else `/run/distlock/<uid>`, else `/tmp/distlock-<uid>` where `/run` is not ours to
/// write. Variables of the session never matter: cron and a login shell must meet at the same locks.
///
/// # Errors
/// Kind `Config` when `DISTLOCK_LOCK_DIR` is not an absolute path. Kind `Auth` when one of the other two is not a
/// directory of this user alone: somebody else could then take locks away. Kind `Backend`, with the [`io::Error`] as
/// source, when the directory cannot be made.
pub fn default_dir() -> Result<PathBuf> {
    choose(std::env::var_os("DISTLOCK_LOCK_DIR"), Path::new("/run/distlock"), Path::new("/tmp"))
}

fn choose(chosen: Option<OsString>, run: &Path, tmp: &Path) -> Result<PathBuf> {
    if let Some(dir) = chosen.filter(|dir| !dir.is_empty()).map(PathBuf::from) {
        if !dir.is_absolute() {
            let message = format!("DISTLOCK_LOCK_DIR: {} is not an absolute path", dir.display());
            return Err(Error::new(ErrorKind::Config, message));
        }
        std::fs::create_dir_all(&dir).map_err(|error| fault("create lock directory", &dir, error))?;
        return Ok(dir);
    }
    let uid = rustix::process::geteuid().as_raw();
    let in_run = run.join(uid.to_string());
    // Only a superuser can make the parent; for everybody else the package or tmpfiles.d does it.
    let _ = DirBuilder::new().mode(0o755).create(run);
    match make(&in_run) {
        Ok(()) => return private(in_run, uid),
        Err(error) if is_out_of_reach(&error) => {}
        Err(error) => return Err(fault("create lock directory", &in_run, error)),
    }
    let in_tmp = tmp.join(format!("distlock-{uid}"));
    make(&in_tmp).map_err(|error| fault("create lock directory", &in_tmp, error))?;
    private(in_tmp, uid)
}

fn make(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn is_out_of_reach(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
}

/// Refuses a directory that somebody else may have put there, or may write to.
fn private(dir: PathBuf, uid: u32) -> Result<PathBuf> {
    let found = std::fs::symlink_metadata(&dir).map_err(|error| fault("look at", &dir, error))?;
    let problem = if !found.is_dir() {
        "is not a directory".to_owned()
    } else if found.uid() != uid {
        format!("belongs to uid {}, not to uid {uid}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("may be written to by others (mode {:03o})", found.mode() & 0o777)
    } else {
        return Ok(dir);
    };
    let message = format!("the lock directory {} {problem}", dir.display());
    Err(Error::new(ErrorKind::Auth, message).with_help("remove it, or name another one in DISTLOCK_LOCK_DIR"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::tests::Scratch;
    use super::*;

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
        let error = private(scratch.path().to_owned(), uid() + 1).unwrap_err();
        assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("belongs to uid"), "{error}");
    }
}
