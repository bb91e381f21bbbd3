//! Prevents Debian packages from starting their daemons during installation.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Debian's maintainer scripts ask this program whether they may start a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Exit code 101 means "forbidden by policy".
const FORBID: &str =
    "#!/bin/sh\n# Placed by cargo xtask while it installs packages, and removed afterwards.\nexit 101\n";

/// While it lives, packages start no services. Dropping it restores the previous state.
///
/// A policy that already exists on the machine is the administrator's decision and stays.
#[derive(Debug)]
pub(super) struct ServicesStayDown {
    is_ours: bool,
}

impl ServicesStayDown {
    /// Forbids services from now on.
    pub(super) fn begin() -> Self {
        let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY);
        let is_ours = match created {
            Ok(mut file) => file.write_all(FORBID.as_bytes()).is_ok(),
            // An earlier run that was killed may have left its policy behind.
            Err(_) => is_left_over(Path::new(POLICY)),
        };
        ServicesStayDown { is_ours }
    }
}

impl Drop for ServicesStayDown {
    fn drop(&mut self) {
        if self.is_ours && fs::remove_file(POLICY).is_err() {
            eprintln!("{POLICY} could not be removed; it keeps packages from starting their services");
        }
    }
}

fn is_left_over(policy: &Path) -> bool {
    fs::read_to_string(policy).is_ok_and(|text| text == FORBID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_administrators_policy_is_kept() {
        let file = std::env::temp_dir().join(format!("xtask-policy-{}", std::process::id()));
        fs::write(&file, "#!/bin/sh\nexit 0\n").unwrap();
        assert!(!is_left_over(&file));
        fs::write(&file, FORBID).unwrap();
        assert!(is_left_over(&file));
        fs::remove_file(&file).unwrap();
        assert!(!is_left_over(&file));
    }
}
