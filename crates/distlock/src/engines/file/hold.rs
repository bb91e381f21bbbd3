//! A lock that is ours.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::error::file_error;
use super::protocol::lock_contents::{ContentKind, HolderEntry, LockContents};
use super::protocol::lock_paths::LockPaths;
use super::protocol::shared_holders::{SharedHolders, SlotFile, TokenFile};
use super::wire::lock_file::{CHANGED_FILE_TRIES, Links, LockFile, Obstacle};
use crate::contract::{Claim, Grant, Release};
use crate::engines::shared::admission;
use crate::types::clock::Clock;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::mode::Mode;
use crate::types::token::{AttemptId, FencingToken};

/// A lock that is ours. Dropping it frees the lock.
#[derive(Debug)]
pub(super) struct FileHold {
    attempt: AttemptId,
    token: FencingToken,
    paths: LockPaths,
    // Freed before the lock itself: the next one needs all, and waits for the lock.
    part: Part,
    anchor: Option<LockFile>,
    file: LockFile,
}

/// How much of the lock is ours.
#[derive(Debug)]
enum Part {
    /// All of it. The file beside the lock's file, where that is used.
    Whole(Option<LockFile>),
    /// What every reader has.
    Reader(TokenFile),
    /// A slot of a semaphore. The number only has to last as long as the slot.
    Slot(SlotFile, #[expect(dead_code, reason = "dropped with the slot")] TokenFile),
}

/// What became of a try.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and a hold is moved once")]
pub(super) enum TakeOutcome {
    Taken(FileHold),
    /// It is not free: what is in the way, and the file, to try again without closing it. A close would wake the process
    /// that watches it, ourselves too.
    Busy(LockFile, Obstacle),
    /// The file is not the lock's any more.
    Moved,
}

impl FileHold {
    /// Takes the lock if it is free for the claim.
    ///
    /// Killed anywhere in here, the kernel frees what was locked; a raised counter only leaves a gap in the tokens.
    pub(super) fn take(claim: &Claim, paths: &LockPaths, file: LockFile, clock: &Clock) -> Result<TakeOutcome> {
        let is_alone = admission::is_alone(claim.mode());
        let lock = |file: &LockFile| if is_alone { file.try_lock() } else { file.try_share() };
        let tried = match is_alone && !claim.queue {
            // Who waits comes again in any case.
            false => lock(&file).map(|locked| (!locked).then_some(Obstacle::Holder)),
            true => file.try_alone(),
        };
        let obstacle = tried.map_err(|error| file_error("lock", &paths.lock, error))?;
        // Locked or not: a file that was removed or replaced says nothing about the lock.
        if !paths.has(&file)? {
            return Ok(TakeOutcome::Moved);
        }
        if let Some(obstacle) = obstacle {
            // Those who are inside share the file for as long as they hold the lock; a look at it is over in a moment.
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
                // Somebody removed the lock's file under its holder, who goes on in the old one.
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

    /// Whether the lock still keeps others out: one of the files that we have locked must still be in its place. Only
    /// its own file keeps the others out of a slot.
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

    /// What keeps our part of the lock as long as a copy is open.
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
        // A child that has the descriptor goes on as the holder, under our name.
        if let Part::Whole(side) = &self.part
            && !self.file.is_inherited()
        {
            let written = side.as_ref().unwrap_or(&self.file).contents();
            // Should that fail, the kernel still knows that nobody holds the lock.
            let _ = LockContents::of(written).erase_holder(self.attempt);
        }
        Release::Released
    }
}

/// One who has the lock's file and the anchor locked, and wants its part of the lock.
struct Entering<'a> {
    claim: &'a Claim,
    paths: &'a LockPaths,
    file: &'a LockFile,
    clock: &'a Clock,
}

impl Entering<'_> {
    /// Takes the lock alone, unless another holder is inside though the lock's file is ours.
    fn take_whole(&self) -> Result<Result<(Part, FencingToken), Obstacle>> {
        let holders = self.shared_holders()?;
        // As with the anchor: its file was removed, or a child goes on in a slot.
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
        self.refuse_disagreement()?;
        let slot = match mode {
            Mode::Slot { of } => {
                match SlotFile::take(&self.paths.shared_holders, of).map_err(|error| self.broken(error))? {
                    Ok(slot) => Some(slot),
                    Err(obstacle) => return Ok(Err(obstacle)),
                }
            }
            _ => None,
        };
        let counters = floor_of_other_counter(self.paths, self.file, true)?
            .max(floor_of_other_counter(self.paths, self.file, false)?);
        let floor = self.clock_floor().max(counters);
        let token_file =
            TokenFile::take(&self.paths.shared_holders, floor, slot.is_none()).map_err(|error| self.broken(error))?;
        let token = token_file.token();
        // Who entered at the same moment and does not agree sees us by now, or we see it.
        self.refuse_disagreement()?;
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
        Ok(Ok((part, token)))
    }

    fn refuse_disagreement(&self) -> Result<()> {
        let mode = self.claim.mode();
        match self.shared_holders()?.disagreeing(mode).map_err(|error| self.broken(error))? {
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

    /// The clock as floor lets tokens rise also when the file was removed, and the counter with it.
    fn clock_floor(&self) -> u64 {
        u64::try_from(self.now().as_micros()).unwrap_or(0)
    }

    fn entry(&self, token: FencingToken) -> HolderEntry {
        let granted_ms = u64::try_from(self.now().as_millis()).unwrap_or(0);
        HolderEntry::new(self.claim.attempt, token, granted_ms, &self.claim.record)
    }
}

/// The lock is ours all the same when that failed; others will not see whose it is.
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

/// The file beside a lock's file whose contents are not ours.
///
/// It is locked as well: when the lock's file is removed while held, this one still keeps the next holder out, and the
/// counter is never written by two.
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
            Ok(ContentKind::Foreign) => Err(Error::new(ErrorKind::Foreign, format!("{} is not ours", path.display()))),
            Ok(_) if !side.is_writable() => Err(file_error("write to", path, rustix::io::Errno::ACCESS)),
            Ok(_) => Ok(SideFile::Locked(side)),
            Err(error) => Err(file_error("read", path, error)),
        };
    }
    Err(Error::unavailable(format!("{} keeps changing", path.display())))
}

/// Where only our files belong, one with other contents is not ours to use.
fn refuse_foreign(paths: &LockPaths, file: &LockFile) -> Result<()> {
    match LockContents::of(file.contents()).content() {
        Ok(ContentKind::Foreign) => {
            let message = format!("{} has contents that are not ours", paths.lock.display());
            Err(Error::new(ErrorKind::Foreign, message))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(file_error("read", &paths.lock, error)),
    }
}

/// The least token that the other counter allows: whether the file or the one beside it has the counter depends on the
/// file's contents and on who asks, and both change.
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
