//! A lock that this client holds.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::error::file_error;
use super::protocol::lock_contents::{ContentKind, HolderEntry, LockContents};
use super::protocol::lock_paths::LockPaths;
use super::protocol::shared_holders::{SharedHolders, SlotFile, TokenFile, Turnstile};
use super::wire::lock_file::{CHANGED_FILE_TRIES, Links, LockFile, Obstacle};
use crate::contract::{Claim, Grant, Release};
use crate::engines::shared::admission;
use crate::types::clock::Clock;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::mode::Mode;
use crate::types::token::{AttemptId, FencingToken};

/// A lock that this client holds. Dropping it frees the lock.
#[derive(Debug)]
pub(super) struct FileHold {
    attempt: AttemptId,
    token: FencingToken,
    paths: LockPaths,
    // Dropped before the lock's file: the next holder needs all three, and waits for that file.
    part: Part,
    anchor: Option<LockFile>,
    file: LockFile,
}

/// The part of the lock that is held.
#[derive(Debug)]
enum Part {
    /// The whole lock, with the side file where one is used.
    Whole(Option<LockFile>),
    /// A reader's part.
    Reader(TokenFile),
    /// A slot of a semaphore. Its token file only has to last as long as the slot.
    Slot(SlotFile, #[expect(dead_code, reason = "dropped with the slot")] TokenFile),
}

/// The outcome of a try.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and a hold is moved once")]
pub(super) enum TakeOutcome {
    Taken(FileHold),
    /// The lock is not free. The file is returned, to try again without closing it: a close would notify every
    /// process that watches it, this one included.
    Busy(LockFile, Obstacle),
    /// The file was removed or replaced.
    Moved,
}

impl FileHold {
    /// Takes the lock if it is free for the claim.
    ///
    /// If the process is killed anywhere in here, the kernel frees what was locked; a raised counter only leaves a
    /// gap in the tokens.
    pub(super) fn take(claim: &Claim, paths: &LockPaths, file: LockFile, clock: &Clock) -> Result<TakeOutcome> {
        let is_alone = admission::is_alone(claim.mode());
        let lock = |file: &LockFile| if is_alone { file.try_lock() } else { file.try_share() };
        let tried = match is_alone && !claim.queue {
            // A claim that waits tries again in any case.
            false => lock(&file).map(|locked| (!locked).then_some(Obstacle::Holder)),
            true => file.try_alone(),
        };
        let obstacle = tried.map_err(|error| file_error("lock", &paths.lock, error))?;
        // Locked or not: a file that was removed or replaced says nothing about the lock.
        if !paths.has(&file)? {
            return Ok(TakeOutcome::Moved);
        }
        if let Some(obstacle) = obstacle {
            // Shared holders share the file for as long as they hold the lock; an inspection shares it for a moment.
            let is_occupied = || {
                SharedHolders::read(&paths.shared_holders).is_ok_and(|holders| holders.is_occupied().unwrap_or(true))
            };
            let is_held = obstacle == Obstacle::Holder || is_occupied();
            return Ok(TakeOutcome::Busy(file, if is_held { Obstacle::Holder } else { obstacle }));
        }
        warn_of_nfs(&file, paths);
        let anchor = paths.open_anchor();
        if let Some(anchor) = &anchor {
            if !lock(anchor).map_err(|error| file_error("lock the anchor of", &paths.lock, error))? {
                // The lock's file was removed while held; the holder goes on with the old file.
                file.unlock();
                return Ok(TakeOutcome::Busy(file, Obstacle::Holder));
            }
            if !paths.has_anchor(anchor) {
                return Ok(TakeOutcome::Moved);
            }
        }
        let entering = Entering { claim, paths, file: &file, clock };
        let part = if is_alone { entering.take_whole()? } else { entering.take_share()? };
        let (part, token) = match part {
            Ok(part) => part,
            Err(obstacle) => {
                file.unlock();
                return Ok(TakeOutcome::Busy(file, obstacle));
            }
        };
        Ok(TakeOutcome::Taken(FileHold { attempt: claim.attempt, token, paths: paths.clone(), part, anchor, file }))
    }

