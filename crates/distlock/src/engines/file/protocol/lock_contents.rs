//! The contents of a lock's file: the fencing counter, and the holder.
//!
//! ```text
//!   0  header      64 bytes, always the same
//!  64  counter     two blocks of 64 bytes, written in turn, each with its checksum
//! 192  entry       checksum, length and JSON while the lock is held, `free` before the rest when it was released
//! ```
//! Only the holder of the lock writes; every process may read at any time. A torn write leaves a wrong checksum: the
//! older block counts, and the holder is unknown.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use crate::engines::file::wire::process;
use crate::types::owner::Record;
use crate::types::token::{AttemptId, FencingToken};

const HEADER: &[u8; BLOCK] = b"distlock 1: the fencing counter and the holder of a lock.      \n";
const BLOCK: usize = 64;
const ENTRY: usize = 3 * BLOCK;
/// Checksum and length.
const ENTRY_HEAD: usize = 23;
/// The most bytes of an entry: owner and label have at most 256 bytes each, six times that when escaped.
pub(crate) const LONGEST_ENTRY: usize = 8 * 1024;

/// What kind of contents a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentKind {
    Empty,
    Ours,
    Foreign,
}

/// The holder, as it describes itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HolderEntry {
    pub(crate) token: u64,
    attempt: String,
    /// When the lock was granted, in milliseconds of the Unix epoch.
    pub(crate) granted_ms: u64,
    pub(crate) record: Record,
}

impl HolderEntry {
    pub(crate) fn new(attempt: AttemptId, token: FencingToken, granted_ms: u64, record: &Record) -> HolderEntry {
        HolderEntry { token: token.get(), attempt: attempt.to_string(), granted_ms, record: record.clone() }
    }

    /// Writes the entry into `file`, over the previous one.
    pub(crate) fn write_at(&self, file: &File, offset: usize) -> io::Result<()> {
        let json = serde_json::to_string(self)?;
        let line = format!("{:016x} {:05} {json}\n", checksum(json.as_bytes()), json.len());
        // The rest of a longer entry stays behind this one: the length says where to stop, and truncating would take
        // longer than everything else.
        file.write_all_at(line.as_bytes(), offset as u64)
    }

    /// Reads an entry from `file`; `None` when there is none, or only a part of one.
    pub(crate) fn read_at(file: &File, offset: usize) -> io::Result<Option<HolderEntry>> {
        Ok(parse_entry(&read_at(file, offset, LONGEST_ENTRY)?))
    }
}

/// The contents of an open file, read and written in place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockContents<'a>(&'a File);

impl<'a> LockContents<'a> {
    pub(crate) fn of(file: &'a File) -> Self {
        LockContents(file)
    }

    pub(crate) fn content(self) -> io::Result<ContentKind> {
        if !self.0.metadata()?.is_file() {
            return Ok(ContentKind::Foreign);
        }
        let start = read_at(self.0, 0, BLOCK)?;
        Ok(match start.as_slice() {
            [] => ContentKind::Empty,
            start if start == HEADER => ContentKind::Ours,
            _ => ContentKind::Foreign,
        })
    }

    /// Raises the counter to at least `floor` and returns it.
    ///
    /// If the process is killed anywhere in here, the next holder reads the previous value or the new one, never a
    /// lower one.
    pub(crate) fn advance(self, floor: u64) -> io::Result<FencingToken> {
        if self.content()? == ContentKind::Empty {
            let mut start = HEADER.to_vec();
            start.extend(block(floor.max(1)));
            start.extend(block(0));
            self.0.write_all_at(&start, 0)?;
            return Ok(FencingToken::new(floor.max(1)));
        }
        let blocks = self.blocks()?;
        let last = blocks.into_iter().flatten().max().unwrap_or(0);
        let exhausted = || io::Error::other("the fencing counter is exhausted");
        let next = last.checked_add(1).ok_or_else(exhausted)?.max(floor);
        // A block that cannot be read is overwritten: `None` is less than any value.
        let older = if blocks[0] <= blocks[1] { 1 } else { 2 };
        self.0.write_all_at(&block(next), (older * BLOCK) as u64)?;
        Ok(FencingToken::new(next))
    }

