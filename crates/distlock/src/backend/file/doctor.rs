//! Looks at a directory of locks.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::lock_file::NFS;
use crate::finding::Finding;

const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// What there is to say about locks in `dir`.
pub(crate) fn examine(dir: &Path) -> Finding {
    let place = dir.display().to_string();
    let Ok(metadata) = std::fs::metadata(dir) else {
        return Finding::fine("directory", &place, "not there yet; it is made for the first lock");
    };
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between machines")]
    let is_on_nfs = rustix::fs::statfs(dir).is_ok_and(|system| system.f_type as u64 == NFS);
    if is_on_nfs {
        return Finding::warning("directory", &place, "it is on NFS")
            .because("a lock may be lost without notice when the NFS server restarts")
            .fix("use a local directory, or a server: redis:// or etcd://");
    }
    let mode = metadata.permissions().mode();
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Finding::warning(
            "directory",
            &place,
            format!("everybody may remove files from it (mode {:o})", mode & 0o7777),
        )
        .because("whoever removes lock files breaks the order of waiters, and may keep others from locking")
        .fix("chmod +t, or a directory of the users who lock");
    }
    Finding::fine("directory", &place, "locks reach the processes of this machine")
}
