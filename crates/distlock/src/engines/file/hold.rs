//! A lock that is ours.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::error::fault;
use super::protocol::lock_contents::{Content, Entry, Ledger};
use super::protocol::lock_paths::Place;
use super::protocol::shared_holders::{Inside, Number, Slot};
use super::wire::lock_file::{CHANGED_FILE_TRIES, Links, LockFile, Obstacle};
use crate::contract::{Claim, Grant, Release};
use crate::engines::shared::admission;
use crate::types::clock::Clock;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::mode::Mode;
use crate::types::token::{AttemptId, FencingToken};

/// A lock that is ours. Dropping it frees the lock.
#[derive(Debug)]
pub(super) struct Hold {
    attempt: AttemptId,
    token: FencingToken,
    place: Place,
    // Freed before the lock itself: the next one needs all, and waits for the lock.
    share: Share,
    anchor: Option<LockFile>,
    file: LockFile,
}

/// How much of the lock is ours.
#[derive(Debug)]
enum Share {
    /// All of it. The file beside the lock's file, where that is used.
    Whole(Option<LockFile>),
    /// What every reader has.
    Reader(Number),
    /// A slot of a semaphore. The number only has to last as long as the slot.
    Slot(Slot, #[expect(dead_code, reason = "dropped with the slot")] Number),
}

/// What became of a try.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and a hold is moved once")]
pub(super) enum Taking {
    Taken(Hold),
    /// It is not free: what is in the way, and the file, to try again without closing it. A close would wake the process
    /// that watches it, ourselves too.
    Busy(LockFile, Obstacle),
    /// The file is not the lock's any more.
    Moved,
}

impl Hold {
    /// Takes the lock if it is free for the claim.
    ///
    /// Killed anywhere in here, the kernel frees what was locked; a raised counter only leaves a gap in the tokens.
    pub(super) fn take(claim: &Claim, place: &Place, file: LockFile, clock: &Clock) -> Result<Taking> {
        let is_alone = admission::is_alone(claim.mode());
        let lock = |file: &LockFile| if is_alone { file.try_lock() } else { file.try_share() };
        let tried = match is_alone && !claim.queue {
            // Who waits comes again in any case.
            false => lock(&file).map(|locked| (!locked).then_some(Obstacle::Holder)),
            true => file.try_alone(),
        };
        let obstacle = tried.map_err(|error| fault("lock", &place.lock, error))?;
        // Locked or not: a file that was removed or replaced says nothing about the lock.
        if !place.has(&file)? {
            return Ok(Taking::Moved);
        }
        if let Some(obstacle) = obstacle {
            // Those who are inside share the file for as long as they hold the lock; a look at it is over in a moment.
            let is_occupied = || Inside::read(&place.inside).is_ok_and(|inside| inside.is_occupied().unwrap_or(true));
            let is_held = obstacle == Obstacle::Holder || is_occupied();
            return Ok(Taking::Busy(file, if is_held { Obstacle::Holder } else { obstacle }));
        }
        warn_of_nfs(&file, place);
        let anchor = place.open_anchor();
        if let Some(anchor) = &anchor {
            if !lock(anchor).map_err(|error| fault("lock the anchor of", &place.lock, error))? {
                // Somebody removed the lock's file under its holder, who goes on in the old one.
                file.unlock();
                return Ok(Taking::Busy(file, Obstacle::Holder));
            }
            if !place.has_anchor(anchor) {
                return Ok(Taking::Moved);
            }
        }
        let entering = Entering { claim, place, file: &file, clock };
        let share = if is_alone { entering.take_whole()? } else { entering.take_share()? };
        let (share, token) = match share {
            Ok(share) => share,
            Err(obstacle) => {
                file.unlock();
                return Ok(Taking::Busy(file, obstacle));
            }
        };
        Ok(Taking::Taken(Hold { attempt: claim.attempt, token, place: place.clone(), share, anchor, file }))
    }

    pub(super) fn grant(&self) -> Grant {
        let slot = match &self.share {
            Share::Slot(slot, _) => Some(slot.number()),
            Share::Whole(_) | Share::Reader(_) => None,
        };
        Grant { slot, ..Grant::new(self.token, None) }
    }

    /// Whether the lock still keeps others out: one of the files that we have locked must still be in its place. Only
    /// its own file keeps the others out of a slot.
    pub(super) fn is_intact(&self) -> Result<bool> {
        let broken = |error| fault("look at", &self.place.inside, error);
        let by_name = match &self.share {
            Share::Slot(slot, _) => return slot.is_in_place().map_err(broken),
            Share::Reader(number) => number.is_in_place(),
            Share::Whole(_) => false,
        };
        let is_anchored = |anchor: &LockFile| self.place.has_anchor(anchor);
        Ok(by_name || self.place.has(&self.file)? || self.anchor.as_ref().is_some_and(is_anchored))
    }

