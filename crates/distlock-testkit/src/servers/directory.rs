//! Temporary directories that live as long as a test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Short, since the path of a unix socket has at most 107 bytes.
const PREFIX: &str = "dlkit-";

/// Only older directories are swept: the owner of a younger one may be between creating and locking it.
const SWEPT_AFTER: Duration = Duration::from_secs(60);

/// An empty directory with one owner; dropping it removes it with its contents.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Locked, which shows other test processes that the owner is alive.
    _alive: File,
}

impl Directory {
    /// Creates a directory in the machine's directory for temporary files.
    pub fn new() -> Directory {
        static SWEEP: Once = Once::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(|| sweep(&std::env::temp_dir()));
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Directory { _alive: locked(&path), path },
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{} cannot be made: {error}", path.display()),
            }
        }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it and returns the file's path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let file = self.path.join(name);
        fs::write(&file, content).unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
        file
    }
}

impl Default for Directory {
    fn default() -> Self {
        Directory::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A server that is being killed may still write; a later run sweeps files that cannot be removed now.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn locked(path: &Path) -> File {
    let file = File::open(path).expect("the directory just made");
    file.try_lock().expect("no other process knows the directory yet");
    file
}

/// Removes the directories of test processes that were killed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if !is_ours || age.is_none_or(|age| age < SWEPT_AFTER) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        if file.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_removed_with_its_owner_and_its_contents() {
        let directory = Directory::new();
        let file = directory.write("file", "text");
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn only_old_directories_without_an_owner_are_swept() {
        let parent = Directory::new();
        let long_ago = std::time::SystemTime::now() - SWEPT_AFTER * 2;
        let make = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            File::open(&path).unwrap().set_modified(long_ago).unwrap();
            path
        };
        let (dead, alive, foreign) = (make("dlkit-1-0"), make("dlkit-2-0"), make("other"));
        let _owner = locked(&alive);
        let fresh = parent.path().join("dlkit-3-0");
        fs::create_dir(&fresh).unwrap();
        sweep(parent.path());
        let left = [&dead, &alive, &foreign, &fresh].map(|path| path.exists());
        assert_eq!(left, [false, true, true, true]);
    }
}