    pub(super) fn grant(&self) -> Grant {
        let slot = match &self.part {
            Part::Slot(slot, _) => Some(slot.number()),
            Part::Whole(_) | Part::Reader(_) => None,
        };
        Grant { slot, ..Grant::new(self.token, None) }
    }

    /// Whether the hold still excludes others: one of its locked files must still be in its place. A slot is
    /// protected by its own file alone.
    pub(super) fn is_intact(&self) -> Result<bool> {
        let broken = |error| file_error("look at", &self.paths.shared_holders, error);
        let by_name = match &self.part {
            Part::Slot(slot, _) => return slot.is_in_place().map_err(broken),
            Part::Reader(token_file) => token_file.is_in_place(),
            Part::Whole(_) => false,
        };
        let is_anchored = |anchor: &LockFile| self.paths.has_anchor(anchor);
        Ok(by_name || self.paths.has(&self.file)? || self.anchor.as_ref().is_some_and(is_anchored))
    }

    /// Returns a copy of the descriptor that keeps the held part as long as a copy is open.
    pub(super) fn descriptor(&self) -> Result<OwnedFd> {
        let file = match &self.part {
            Part::Slot(slot, _) => slot.file(),
            Part::Whole(_) | Part::Reader(_) => &self.file,
        };
        let copy = file.copy().map_err(|error| file_error("copy the descriptor of", &self.paths.lock, error))?;
        if let Part::Reader(token_file) = &self.part {
            token_file.leave_to_child();
        }
        Ok(copy)
    }

    /// Frees the lock.
    pub(super) fn end(self) -> Release {
        if !self.is_intact().unwrap_or(true) {
            return Release::NotOurs;
        }
        // A child that has the descriptor goes on as the holder, under this client's name.
        if let Part::Whole(side) = &self.part
            && !self.file.is_inherited()
        {
            let written = side.as_ref().unwrap_or(&self.file).contents();
            // If this fails, the kernel still knows that the lock is free.
            let _ = LockContents::of(written).erase_holder(self.attempt);
        }
        Release::Released
    }
}

/// A claim that has locked the lock's file and the anchor, and takes its part of the lock.
struct Entering<'a> {
    claim: &'a Claim,
    paths: &'a LockPaths,
    file: &'a LockFile,
    clock: &'a Clock,
}

