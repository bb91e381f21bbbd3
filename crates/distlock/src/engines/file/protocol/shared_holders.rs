//! The shared holders of a lock: readers, and holders of a semaphore's slots.
//!
//! A directory beside the lock:
//! - `<number>`: a fencing token that was granted. A reader's file is flocked as long as the reader holds the lock,
//!   and names it. The highest number is the counter, so it stays until an exclusive holder has continued from it.
//! - `slot-<number>-of-<slots>`: flocked by the holder of the slot, and names it.
//!
//! A client makes a file here only while it shares the lock's own file, and clears the directory only while it has
//! that file exclusively. The kernel frees what a killed process had locked; its entries then no longer count.
//!
//! Slots of a semaphore whose claims resize it may be of several sizes. Such a claim enters through the [`Turnstile`]: so it
//! counts all slots and takes one in one step, and the entries of all others that resize are complete meanwhile.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engines::file::protocol::lock_contents::HolderEntry;
use crate::engines::file::protocol::own_directory;
use crate::engines::file::wire::lock_file::{CHANGED_FILE_TRIES, Links, LockFile, Obstacle};
use crate::types::mode::{AskedMode, Mode};
use crate::types::token::FencingToken;

/// How many token files are checked for dead readers, each time a new one is made.
const SWEPT_AT_ONCE: usize = 64;

/// The contents of the directory when it was read.
#[derive(Debug)]
pub(crate) struct SharedHolders {
    dir: PathBuf,
    tokens: Vec<u64>,
    slots: Vec<SlotName>,
}

/// A holder, or one that was when its process ended.
#[derive(Debug)]
pub(crate) struct SharedHolder {
    pub(crate) entry: HolderEntry,
    pub(crate) is_live: bool,
}

impl SharedHolders {
    /// Reads the directory. Where it is missing or not readable, there are no shared holders.
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

    /// Returns the least token that may follow those that were granted here.
    pub(crate) fn floor(&self) -> u64 {
        self.tokens.last().map_or(0, |last| last.saturating_add(1))
    }

    /// Whether there is a live shared holder.
    pub(crate) fn is_occupied(&self) -> io::Result<bool> {
        for path in self.paths() {
            if is_locked(&path)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the mode of a live shared holder that disagrees with a claim. A claim that resizes a semaphore learns of
    /// holders of other sizes when it has entered through the turnstile; before that they count as agreeing.
    pub(crate) fn disagreeing(&self, asked: AskedMode, turnstile: Option<&Turnstile>) -> io::Result<Option<Mode>> {
        for slot in &self.slots {
            let path = self.dir.join(slot.to_string());
            let agrees = |resizes| asked.agrees_with(AskedMode { mode: slot.mode(), resizes });
            if !agrees(true) && is_locked(&path)? {
                return Ok(Some(slot.mode()));
            }
            if turnstile.is_some() && !agrees(false) && is_locked(&path)? && !has_resizing_holder(&path)? {
                return Ok(Some(slot.mode()));
            }
        }
        for number in self.tokens.iter().filter(|_| !asked.mode.agrees_with(Mode::Shared)) {
            if is_locked(&self.dir.join(token_name(*number)))? {
                return Ok(Some(Mode::Shared));
            }
        }
        Ok(None)
    }

    /// Returns the numbers of the slots that are held, of whatever size.
    fn held_slots(&self) -> io::Result<Vec<u32>> {
        let mut held = Vec::new();
        for slot in &self.slots {
            if is_locked(&self.dir.join(slot.to_string()))? {
                held.push(slot.number);
            }
        }
        Ok(held)
    }

    /// Returns the live and the dead holders, in the order of their tokens.
    pub(crate) fn list(&self) -> io::Result<Vec<SharedHolder>> {
        let mut list = Vec::new();
        for path in self.paths() {
            let Some(file) = LockFile::open_to_read(&path, Links::Refuse)? else { continue };
            if let Some(entry) = HolderEntry::read_at(file.contents(), 0)? {
                list.push(SharedHolder { entry, is_live: !file.probe()? });
            }
        }
        list.sort_by_key(|holder| holder.entry.token);
        Ok(list)
    }

    /// Removes all files, for an exclusive holder that has continued from the highest token.
    pub(crate) fn clear(&self) {
        if !self.tokens.is_empty() || !self.slots.is_empty() {
            // The next exclusive holder tries again to remove what cannot be removed now.
            self.paths().for_each(|path| drop(std::fs::remove_file(path)));
            let _ = std::fs::remove_dir(&self.dir);
        }
    }

    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let names = self.slots.iter().map(SlotName::to_string).chain(self.tokens.iter().copied().map(token_name));
        names.map(|name| self.dir.join(name))
    }
}

/// The fencing token of a shared holder. Dropping it removes the holder's name.
#[derive(Debug)]
pub(crate) struct TokenFile {
    dir: PathBuf,
    value: u64,
    file: LockFile,
    /// A child goes on under this name.
    is_inherited: AtomicBool,
}

impl TokenFile {
    /// Makes a unique token, at least `floor` and higher than all before. Its file is locked when it is to show a
    /// live holder.
    ///
    /// Nothing is locked while it is chosen: the process that makes the file has the token.
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
                // Another claim was faster, or an exclusive holder cleared the directory.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => continue,
                made => made?,
            };
            // Before it was locked it looked dead: another process may have removed it, or be probing it.
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

