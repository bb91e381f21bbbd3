//! A directory beside a lock, in which only distlock's own files belong.

use std::fs::ReadDir;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes the directory unless it is there.
pub(crate) fn make(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match refuse_link(dir) {
            // Another process has removed it again; the caller's next call finds that out.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            found => found,
        },
        made => made,
    }
}

/// Returns what is in the directory.
pub(crate) fn read(dir: &Path) -> io::Result<ReadDir> {
    refuse_link(dir)?;
    std::fs::read_dir(dir)
}

/// Fails unless every directory on the way from `dir` to `inside` is a directory, or not there yet.
pub(crate) fn refuse_links(dir: &Path, inside: &Path) -> io::Result<()> {
    let mut folder = dir.to_owned();
    for piece in inside.parent().into_iter().flatten() {
        folder.push(piece);
        match refuse_link(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => found?,
        }
    }
    Ok(())
}

/// Refuses a link: it could lead anywhere, and files that dead processes left are removed from these directories.
fn refuse_link(dir: &Path) -> io::Result<()> {
    if dir.symlink_metadata()?.is_dir() { Ok(()) } else { Err(ErrorKind::NotADirectory.into()) }
}
