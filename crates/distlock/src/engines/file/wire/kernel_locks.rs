//! The kernel's list of flocks, read without touching any of them.

use std::path::Path;

use crate::engines::file::error::file_error;
use crate::engines::file::wire::lock_file::FileId;
use crate::types::error::Result;

/// The contents of `/proc/locks`.
///
/// A process in another container is not shown there, and some file systems (btrfs, overlayfs) number their devices
/// differently in `stat`: a lock that is missing here may still be held.
#[derive(Debug, Default)]
pub(crate) struct KernelLocks(Vec<Flock>);

#[derive(Debug, PartialEq, Eq)]
struct Flock {
    pid: u32,
    major: u32,
    minor: u32,
    ino: u64,
}

impl KernelLocks {
    pub(crate) fn read() -> Result<KernelLocks> {
        let path = Path::new("/proc/locks");
        let text = std::fs::read_to_string(path).map_err(|error| file_error("read", path, error))?;
        Ok(KernelLocks::parse(&text))
    }

    fn parse(text: &str) -> KernelLocks {
        KernelLocks(text.lines().filter_map(flock).collect())
    }

    /// Returns the processes that hold the flock on this file; more than one when it is shared.
    pub(crate) fn pids(&self, file: FileId) -> Vec<u32> {
        self.0.iter().filter(|lock| file.is(lock.major, lock.minor, lock.ino)).map(|lock| lock.pid).collect()
    }
}

/// Parses a line such as `3: FLOCK  ADVISORY  WRITE 8758 fe:00:10133507 0 EOF`. A waiter's line has `->` before the
/// type.
fn flock(line: &str) -> Option<Flock> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [number, "FLOCK", "ADVISORY", "READ" | "WRITE", pid, inode, "0", "EOF"] = fields[..] else { return None };
    number.strip_suffix(':')?.parse::<u64>().ok()?;
    let mut inode = inode.splitn(3, ':');
    let mut hex = || inode.next().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let (major, minor) = (hex()?, hex()?);
    Some(Flock { pid: pid.parse().ok()?, major, minor, ino: inode.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_granted_flocks_are_taken() {
        let locks = KernelLocks::parse(
            "1: FLOCK  ADVISORY  WRITE 9235 fe:00:5333206 0 EOF\n\
             1: -> FLOCK  ADVISORY  WRITE 9999 fe:00:5333206 0 EOF\n\
             2: POSIX  ADVISORY  WRITE 8758 fe:00:5333206 0 EOF\n\
             3: OFDLCK ADVISORY  WRITE -1 fe:00:5333206 0 EOF\n\
             4: FLOCK  ADVISORY  READ 17 103:1f:7 0 EOF\n",
        );
        let first = Flock { pid: 9235, major: 0xfe, minor: 0, ino: 5_333_206 };
        assert_eq!(locks.0, [first, Flock { pid: 17, major: 0x103, minor: 0x1f, ino: 7 }]);
    }

    #[test]
    fn a_line_that_is_not_exactly_as_expected_is_left_out() {
        for line in [
            "",
            "1: FLOCK",
            "x FLOCK ADVISORY WRITE 1 fe:00:5 0 EOF",
            "1: FLOCK ADVISORY WRITE -1 fe:00:5 0 EOF",
            "1: FLOCK ADVISORY WRITE 1 fe:00 0 EOF",
            "1: FLOCK ADVISORY WRITE 1 fe:zz:5 0 EOF",
            "1: FLOCK ADVISORY WRITE 1 fe:00:5:6 0 EOF",
            "1: FLOCK ADVISORY WRITE 1 fe:00:5 1 EOF",
            "1: FLOCK ADVISORY WRITE 1 fe:00:5 0 EOF more",
            "1: FLOCK MANDATORY WRITE 1 fe:00:5 0 EOF",
        ] {
            assert_eq!(flock(line), None, "{line}");
        }
    }

    #[test]
    fn fuzz_the_kernels_table() {
        distlock_testkit::fuzz("texts.txt", |input| {
            let text = String::from_utf8_lossy(input);
            assert!(KernelLocks::parse(&text).0.len() <= text.lines().count());
        });
    }
}
