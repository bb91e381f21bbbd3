//! What the lock protects: a file with the task that held it last, which all workers of a measurement read and write.
//!
//! A task that takes the lock again before any other gets it has not handed it over.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The variable with the file's path.
pub(crate) const VARIABLE: &str = "DISTLOCK_PEERS_FILE";

/// Returns the file of this driver.
pub(crate) fn path() -> PathBuf {
    std::env::temp_dir().join(format!("distlock-peers-{}", std::process::id()))
}

/// The open file.
#[derive(Clone)]
pub(crate) struct LastHolder(Arc<File>);

impl LastHolder {
    /// Opens the file that the driver named.
    pub(crate) fn open() -> LastHolder {
        let path: PathBuf = std::env::var_os(VARIABLE).expect("the driver sets it").into();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        LastHolder(Arc::new(file.expect("a file that can be written")))
    }

    /// Writes the holder; returns whether it was another one before. Call this while the lock is held.
    pub(crate) fn change(&self, holder: u64) -> bool {
        let mut last = [0; 8];
        let length = self.0.read_at(&mut last, 0).expect("read");
        self.0.write_at(&holder.to_le_bytes(), 0).expect("written");
        length == 8 && u64::from_le_bytes(last) != holder
    }
}

/// Returns the number of a task of this process.
pub(crate) fn holder(task: usize) -> u64 {
    u64::from(std::process::id()) << 20 | task as u64
}
