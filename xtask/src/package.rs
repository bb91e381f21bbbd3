//! `cargo xtask package`: what is published, as crates, as a Debian package and as files of a release.

mod crates;
mod deb;
mod depends;
mod files;
mod unpacked;

use std::path::{Path, PathBuf};

use crate::cmd::Cmd;
use crate::test;

/// Checks and builds the packages of the published crates. Returns whether all of them are good.
pub(crate) fn check() -> bool {
    crates::check()
}

/// Builds the Debian package of the program and prints its path. Returns whether that went well.
///
/// `program` is a built program to pack; without one it is built in release mode. `into` is the directory for the package.
pub(crate) fn deb(program: Option<&str>, into: Option<&str>) -> bool {
    with_program(program, into, "debian", deb::build)
}

/// Writes the files of a release: the program with its manual pages, completions and units in one archive, the Debian
/// package, and their checksums.
pub(crate) fn release(program: Option<&str>, into: Option<&str>) -> bool {
    with_program(program, into, "files", files::release)
}

fn with_program(
    program: Option<&str>,
    into: Option<&str>,
    name: &str,
    make: fn(&Path, &Path) -> std::io::Result<PathBuf>,
) -> bool {
    let into = into.map_or_else(|| test::target_directory().join(name), PathBuf::from);
    let program = match program {
        Some(program) => PathBuf::from(program),
        None if Cmd::cargo(&["build", "--release", "-p", "distlock-cli"]).succeeds() => {
            test::target_directory().join("release/distlock")
        }
        None => return false,
    };
    match make(&program, &into) {
        Ok(made) => {
            println!("{}", made.display());
            true
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            false
        }
    }
}