impl Entering<'_> {
    /// Takes the whole lock, unless there is a shared holder although the lock's file was free.
    fn take_whole(&self) -> Result<Result<(Part, FencingToken), Obstacle>> {
        let holders = self.shared_holders()?;
        // As with the anchor: the lock's file was removed under a shared holder, or a child goes on in a slot.
        if holders.is_occupied().map_err(|error| self.broken(error))? {
            return Ok(Err(Obstacle::Holder));
        }
        let side = match side(self.paths, self.file)? {
            SideFile::NotNeeded => None,
            SideFile::Locked(side) => Some(side),
            SideFile::Busy => return Ok(Err(Obstacle::Holder)),
        };
        let contents = LockContents::of(side.as_ref().unwrap_or(self.file).contents());
        let floor =
            self.clock_floor().max(floor_of_other_counter(self.paths, self.file, side.is_some())?).max(holders.floor());
        let advanced = contents.advance(floor);
        let token = advanced.map_err(|error| file_error("write the counter of", &self.paths.lock, error))?;
        holders.clear();
        log_unwritten(contents.write_holder(&self.entry(token)));
        Ok(Ok((Part::Whole(side), token)))
    }

    /// Takes a part of the lock, unless all slots are taken.
    fn take_share(&self) -> Result<Result<(Part, FencingToken), Obstacle>> {
        let mode = self.claim.mode();
        if self.paths.side.is_none() {
            refuse_foreign(self.paths, self.file)?;
        }
        let dir = &self.paths.shared_holders;
        let turnstile = match self.claim.asked().resizes {
            true => match Turnstile::enter(dir).map_err(|error| self.broken(error))? {
                None => return Ok(Err(Obstacle::Sharers)),
                entering => entering,
            },
            false => None,
        };
        self.refuse_disagreement(turnstile.as_ref())?;
        let slot = match mode {
            Mode::Slot { of } => {
                let taken = match &turnstile {
                    Some(entering) => SlotFile::take_resized(dir, of, entering),
                    None => SlotFile::take(dir, of),
                };
                match taken.map_err(|error| self.broken(error))? {
                    Ok(slot) => Some(slot),
                    Err(obstacle) => return Ok(Err(obstacle)),
                }
            }
            _ => None,
        };
        let counters = floor_of_other_counter(self.paths, self.file, true)?
            .max(floor_of_other_counter(self.paths, self.file, false)?);
        let floor = self.clock_floor().max(counters);
        let token_file = TokenFile::take(dir, floor, slot.is_none()).map_err(|error| self.broken(error))?;
        let token = token_file.token();
        let entry = self.entry(token);
        let part = match slot {
            Some(slot) => {
                log_unwritten(slot.write_holder(&entry));
                Part::Slot(slot, token_file)
            }
            None => {
                log_unwritten(token_file.write_holder(&entry));
                Part::Reader(token_file)
            }
        };
        // Of two claims that enter at the same moment and disagree, at least one sees the other's files by now.
        self.refuse_disagreement(turnstile.as_ref())?;
        Ok(Ok((part, token)))
    }

    fn refuse_disagreement(&self, turnstile: Option<&Turnstile>) -> Result<()> {
        let (mode, asked) = (self.claim.mode(), self.claim.asked());
        match self.shared_holders()?.disagreeing(asked, turnstile).map_err(|error| self.broken(error))? {
            Some(other) => Err(mode.disagrees(other)),
            None => Ok(()),
        }
    }

    fn shared_holders(&self) -> Result<SharedHolders> {
        SharedHolders::read(&self.paths.shared_holders).map_err(|error| self.broken(error))
    }

    fn broken(&self, error: io::Error) -> Error {
        file_error("create lock file in", &self.paths.shared_holders, error)
    }

    fn now(&self) -> Duration {
        self.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    /// Returns the wall clock as the least token, so that tokens rise even when the file was removed with its
    /// counter.
    fn clock_floor(&self) -> u64 {
        u64::try_from(self.now().as_micros()).unwrap_or(0)
    }

    fn entry(&self, token: FencingToken) -> HolderEntry {
        let granted_ms = u64::try_from(self.now().as_millis()).unwrap_or(0);
        HolderEntry::new(self.claim.attempt, token, granted_ms, &self.claim.record)
    }
}

/// Logs that the holder's name could not be written. The lock is held all the same; others do not see by whom.
fn log_unwritten(written: io::Result<()>) {
    if let Err(error) = written {
        tracing::debug!(target: "distlock", %error, "the holder of a lock could not be written down");
    }
}

enum SideFile {
    NotNeeded,
    Locked(LockFile),
    Busy,
}

/// Locks the side file of a lock's file that has foreign contents or may not be written to.
///
/// When the lock's file is removed while held, the locked side file still excludes the next holder, and the counter
/// never has two writers.
fn side(paths: &LockPaths, file: &LockFile) -> Result<SideFile> {
    let content =
        LockContents::of(file.contents()).content().map_err(|error| file_error("read", &paths.lock, error))?;
    if content != ContentKind::Foreign && file.is_writable() {
        return Ok(SideFile::NotNeeded);
    }
    let Some(path) = &paths.side else {
        refuse_foreign(paths, file)?;
        return Err(Error::new(ErrorKind::Foreign, format!("{} cannot be written to", paths.lock.display())));
    };
    for _ in 0..CHANGED_FILE_TRIES {
        let side = LockFile::open(path, Links::Refuse).map_err(|error| file_error("create lock file", path, error))?;
        if !side.try_lock().map_err(|error| file_error("lock", path, error))? {
            return Ok(SideFile::Busy);
        }
        if !side.is_at(path).map_err(|error| file_error("look at", path, error))? {
            continue;
        }
        return match LockContents::of(side.contents()).content() {
            Ok(ContentKind::Foreign) => {
                Err(Error::new(ErrorKind::Foreign, format!("{} is not a file of distlock", path.display())))
            }
            Ok(_) if !side.is_writable() => Err(file_error("write to", path, rustix::io::Errno::ACCESS)),
            Ok(_) => Ok(SideFile::Locked(side)),
            Err(error) => Err(file_error("read", path, error)),
        };
    }
    Err(Error::unavailable(format!("{} keeps changing", path.display())))
}