    /// Returns the last token that this file knows of.
    pub(crate) fn counter(self) -> io::Result<u64> {
        if self.content()? != ContentKind::Ours {
            return Ok(0);
        }
        Ok(self.blocks()?.into_iter().flatten().max().unwrap_or(0))
    }

    /// Writes the holder's entry.
    pub(crate) fn write_holder(self, entry: &HolderEntry) -> io::Result<()> {
        entry.write_at(self.0, ENTRY)
    }

    /// Erases the entry of `attempt`, unless another program has overwritten the file meanwhile.
    pub(crate) fn erase_holder(self, attempt: AttemptId) -> io::Result<()> {
        if self.holder()?.is_some_and(|entry| entry.attempt == attempt.to_string()) {
            self.0.write_all_at(format!("{:ENTRY_HEAD$}", "free").as_bytes(), ENTRY as u64)?;
        }
        Ok(())
    }

    /// Returns the holder's entry. After a crash it stays behind, so it does not prove that the lock is held.
    pub(crate) fn holder(self) -> io::Result<Option<HolderEntry>> {
        if self.content()? != ContentKind::Ours {
            return Ok(None);
        }
        HolderEntry::read_at(self.0, ENTRY)
    }

    /// Whether the process of the holder that is written here lives: the holder has this very file open for writing.
    pub(crate) fn has_live_holder(self) -> bool {
        self.holder().is_ok_and(|entry| entry.is_some_and(|entry| process::is_alive(&entry.record.process)))
    }

    fn blocks(self) -> io::Result<[Option<u64>; 2]> {
        let bytes = read_at(self.0, BLOCK, 2 * BLOCK)?;
        let (first, second) = bytes.split_at(bytes.len().min(BLOCK));
        Ok([parse_block(first), parse_block(second)])
    }
}

/// Reads at most `length` bytes of `file` from `offset` on.
pub(crate) fn read_at(file: &File, offset: usize, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], (offset + filled) as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn block(counter: u64) -> Vec<u8> {
    let digits = format!("{counter:020}");
    format!("{digits} {:016x}{:26}\n", checksum(digits.as_bytes()), "").into_bytes()
}

fn parse_block(bytes: &[u8]) -> Option<u64> {
    let counter = std::str::from_utf8(bytes.get(..20)?).ok()?.parse().ok()?;
    (block(counter) == bytes).then_some(counter)
}

