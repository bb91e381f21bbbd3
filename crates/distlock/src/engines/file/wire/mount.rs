//! Whether a directory is the same one for every process of this machine, or lies in a mount that only some of them
//! have.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The prefix of the directories that systemd mounts over `/tmp` and `/var/tmp` for a unit with `PrivateTmp=yes`.
const OF_SYSTEMD: &str = "systemd-private-";

/// Returns from where the file system of `path` is mounted, if other processes of this machine have another one
/// there: they then take the same lock at the same time. `None` when there is no sign of that.
///
/// The mounts of this process are compared with those of process 1. Where those may not be read, only a directory that
/// systemd made for a unit is recognised. `path` need not be there yet.
#[must_use]
pub fn private_mount(path: &Path) -> Option<PathBuf> {
    let path = real(path)?;
    let ours = place_in(&std::fs::read("/proc/self/mountinfo").ok()?, &path)?;
    let differs = match std::fs::read("/proc/1/mountinfo").ok().and_then(|mounts| place_in(&mounts, &path)) {
        Some(theirs) => theirs.identity() != ours.identity(),
        None => ours.is_of_systemd(),
    };
    differs.then_some(ours.from)
}

/// Resolves the existing part of `path`; the rest is made on the same mount.
fn real(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|dir| Some((dir, dir.canonicalize().ok()?)));
    let (dir, real) = there?;
    Some(real.join(path.strip_prefix(dir).ok()?))
}

/// Where a path is, in terms that mean the same to all processes.
#[derive(Debug, PartialEq, Eq)]
struct MountedPath {
    /// Major and minor number of the file system.
    device: Vec<u8>,
    /// The directory of the file system that is mounted.
    from: PathBuf,
    /// The path from there.
    rest: PathBuf,
}

impl MountedPath {
    fn identity(&self) -> (&[u8], PathBuf) {
        (&self.device, self.from.join(&self.rest))
    }

    fn is_of_systemd(&self) -> bool {
        self.from.iter().any(|part| part.as_bytes().starts_with(OF_SYSTEMD.as_bytes()))
    }
}

/// Returns where `path` is: of several mounts above it, the last one covers the others.
fn place_in(mountinfo: &[u8], path: &Path) -> Option<MountedPath> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(|line| place_on(line, path)).next_back()
}

/// Parses a line such as `36 35 98:0 /from /mount rw,noatime master:1 - ext3 /dev/root rw`; `None` when `path` is not
/// below that mount.
fn place_on(line: &[u8], path: &Path) -> Option<MountedPath> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let (device, from, point) = (fields.next()?, fields.next()?, fields.next()?);
    let rest = path.strip_prefix(unescaped(point)).ok()?.to_owned();
    Some(MountedPath { device: device.to_owned(), from: unescaped(from), rest })
}

/// Resolves the `\040` that the kernel writes for a space, and other escapes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &rest[4..] } else { tail };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                           30 22 0:27 / /run rw,nosuid shared:2 - tmpfs tmpfs rw\n\
                           31 22 254:16 /my\\040data /srv/my\\040data rw - ext4 /dev/vdb rw\n";

    fn with(more: &[u8]) -> Vec<u8> {
        [FIRST, more].concat()
    }

    fn identity(mounts: &[u8], path: &str) -> (Vec<u8>, PathBuf) {
        let place = place_in(mounts, Path::new(path)).unwrap();
        (place.device.clone(), place.identity().1)
    }

    #[test]
    fn a_path_is_on_the_last_mount_that_covers_it() {
        assert_eq!(identity(FIRST, "/tmp/x"), (b"254:0".to_vec(), "/tmp/x".into()));
        assert_eq!(identity(FIRST, "/run/distlock/7"), (b"0:27".to_vec(), "/distlock/7".into()));
        assert_eq!(identity(FIRST, "/runner"), (b"254:0".to_vec(), "/runner".into()));
        assert_eq!(identity(FIRST, "/srv/my data/x"), (b"254:16".to_vec(), "/my data/x".into()));
        let covered = with(b"40 22 0:40 / /srv rw - tmpfs tmpfs rw\n");
        assert_eq!(identity(&covered, "/srv/my data/x"), (b"0:40".to_vec(), "/my data/x".into()));
    }

    /// The same directory by another way is no other one; that of a unit with `PrivateTmp=yes` is, also where it is a
    /// fresh file system.
    #[test]
    fn what_is_mounted_elsewhere_is_told_from_what_is_mounted_again() {
        let there = identity(FIRST, "/tmp/distlock-7");
        let again = with(b"41 22 254:0 /tmp /tmp rw - ext4 /dev/vda rw\n");
        assert_eq!(identity(&again, "/tmp/distlock-7"), there);
        let unit = with(b"42 22 254:0 /tmp/systemd-private-1f-job.service-x/tmp /tmp rw - ext4 /dev/vda rw\n");
        assert_ne!(identity(&unit, "/tmp/distlock-7"), there);
        assert!(place_in(&unit, Path::new("/tmp/distlock-7")).unwrap().is_of_systemd());
        assert_eq!(identity(&unit, "/run/distlock/7"), identity(FIRST, "/run/distlock/7"));
        let fresh = with(b"43 22 0:50 / /tmp rw - tmpfs tmpfs rw\n");
        assert_ne!(identity(&fresh, "/tmp/distlock-7"), there);
    }

    #[test]
    fn fuzz_the_kernels_mounts() {
        distlock_testkit::fuzz("texts.txt", |input| {
            let place = place_in(input, Path::new("/tmp/distlock-7"));
            distlock_testkit::assert_in_proportion(input, &place);
        });
    }
}
