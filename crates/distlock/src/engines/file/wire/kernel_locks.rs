//! The kernel's list of flocks, read without touching any of them.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::engines::file::error::file_error;
use crate::engines::file::wire::lock_file::FileId;
use crate::types::error::Result;

/// How often a list of several pieces is read. The kernel finds its place in the list by counting: when locks end between
/// two pieces, others are left out. One in a hundred reads was incomplete beside 200 locks that came and went.
const READS: usize = 3;

/// Larger than a piece.
const PIECE: usize = 64 * 1024;

/// The contents of `/proc/locks`.
///
/// A process in another container is not shown there, and some file systems (btrfs, overlayfs) number their devices
/// differently in `stat`: a lock that is missing here may still be held.
#[derive(Debug, Default)]
pub(crate) struct KernelLocks(Vec<Flock>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flock {
    pid: u32,
    major: u32,
    minor: u32,
    ino: u64,
}

impl KernelLocks {
    pub(crate) fn read() -> Result<KernelLocks> {
        let path = Path::new("/proc/locks");
        KernelLocks::read_by(|| read_list(path)).map_err(|error| file_error("read", path, error))
    }

    /// Reads the list with `read`, which returns it and how many pieces it had. A lock counts that any of the reads shows.
    fn read_by(mut read: impl FnMut() -> io::Result<(String, usize)>) -> io::Result<KernelLocks> {
        let mut all = KernelLocks::default();
        for _ in 0..READS {
            let (text, pieces) = read()?;
            all.0.extend(KernelLocks::parse(&text).0);
            if pieces <= 1 {
                break;
            }
        }
        all.0.sort_unstable();
        all.0.dedup();
        Ok(all)
    }

    fn parse(text: &str) -> KernelLocks {
        KernelLocks(text.lines().filter_map(flock).collect())
    }

    /// Returns the processes that hold the flock on this file; more than one when it is shared.
    pub(crate) fn pids(&self, file: FileId) -> Vec<u32> {
        self.0.iter().filter(|lock| file.is(lock.major, lock.minor, lock.ino)).map(|lock| lock.pid).collect()
    }
}

/// Returns the text of `path`, and how many pieces the kernel gave it in.
fn read_list(path: &Path) -> io::Result<(String, usize)> {
    let (mut file, mut list, mut pieces) = (File::open(path)?, Vec::new(), 0);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok((String::from_utf8_lossy(&list).into_owned(), pieces)),
            Ok(length) => {
                list.extend_from_slice(&piece[..length]);
                pieces += 1;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
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
    fn a_lock_that_one_read_of_a_long_list_leaves_out_is_found_by_the_next() {
        let line = |pid: u32| format!("1: FLOCK  ADVISORY  WRITE {pid} fe:00:{pid} 0 EOF\n");
        let found = |reads: &[(String, usize)]| {
            let mut next = reads.iter().cloned();
            let locks = KernelLocks::read_by(|| Ok(next.next().expect("not read more often"))).unwrap();
            locks.0.iter().map(|lock| lock.pid).collect::<Vec<_>>()
        };
        let long = |pids: &[u32]| (pids.iter().map(|pid| line(*pid)).collect::<String>(), 2);
        assert_eq!(found(&[long(&[1]), long(&[1, 2]), long(&[3])]), [1, 2, 3]);
        assert_eq!(found(&[(line(1), 1)]), [1], "one piece is complete");
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
