//! The tests that skipped themselves because their engine lacks a capability.
//!
//! The output of a passing test is not shown, so it appends one line `<setup>/<case>: <capability>` to the file that
//! `DISTLOCK_SKIPS` names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that names the file.
pub(super) const VARIABLE: &str = "DISTLOCK_SKIPS";

/// The file to which tests append their skips.
#[derive(Debug)]
pub(super) struct Skips(PathBuf);

impl Skips {
    /// Creates an empty file in `directory`.
    pub(super) fn begin(directory: &Path) -> std::io::Result<Self> {
        fs::create_dir_all(directory)?;
        // Tests run in their package's directory, so the path must be absolute.
        let file = std::path::absolute(directory.join("skips.txt"))?;
        fs::write(&file, "")?;
        Ok(Skips(file))
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the skipped tests, each once.
    pub(super) fn read(&self) -> BTreeSet<String> {
        fs::read_to_string(&self.0).map(|text| parse(&text)).unwrap_or_default()
    }
}

fn parse(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("skipped: "));
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retried_test_is_skipped_once() {
        let text = "skipped: file/fifo: fair\nfile/fifo: fair\n\nskipped: file/list: inspects\n";
        assert_eq!(parse(text).into_iter().collect::<Vec<_>>(), ["file/fifo: fair", "file/list: inspects"]);
    }

    #[test]
    fn an_earlier_runs_skips_are_forgotten() {
        let directory = std::env::temp_dir().join(format!("xtask-skips-{}", std::process::id()));
        let skips = Skips::begin(&directory).unwrap();
        fs::write(skips.path(), "skipped: a/b: c\n").unwrap();
        assert_eq!(skips.read().len(), 1);
        assert_eq!(Skips::begin(&directory).unwrap().read().len(), 0);
        fs::remove_dir_all(directory).unwrap();
    }
}