    /// Writes the holder's entry.
    pub(crate) fn write_holder(&self, entry: &HolderEntry) -> io::Result<()> {
        entry.write_at(self.file.contents(), 0)
    }

    /// Whether exclusive claims can see it.
    pub(crate) fn is_in_place(&self) -> bool {
        self.file.is_at(&self.path()).unwrap_or(true)
    }

    /// Keeps the entry when this is dropped: a child has the lock then.
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
        // The highest token is the counter and stays; only a lower one may be removed.
        if SharedHolders::read(&self.dir).is_ok_and(|holders| holders.floor() > self.value.saturating_add(1)) {
            let _ = std::fs::remove_file(self.path());
        } else {
            let _ = self.file.contents().set_len(0);
        }
    }
}

impl SharedHolders {
    /// Removes the token files of dead readers. To be called by a holder of a higher token.
    fn sweep(&self) {
        let paths = self.tokens.iter().take(SWEPT_AT_ONCE).map(|number| self.dir.join(token_name(*number)));
        paths.filter(|path| is_locked(path).is_ok_and(|locked| !locked)).for_each(|path| {
            let _ = std::fs::remove_file(path);
        });
    }
}

/// Lets one claim at a time into a semaphore whose claims resize it: a flock of the directory. Dropping it lets the next
/// one in; the kernel does so if the process ends.
#[derive(Debug)]
pub(crate) struct Turnstile(#[expect(dead_code, reason = "dropped with the turnstile")] LockFile);

impl Turnstile {
    /// Returns `None` while another claim enters, which lasts for a moment.
    pub(crate) fn enter(dir: &Path) -> io::Result<Option<Turnstile>> {
        own_directory::make(dir)?;
        let Some(opened) = LockFile::open_to_read(dir, Links::Refuse)? else { return Ok(None) };
        for _ in 0..CHANGED_FILE_TRIES {
            if opened.try_lock()? {
                return Ok(opened.is_at(dir)?.then_some(Turnstile(opened)));
            }
            std::thread::yield_now();
        }
        Ok(None)
    }
}

/// A held slot of a semaphore. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct SlotFile {
    path: PathBuf,
    number: u32,
    file: LockFile,
}

impl SlotFile {
    /// Takes the lowest free one of `of` slots. The obstacle is `Sharers` when nothing but an inspection keeps a
    /// slot: holders never share one.
    pub(crate) fn take(dir: &Path, of: u32) -> io::Result<Result<SlotFile, Obstacle>> {
        SlotFile::take_first(dir, of, 0..of)
    }

    /// Takes the lowest one of `of` slots that no claim of any size has, if fewer than `of` are held.
    pub(crate) fn take_resized(dir: &Path, of: u32, _entering: &Turnstile) -> io::Result<Result<SlotFile, Obstacle>> {
        let held = SharedHolders::read(dir)?.held_slots()?;
        if held.len() >= of as usize {
            return Ok(Err(Obstacle::Holder));
        }
        SlotFile::take_first(dir, of, (0..of).filter(|number| !held.contains(number)))
    }

    fn take_first(dir: &Path, of: u32, numbers: impl Iterator<Item = u32>) -> io::Result<Result<SlotFile, Obstacle>> {
        let mut obstacle = Obstacle::Holder;
        for number in numbers {
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
            // The previous holder may have removed the file as it left, and another claim may have made a new one.
            if file.is_at(&path)? {
                return Ok(Ok(SlotFile { path, number: name.number, file }));
            }
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Writes the holder's entry.
    pub(crate) fn write_holder(&self, entry: &HolderEntry) -> io::Result<()> {
        entry.write_at(self.file.contents(), 0)
    }

    /// Whether it still excludes others.
    pub(crate) fn is_in_place(&self) -> io::Result<bool> {
        self.file.is_at(&self.path)
    }

    pub(crate) fn file(&self) -> &LockFile {
        &self.file
    }
}

impl Drop for SlotFile {
    fn drop(&mut self) {
        // Removed before it is unlocked: a claim that locks the file then finds that it is no slot any more. A child
        // that has the descriptor goes on under this holder's name.
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

/// Whether the holder's entry says that it resizes the semaphore. Without an entry it is taken for one that does not.
fn has_resizing_holder(path: &Path) -> io::Result<bool> {
    let Some(file) = LockFile::open_to_read(path, Links::Refuse)? else { return Ok(true) };
    Ok(HolderEntry::read_at(file.contents(), 0)?.is_some_and(|entry| entry.record.resizes))
}

fn is_locked(path: &Path) -> io::Result<bool> {
    LockFile::open_to_read(path, Links::Refuse)?.map_or(Ok(false), |file| Ok(!file.probe()?))
}