    /// What keeps our part of the lock as long as a copy is open.
    pub(super) fn descriptor(&self) -> Result<OwnedFd> {
        let file = match &self.share {
            Share::Slot(slot, _) => slot.file(),
            Share::Whole(_) | Share::Reader(_) => &self.file,
        };
        let copy = file.copy().map_err(|error| fault("copy the descriptor of", &self.place.lock, error))?;
        if let Share::Reader(number) = &self.share {
            number.stay();
        }
        Ok(copy)
    }

    /// Frees the lock.
    pub(super) fn end(self) -> Release {
        if !self.is_intact().unwrap_or(true) {
            return Release::NotOurs;
        }
        // A child that has the descriptor goes on as the holder, under our name.
        if let Share::Whole(side) = &self.share
            && !self.file.is_inherited()
        {
            let written = side.as_ref().unwrap_or(&self.file).contents();
            // Should that fail, the kernel still knows that nobody holds the lock.
            let _ = Ledger::of(written).strike(self.attempt);
        }
        Release::Released
    }
}

/// One who has the lock's file and the anchor locked, and wants its part of the lock.
struct Entering<'a> {
    claim: &'a Claim,
    place: &'a Place,
    file: &'a LockFile,
    clock: &'a Clock,
}

impl Entering<'_> {
    /// Takes the lock alone, unless another holder is inside though the lock's file is ours.
    fn take_whole(&self) -> Result<Result<(Share, FencingToken), Obstacle>> {
        let inside = self.inside()?;
        // As with the anchor: its file was removed, or a child goes on in a slot.
        if inside.is_occupied().map_err(|error| self.broken(error))? {
            return Ok(Err(Obstacle::Holder));
        }
        let side = match side(self.place, self.file)? {
            Side::NotNeeded => None,
            Side::Locked(side) => Some(side),
            Side::Busy => return Ok(Err(Obstacle::Holder)),
        };
        let ledger = Ledger::of(side.as_ref().unwrap_or(self.file).contents());
        let floor = self.clock_floor().max(elsewhere(self.place, self.file, side.is_some())?).max(inside.floor());
        let advanced = ledger.advance(floor);
        let token = advanced.map_err(|error| fault("write the counter of", &self.place.lock, error))?;
        inside.clear();
        said(ledger.enter(&self.entry(token)));
        Ok(Ok((Share::Whole(side), token)))
    }

    /// Takes a part of the lock, unless all slots are taken.
    fn take_share(&self) -> Result<Result<(Share, FencingToken), Obstacle>> {
        let mode = self.claim.mode();
        if self.place.side.is_none() {
            refuse_foreign(self.place, self.file)?;
        }
        self.refuse_disagreement()?;
        let slot = match mode {
            Mode::Slot { of } => match Slot::take(&self.place.inside, of).map_err(|error| self.broken(error))? {
                Ok(slot) => Some(slot),
                Err(obstacle) => return Ok(Err(obstacle)),
            },
            _ => None,
        };
        let counters = elsewhere(self.place, self.file, true)?.max(elsewhere(self.place, self.file, false)?);
        let floor = self.clock_floor().max(counters);
        let number = Number::take(&self.place.inside, floor, slot.is_none()).map_err(|error| self.broken(error))?;
        let token = number.token();
        // Who entered at the same moment and does not agree sees us by now, or we see it.
        self.refuse_disagreement()?;
        let entry = self.entry(token);
        let share = match slot {
            Some(slot) => {
                said(slot.sign(&entry));
                Share::Slot(slot, number)
            }
            None => {
                said(number.sign(&entry));
                Share::Reader(number)
            }
        };
        Ok(Ok((share, token)))
    }

    fn refuse_disagreement(&self) -> Result<()> {
        let mode = self.claim.mode();
        match self.inside()?.disagreeing(mode).map_err(|error| self.broken(error))? {
            Some(other) => Err(mode.disagrees(other)),
            None => Ok(()),
        }
    }

    fn inside(&self) -> Result<Inside> {
        Inside::read(&self.place.inside).map_err(|error| self.broken(error))
    }

    fn broken(&self, error: io::Error) -> Error {
        fault("create lock file in", &self.place.inside, error)
    }

    fn now(&self) -> Duration {
        self.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    /// The clock as floor lets tokens rise also when the file was removed, and the counter with it.
    fn clock_floor(&self) -> u64 {
        u64::try_from(self.now().as_micros()).unwrap_or(0)
    }

    fn entry(&self, token: FencingToken) -> Entry {
        let granted_ms = u64::try_from(self.now().as_millis()).unwrap_or(0);
        Entry::new(self.claim.attempt, token, granted_ms, &self.claim.record)
    }
}

/// The lock is ours all the same when that failed; others will not see whose it is.
fn said(written: io::Result<()>) {
    if let Err(error) = written {
        tracing::debug!(target: "distlock", %error, "the holder of a lock could not be written down");
    }
}

enum Side {
    NotNeeded,
    Locked(LockFile),
    Busy,
}