/// Refuses a file with foreign contents where only distlock's files belong.
fn refuse_foreign(paths: &LockPaths, file: &LockFile) -> Result<()> {
    match LockContents::of(file.contents()).content() {
        Ok(ContentKind::Foreign) => {
            let message = format!("{} has contents that are not distlock's", paths.lock.display());
            Err(Error::new(ErrorKind::Foreign, message))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(file_error("read", &paths.lock, error)),
    }
}

/// Returns the least token that the other counter allows. Whether the lock's file or the side file has the counter
/// depends on the file's contents and on the user's rights, and both change.
fn floor_of_other_counter(paths: &LockPaths, file: &LockFile, in_side_file: bool) -> Result<u64> {
    let last = if in_side_file {
        LockContents::of(file.contents()).counter().map_err(|error| file_error("read", &paths.lock, error))?
    } else {
        let Some(path) = &paths.side else { return Ok(0) };
        let side = LockFile::open_to_read(path, Links::Refuse);
        let counter = side.and_then(|side| side.map_or(Ok(0), |side| LockContents::of(side.contents()).counter()));
        counter.map_err(|error| file_error("read", path, error))?
    };
    Ok(last.saturating_add(1))
}

fn warn_of_nfs(file: &LockFile, paths: &LockPaths) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.load(Ordering::Relaxed) && file.is_on_nfs() && !WARNED.swap(true, Ordering::Relaxed) {
        let path = paths.lock.display();
        tracing::warn!(target: "distlock", %path, "a lock file on NFS: a lock may be lost without notice when its server restarts");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::super::protocol::lock_paths::PathLayout;
    use super::super::tests::Scratch;
    use super::*;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    fn take(paths: &LockPaths, file: LockFile) -> TakeOutcome {
        let clock = Clock::system();
        let record = Record::new(OwnerId::random(), Process::current(), None, clock.wall());
        let claim = Claim::new(Key::new("a").unwrap(), Duration::from_secs(1), false, Arc::new(record));
        FileHold::take(&claim, paths, file, &clock).unwrap()
    }

    #[test]
    fn a_file_that_went_away_between_open_and_lock_is_no_lock() {
        let scratch = Scratch::new();
        let paths = PathLayout::new(scratch.path().to_owned(), false).find(&Key::new("a").unwrap()).unwrap();
        let (early, held) = (paths.open().unwrap(), paths.open().unwrap());
        fs::remove_file(&paths.lock).unwrap();
        assert!(matches!(take(&paths, early), TakeOutcome::Moved), "removed");
        let TakeOutcome::Taken(hold) = take(&paths, paths.open().unwrap()) else { panic!("the new file is free") };
        assert!(matches!(take(&paths, held), TakeOutcome::Moved), "replaced");
        assert!(matches!(take(&paths, paths.open().unwrap()), TakeOutcome::Busy(..)));
        assert_eq!(hold.end(), Release::Released);
    }

    #[test]
    fn a_busy_file_that_was_replaced_is_not_waited_for() {
        let scratch = Scratch::new();
        let paths = PathLayout::new(scratch.path().to_owned(), false).find(&Key::new("a").unwrap()).unwrap();
        let TakeOutcome::Taken(hold) = take(&paths, paths.open().unwrap()) else { panic!("it is free") };
        let late = paths.open().unwrap();
        fs::remove_file(&paths.lock).unwrap();
        assert!(matches!(take(&paths, late), TakeOutcome::Moved));
        assert!(matches!(take(&paths, paths.open().unwrap()), TakeOutcome::Busy(..)), "its holder is still there");
        assert_eq!(hold.end(), Release::Released);
    }
}
