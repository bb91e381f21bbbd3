//! Examines a directory of locks.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::protocol::lock_directory::is_in_tmp;
use super::wire::lock_file::NFS;
use super::wire::mount::private_mount;
use crate::types::finding::Finding;

const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// How to get a directory that every process of the machine shares.
const ONE_FOR_ALL: &str = "have /run/distlock made at boot (deploy/tmpfiles.d/distlock.conf), or set DISTLOCK_LOCK_DIR to a \
                           directory that no service has a private one of";

/// Returns the findings about locks in `dir`.
pub(crate) fn examine(dir: &Path) -> Vec<Finding> {
    let place = dir.display().to_string();
    let private = private_mount(dir);
    let reach = if private.is_some() { "this mount namespace" } else { "this machine" };
    let mut findings = vec![examine_directory(dir, &place, reach)];
    if let Some(from) = private {
        let found =
            format!("other processes have another directory of that name; here it is mounted from {}", from.display());
        let why = "a process outside of this mount namespace takes the same lock at the same time";
        findings.push(Finding::not_safe("mount", &place, found).because(why).fix(ONE_FOR_ALL));
    } else if is_in_tmp(dir) {
        let found = "locks are in /tmp, of which services with PrivateTmp=yes have another one";
        let why = "such a service and other processes of this user take the same lock at the same time";
        findings.push(Finding::note("mount", &place, found).because(why).fix(ONE_FOR_ALL));
    }
    findings
}

fn examine_directory(dir: &Path, place: &str, reach: &str) -> Finding {
    let Ok(metadata) = std::fs::metadata(dir) else {
        return Finding::fine("directory", place, "not there yet; it is made for the first lock");
    };
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between machines")]
    let is_on_nfs = rustix::fs::statfs(dir).is_ok_and(|system| system.f_type as u64 == NFS);
    if is_on_nfs {
        return Finding::warning("directory", place, "it is on NFS")
            .because("a lock may be lost without notice when the NFS server restarts")
            .fix("use a local directory, or a server: redis:// or etcd://");
    }
    let mode = metadata.permissions().mode();
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Finding::warning(
            "directory",
            place,
            format!("every user may remove files from it (mode {:o})", mode & 0o7777),
        )
        .because("a user who removes lock files breaks the order of waiters, and may keep others from locking")
        .fix("chmod +t, or a directory of the users who lock");
    }
    Finding::fine("directory", place, format!("locks reach the processes of {reach}"))
}
