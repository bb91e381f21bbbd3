//! The engine on real files and with real second processes.

use std::path::{Path, PathBuf};

use crate::token::AttemptId;

/// A directory of its own for a test, removed at the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Scratch {
        let dir = std::env::temp_dir().join(format!("distlock-test-{}", AttemptId::random()));
        std::fs::create_dir(&dir).expect("a scratch directory");
        Scratch(dir)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
