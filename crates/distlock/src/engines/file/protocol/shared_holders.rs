//! Who holds a lock beside others: readers, and those who have a slot of a semaphore.
//!
//! A directory beside the lock:
//! - `<number>`: a fencing token that was given out. A reader's file is locked as long as it is inside, and says who it
//!   is. The highest number is the counter, so it stays until one who has the lock alone has counted on from it.
//! - `slot-<number>-of-<slots>`: locked by whoever has the slot, and says who that is.
//!
//! Nobody makes a file here without sharing the lock's own file, and nobody clears the directory away without having
//! that file alone. The kernel frees what a killed process had locked; what it wrote then counts for nothing.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engines::file::protocol::lock_contents::HolderEntry;
use crate::engines::file::protocol::own_directory;
use crate::engines::file::wire::lock_file::{CHANGED_FILE_TRIES, Links, LockFile, Obstacle};
use crate::types::mode::Mode;
use crate::types::token::FencingToken;

/// How many numbers of those who are gone are looked for, each time a new one is given out.
const SWEPT_AT_ONCE: usize = 64;

/// What was in the directory when it was read.
#[derive(Debug)]
pub(crate) struct SharedHolders {
    dir: PathBuf,
    tokens: Vec<u64>,
    slots: Vec<SlotName>,
}

/// One who is inside, or was when its process ended.
#[derive(Debug)]
pub(crate) struct SharedHolder {
    pub(crate) entry: HolderEntry,
    pub(crate) is_live: bool,
}

impl SharedHolders {
    /// Where there is nothing, or nothing that we may look at, nobody is inside.
    pub(crate) fn read(dir: &Path) -> io::Result<SharedHolders> {
        let mut holders = SharedHolders { dir: dir.to_owned(), tokens: Vec::new(), slots: Vec::new() };
        let entries = match own_directory::read(dir) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                return Ok(holders);
            }
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(slot) = SlotName::parse(name) {
                holders.slots.push(slot);
            } else if let Some(number) = name.parse().ok().filter(|number| token_name(*number) == name) {
                holders.tokens.push(number);
            }
        }
        holders.tokens.sort_unstable();
        Ok(holders)
    }

    /// The least token that may follow those that were given out here.
    pub(crate) fn floor(&self) -> u64 {
        self.tokens.last().map_or(0, |last| last.saturating_add(1))
    }

    /// Whether somebody is inside.
    pub(crate) fn is_occupied(&self) -> io::Result<bool> {
        for path in self.paths() {
            if is_locked(&path)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How somebody inside uses the lock that does not agree with `mode`.
    pub(crate) fn disagreeing(&self, mode: Mode) -> io::Result<Option<Mode>> {
        for slot in self.slots.iter().filter(|slot| !mode.agrees_with(slot.mode())) {
            if is_locked(&self.dir.join(slot.to_string()))? {
                return Ok(Some(slot.mode()));
            }
        }
        for number in self.tokens.iter().filter(|_| !mode.agrees_with(Mode::Shared)) {
            if is_locked(&self.dir.join(token_name(*number)))? {
                return Ok(Some(Mode::Shared));
            }
        }
        Ok(None)
    }

    /// Those who are inside, and those who died there, the one that came first first.
    pub(crate) fn list(&self) -> io::Result<Vec<SharedHolder>> {
        let mut list = Vec::new();
        for path in self.paths() {
            let Some(file) = LockFile::open_to_read(&path, Links::Refuse)? else { continue };
            if let Some(entry) = HolderEntry::read_at(file.contents(), 0)? {
                list.push(SharedHolder { entry, is_live: !file.probe()? });
            }
        }
        list.sort_by_key(|occupant| occupant.entry.token);
        Ok(list)
    }

    /// Removes everything, for one who has the lock alone and has counted on from the highest number.
    pub(crate) fn clear(&self) {
        if !self.tokens.is_empty() || !self.slots.is_empty() {
            // What cannot be removed is found again by the next one.
            self.paths().for_each(|path| drop(std::fs::remove_file(path)));
            let _ = std::fs::remove_dir(&self.dir);
        }
    }

    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let names = self.slots.iter().map(SlotName::to_string).chain(self.tokens.iter().copied().map(token_name));
        names.map(|name| self.dir.join(name))
    }
}

/// A fencing token of one who is not alone. Dropping it takes its owner's name away.
#[derive(Debug)]
pub(crate) struct TokenFile {
    dir: PathBuf,
    value: u64,
    file: LockFile,
    /// Somebody else goes on under this name.
    is_inherited: AtomicBool,
}

