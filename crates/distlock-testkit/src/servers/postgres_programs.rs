//! The programs of a PostgreSQL server, which are not on the path.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::program::find_program_in;

/// The variable with the directory of another version's programs.
const VARIABLE: &str = "DISTLOCK_POSTGRES_PROGRAMS";
/// Where Debian has them.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const PACKAGE: &str = "postgresql-15";

/// Returns the path of a program of the server.
#[track_caller]
pub(super) fn find(program: &str) -> PathBuf {
    match std::env::var_os(VARIABLE) {
        // Never the machine's own instead: the tests would pass on the wrong version.
        Some(directory) => {
            let path = Path::new(&directory).join(program);
            assert!(path.exists(), "{VARIABLE}: there is no {}", path.display());
            path
        }
        None => find_program_in(Path::new(PROGRAMS), program, PACKAGE),
    }
}

/// Returns the server's major version: one cannot use the data of another.
pub(super) fn major_version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let output = Command::new(find("postgres")).arg("--version").output().expect("postgres runs");
        let text = String::from_utf8_lossy(&output.stdout);
        major_of(&text).unwrap_or_else(|| panic!("no version of PostgreSQL: {text:?}"))
    })
}

/// Returns the major version in `postgres (PostgreSQL) 15.14 (Debian …)`.
fn major_of(text: &str) -> Option<u32> {
    let number = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_releases_and_from_betas() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 19beta1"), Some(19));
        assert_eq!(major_of("postgres"), None);
    }
}
