//! Finds the programs that tests start.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Returns the path of `program`. Panics with the install command when it is not installed: a fault test that is
/// silently skipped proves nothing.
#[track_caller]
pub fn find_program(program: &str, package: &str) -> PathBuf {
    match lookup(program) {
        Some(path) => path,
        None => panic!(
            "`{program}` is missing on this machine. Install it with `cargo xtask test tools` or by hand:\n    \
             sudo apt-get update && sudo apt-get install --no-install-recommends {package}"
        ),
    }
}

/// Returns the path of `program` in `directory`, where a package has what it does not put on the path.
#[track_caller]
pub(super) fn find_program_in(directory: &Path, program: &str, package: &str) -> PathBuf {
    let path = directory.join(program);
    if is_executable(&path) { path } else { find_program(program, package) }
}

fn lookup(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Daemons are in sbin, which is not on every user's path.
    let sbin = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    std::env::split_paths(&path).chain(sbin).map(|directory| directory.join(program)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found() {
        assert!(find_program("sh", "dash").ends_with("sh"));
    }

    #[test]
    #[should_panic(expected = "apt-get install --no-install-recommends some-package")]
    fn a_missing_program_says_how_to_install_it() {
        find_program("no-such-program-anywhere", "some-package");
    }
}