impl TokenFile {
    /// A number of nobody else, at least `floor` and higher than all before. Locked when it is to show that somebody
    /// is inside.
    ///
    /// Nothing is locked while it is chosen: whoever makes the file has the number.
    pub(crate) fn take(dir: &Path, floor: u64, locked: bool) -> io::Result<TokenFile> {
        for _ in 0..CHANGED_FILE_TRIES {
            own_directory::make(dir)?;
            let holders = SharedHolders::read(dir)?;
            let value = floor.max(holders.floor()).max(1);
            if value == u64::MAX {
                return Err(io::Error::other("the fencing counter is exhausted"));
            }
            let path = dir.join(token_name(value));
            let file = match LockFile::create_new(&path) {
                // Somebody else was faster, or the last one who was here alone cleared the directory away.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => continue,
                made => made?,
            };
            // Before it was locked it looked dead, and somebody may have removed it, or be just looking at it.
            if locked && !(file.try_lock()? && file.is_linked()) {
                let _ = std::fs::remove_file(path);
                continue;
            }
            holders.sweep();
            return Ok(TokenFile { dir: dir.to_owned(), value, file, is_inherited: AtomicBool::new(false) });
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(self.value)
    }

    /// Says who is inside.
    pub(crate) fn write_holder(&self, entry: &HolderEntry) -> io::Result<()> {
        entry.write_at(self.file.contents(), 0)
    }

    /// Whether those who want the lock alone can see it.
    pub(crate) fn is_in_place(&self) -> bool {
        self.file.is_at(&self.path()).unwrap_or(true)
    }

    /// Leaves the name there when this is dropped: a child has the lock then.
    pub(crate) fn leave_to_child(&self) {
        self.is_inherited.store(true, Ordering::Relaxed);
    }

    fn path(&self) -> PathBuf {
        self.dir.join(token_name(self.value))
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if self.is_inherited.load(Ordering::Relaxed) {
            return;
        }
        // Only one that has a higher one behind it may go: the highest is the counter.
        if SharedHolders::read(&self.dir).is_ok_and(|holders| holders.floor() > self.value.saturating_add(1)) {
            let _ = std::fs::remove_file(self.path());
        } else {
            let _ = self.file.contents().set_len(0);
        }
    }
}

impl SharedHolders {
    /// Removes the numbers of those who are gone. To be called by one who has a higher one.
    fn sweep(&self) {
        let paths = self.tokens.iter().take(SWEPT_AT_ONCE).map(|number| self.dir.join(token_name(*number)));
        paths.filter(|path| is_locked(path).is_ok_and(|locked| !locked)).for_each(|path| {
            let _ = std::fs::remove_file(path);
        });
    }
}

/// A slot of a semaphore that is ours. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct SlotFile {
    path: PathBuf,
    number: u32,
    file: LockFile,
}

impl SlotFile {
    /// Takes the lowest of `of` slots that is free. The obstacle is `Sharers` when a slot is kept by nothing but a look at
    /// it: no holder shares a slot otherwise.
    pub(crate) fn take(dir: &Path, of: u32) -> io::Result<Result<SlotFile, Obstacle>> {
        let mut obstacle = Obstacle::Holder;
        for number in 0..of {
            match SlotFile::take_one(dir, SlotName { number, of })? {
                Ok(slot) => return Ok(Ok(slot)),
                Err(Obstacle::Sharers) => obstacle = Obstacle::Sharers,
                Err(Obstacle::Holder) => {}
            }
        }
        Ok(Err(obstacle))
    }

    fn take_one(dir: &Path, name: SlotName) -> io::Result<Result<SlotFile, Obstacle>> {
        let path = dir.join(name.to_string());
        for _ in 0..CHANGED_FILE_TRIES {
            let file = match LockFile::open(&path, Links::Refuse) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    own_directory::make(dir)?;
                    continue;
                }
                opened => opened?,
            };
            if let Some(obstacle) = file.try_alone()? {
                return Ok(Err(obstacle));
            }
            // Whoever had it removed the file as it left, and another may have made a new one.
            if file.is_at(&path)? {
                return Ok(Ok(SlotFile { path, number: name.number, file }));
            }
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Says who has it.
    pub(crate) fn write_holder(&self, entry: &HolderEntry) -> io::Result<()> {
        entry.write_at(self.file.contents(), 0)
    }

    /// Whether it still keeps others out.
    pub(crate) fn is_in_place(&self) -> io::Result<bool> {
        self.file.is_at(&self.path)
    }

    pub(crate) fn file(&self) -> &LockFile {
        &self.file
    }
}

impl Drop for SlotFile {
    fn drop(&mut self) {
        // Removed before it is unlocked: who gets the lock then finds that the file is no slot any more. A child that
        // has the descriptor goes on under our name.
        if !self.file.is_inherited() && self.file.is_at(&self.path).unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotName {
    number: u32,
    of: u32,
}

impl SlotName {
    fn mode(&self) -> Mode {
        Mode::Slot { of: self.of }
    }

    fn parse(name: &str) -> Option<SlotName> {
        let (number, of) = name.strip_prefix("slot-")?.split_once("-of-")?;
        let slot = SlotName { number: number.parse().ok()?, of: of.parse().ok()? };
        (slot.to_string() == name).then_some(slot)
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot-{}-of-{}", self.number, self.of)
    }
}

fn token_name(number: u64) -> String {
    format!("{number:020}")
}

fn is_locked(path: &Path) -> io::Result<bool> {
    LockFile::open_to_read(path, Links::Refuse)?.map_or(Ok(false), |file| Ok(!file.probe()?))
}
