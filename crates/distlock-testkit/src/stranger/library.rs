//! The libraries, their sources, and how to start a program that uses them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::servers::{built, find_program, tied};

/// The wheels on PyPI; the first needs the second on Python before 3.11.3.
const WHEELS: [&str; 2] = ["redis==5.2.1", "async-timeout==5.0.1"];
/// The packages on npm.
const PACKAGES: [&str; 2] = ["redlock@4.2.0", "ioredis@5.4.1"];

/// A lock library of another project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// `redis.lock.Lock` of Python.
    RedisPy,
    /// `redlock` of Node.js, on one server, with `ioredis`.
    Redlock,
}

impl Library {
    /// Returns the program; the server's host and port are its arguments.
    #[track_caller]
    pub(super) fn command(self) -> Command {
        match self {
            Library::RedisPy => {
                let mut command = tied(&find_program("python3", "python3"));
                command.env("PYTHONPATH", parent(&built("redis-py-5.2.1", "redis/lock.py", fetch_wheels)));
                command.args(["-c", include_str!("redis_py.py")]);
                command
            }
            Library::Redlock => {
                let mut command = tied(&find_program("node", "nodejs"));
                let package = built("redlock-4.2.0", "node_modules/redlock/package.json", fetch_packages);
                command.env("NODE_PATH", parent(&package));
                command.args(["-e", include_str!("redlock.js"), "--"]);
                command
            }
        }
    }
}

/// Returns the directory that contains the package of `file`.
fn parent(file: &Path) -> PathBuf {
    file.ancestors().nth(2).expect("a file in a package in a directory").to_owned()
}

fn fetch_wheels(directory: &Path) {
    find_program("pip3", "python3-pip");
    let mut pip = Command::new(find_program("python3", "python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"]);
    pip.args(["--no-deps", "--only-binary", ":all:"]).args(WHEELS).arg("--target").arg(directory);
    fetch("redis-py", pip);
}

fn fetch_packages(directory: &Path) {
    let mut npm = Command::new(find_program("npm", "npm"));
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts"]).args(PACKAGES);
    npm.arg("--prefix").arg(directory);
    fetch("node-redlock", npm);
}

fn fetch(what: &str, mut command: Command) {
    let output = command.output().expect("a program that was found runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what} could not be fetched; by hand:\n    {command:?}\n{said}");
}