fn parse_entry(bytes: &[u8]) -> Option<HolderEntry> {
    let (head, rest) = (std::str::from_utf8(bytes.get(..ENTRY_HEAD)?).ok()?, bytes.get(ENTRY_HEAD..)?);
    let [sum, length, ""] = head.split(' ').collect::<Vec<_>>()[..] else { return None };
    let json = rest.get(..length.parse().ok()?)?;
    if u64::from_str_radix(sum, 16).ok()? != checksum(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

/// Returns the FNV-1a hash. It detects a torn write; an attacker who can write to the file needs no collision.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::engines::file::tests::Scratch;
    use crate::types::owner::OwnerId;
    use crate::types::owner::Process;

    fn open(scratch: &Scratch) -> File {
        let path = scratch.path().join("ledger");
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn entry(attempt: AttemptId, label: &str) -> HolderEntry {
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), Some(label.into()), SystemTime::now());
        HolderEntry::new(attempt, FencingToken::new(7), 1, &record)
    }

    #[test]
    fn the_counter_rises_by_one_or_to_the_floor() {
        let scratch = Scratch::new();
        let file = open(&scratch);
        let raise = |floor| LockContents::of(&file).advance(floor).unwrap().get();
        assert_eq!([raise(0), raise(0), raise(10), raise(3), raise(3)], [1, 2, 10, 11, 12]);
        assert_eq!(file.metadata().unwrap().len(), ENTRY as u64);
    }

    #[test]
    fn a_write_cut_short_at_any_byte_never_lowers_the_counter() {
        let scratch = Scratch::new();
        let file = open(&scratch);
        let contents = LockContents::of(&file);
        let mut highest = 0;
        for cut in 0..=BLOCK {
            highest = contents.advance(0).unwrap().get();
            let blocks = contents.blocks().unwrap();
            let older = if blocks[0] <= blocks[1] { 1 } else { 2 };
            file.write_all_at(&block(highest + 1)[..cut], (older * BLOCK) as u64).unwrap();
            let next = contents.advance(0).unwrap().get();
            assert!(next > highest, "{cut}: {next} after {highest}");
            highest = next;
        }
        assert!(highest >= BLOCK as u64);
    }

    #[test]
    fn an_exhausted_counter_is_an_error_and_never_wraps() {
        let scratch = Scratch::new();
        let file = open(&scratch);
        assert_eq!(LockContents::of(&file).advance(u64::MAX).unwrap().get(), u64::MAX);
        assert!(LockContents::of(&file).advance(5).unwrap_err().to_string().contains("exhausted"));
    }

    #[test]
    fn an_entry_is_struck_out_only_by_its_own_attempt() {
        let scratch = Scratch::new();
        let file = open(&scratch);
        let contents = LockContents::of(&file);
        contents.advance(0).unwrap();
        let attempt = AttemptId::random();
        contents.write_holder(&entry(attempt, &"x".repeat(200))).unwrap();
        contents.write_holder(&entry(attempt, "short after long")).unwrap();
        contents.erase_holder(AttemptId::random()).unwrap();
        let found = contents.holder().unwrap().expect("still there");
        assert_eq!((found.token, found.record.label.as_deref()), (7, Some("short after long")));
        contents.erase_holder(attempt).unwrap();
        assert!(contents.holder().unwrap().is_none());
        assert_eq!(contents.advance(0).unwrap().get(), 2, "the counter stays");
    }

    #[test]
    fn a_torn_entry_is_nobody() {
        let scratch = Scratch::new();
        let file = open(&scratch);
        let contents = LockContents::of(&file);
        contents.advance(0).unwrap();
        contents.write_holder(&entry(AttemptId::random(), "label")).unwrap();
        let whole = read_at(&file, ENTRY, LONGEST_ENTRY).unwrap();
        for cut in 0..whole.len() - 1 {
            assert!(parse_entry(&whole[..cut]).is_none(), "{cut}");
        }
        for at in 0..whole.len() - 1 {
            let mut torn = whole.clone();
            torn[at] = 0;
            assert!(parse_entry(&torn).is_none(), "{at}");
        }
    }

    #[test]
    fn what_is_not_a_ledger_is_foreign() {
        let scratch = Scratch::new();
        let file = open(&scratch);
        assert_eq!(LockContents::of(&file).content().unwrap(), ContentKind::Empty);
        for foreign in [&b"d"[..], b"distlock 1", &[0; 200], &[b'x'; 64]] {
            file.set_len(0).unwrap();
            file.write_all_at(foreign, 0).unwrap();
            assert_eq!(LockContents::of(&file).content().unwrap(), ContentKind::Foreign, "{foreign:?}");
        }
        let directory = File::open(scratch.path()).unwrap();
        assert_eq!(LockContents::of(&directory).content().unwrap(), ContentKind::Foreign);
    }

    #[test]
    fn fuzz_what_others_wrote_into_the_file() {
        distlock_testkit::fuzz("file_record.txt", |input| {
            let _ = (parse_entry(input), parse_block(input));
            // With the right checksum and length, so that the JSON is parsed too.
            let framed = [format!("{:016x} {:05} ", checksum(input), input.len()).as_bytes(), input].concat();
            distlock_testkit::assert_in_proportion(input, &parse_entry(&framed));
        });
    }
}