/// The file beside a lock's file whose contents are not ours.
///
/// It is locked as well: when the lock's file is removed while held, this one still keeps the next holder out, and the
/// counter is never written by two.
fn side(place: &Place, file: &LockFile) -> Result<Side> {
    let content = Ledger::of(file.contents()).content().map_err(|error| fault("read", &place.lock, error))?;
    if content != Content::Foreign && file.is_writable() {
        return Ok(Side::NotNeeded);
    }
    let Some(path) = &place.side else {
        refuse_foreign(place, file)?;
        return Err(Error::new(ErrorKind::Foreign, format!("{} cannot be written to", place.lock.display())));
    };
    for _ in 0..CHANGED_FILE_TRIES {
        let side = LockFile::open(path, Links::Refuse).map_err(|error| fault("create lock file", path, error))?;
        if !side.try_lock().map_err(|error| fault("lock", path, error))? {
            return Ok(Side::Busy);
        }
        if !side.is_at(path).map_err(|error| fault("look at", path, error))? {
            continue;
        }
        return match Ledger::of(side.contents()).content() {
            Ok(Content::Foreign) => Err(Error::new(ErrorKind::Foreign, format!("{} is not ours", path.display()))),
            Ok(_) if !side.is_writable() => Err(fault("write to", path, rustix::io::Errno::ACCESS)),
            Ok(_) => Ok(Side::Locked(side)),
            Err(error) => Err(fault("read", path, error)),
        };
    }
    Err(Error::unavailable(format!("{} keeps changing", path.display())))
}

/// Where only our files belong, one with other contents is not ours to use.
fn refuse_foreign(place: &Place, file: &LockFile) -> Result<()> {
    match Ledger::of(file.contents()).content() {
        Ok(Content::Foreign) => {
            let message = format!("{} has contents that are not ours", place.lock.display());
            Err(Error::new(ErrorKind::Foreign, message))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(fault("read", &place.lock, error)),
    }
}

/// The least token that the other counter allows: whether the file or the one beside it has the counter depends on the
/// file's contents and on who asks, and both change.
fn elsewhere(place: &Place, file: &LockFile, beside: bool) -> Result<u64> {
    let last = if beside {
        Ledger::of(file.contents()).counter().map_err(|error| fault("read", &place.lock, error))?
    } else {
        let Some(path) = &place.side else { return Ok(0) };
        let side = LockFile::look(path, Links::Refuse);
        let counter = side.and_then(|side| side.map_or(Ok(0), |side| Ledger::of(side.contents()).counter()));
        counter.map_err(|error| fault("read", path, error))?
    };
    Ok(last.saturating_add(1))
}

fn warn_of_nfs(file: &LockFile, place: &Place) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.load(Ordering::Relaxed) && file.is_on_nfs() && !WARNED.swap(true, Ordering::Relaxed) {
        let path = place.lock.display();
        tracing::warn!(target: "distlock", %path, "a lock file on NFS: a lock may be lost without notice when its server restarts");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::super::protocol::lock_paths::Places;
    use super::super::tests::Scratch;
    use super::*;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    fn take(place: &Place, file: LockFile) -> Taking {
        let clock = Clock::system();
        let record = Record::new(OwnerId::random(), Process::current(), None, clock.wall());
        let claim = Claim::new(Key::new("a").unwrap(), Duration::from_secs(1), false, Arc::new(record));
        Hold::take(&claim, place, file, &clock).unwrap()
    }

    #[test]
    fn a_file_that_went_away_between_open_and_lock_is_no_lock() {
        let scratch = Scratch::new();
        let place = Places::new(scratch.path().to_owned(), false).find(&Key::new("a").unwrap()).unwrap();
        let (early, held) = (place.open().unwrap(), place.open().unwrap());
        fs::remove_file(&place.lock).unwrap();
        assert!(matches!(take(&place, early), Taking::Moved), "removed");
        let Taking::Taken(hold) = take(&place, place.open().unwrap()) else { panic!("the new file is free") };
        assert!(matches!(take(&place, held), Taking::Moved), "replaced");
        assert!(matches!(take(&place, place.open().unwrap()), Taking::Busy(..)));
        assert_eq!(hold.end(), Release::Released);
    }

    #[test]
    fn a_busy_file_that_was_replaced_is_not_waited_for() {
        let scratch = Scratch::new();
        let place = Places::new(scratch.path().to_owned(), false).find(&Key::new("a").unwrap()).unwrap();
        let Taking::Taken(hold) = take(&place, place.open().unwrap()) else { panic!("it is free") };
        let late = place.open().unwrap();
        fs::remove_file(&place.lock).unwrap();
        assert!(matches!(take(&place, late), Taking::Moved));
        assert!(matches!(take(&place, place.open().unwrap()), Taking::Busy(..)), "its holder is still there");
        assert_eq!(hold.end(), Release::Released);
    }
}
