//! A lock that is ours.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use super::super::{Claim, Grant, Release};
use super::fault::fault;
use super::ledger::{Content, Entry, Ledger};
use super::lock_file::{Links, LockFile};
use super::place::Place;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::token::{AttemptId, FencingToken};

/// A lock that is ours. Dropping it frees the lock.
#[derive(Debug)]
pub(super) struct Hold {
    attempt: AttemptId,
    token: FencingToken,
    place: Place,
    // Freed before the lock itself: the next one needs all, and waits for the lock.
    anchor: Option<LockFile>,
    side: Option<LockFile>,
    file: LockFile,
}

/// What became of a try.
#[derive(Debug)]
pub(super) enum Taking {
    Taken(Hold),
    /// Somebody has it. The file, to try again without closing it: a close would wake who watches it, ourselves too.
    Busy(LockFile),
    /// The file is not the lock's any more.
    Moved,
}

impl Hold {
    /// Takes the lock if it is free.
    ///
    /// Killed anywhere in here, the kernel frees what was locked; a raised counter only leaves a gap in the tokens.
    pub(super) fn take(claim: &Claim, place: &Place, file: LockFile, clock: &Clock) -> Result<Taking> {
        let locked = file.try_lock().map_err(|error| fault("lock", &place.lock, error))?;
        // Locked or not: a file that was removed or replaced says nothing about the lock.
        if !place.has(&file)? {
            return Ok(Taking::Moved);
        }
        if !locked {
            return Ok(Taking::Busy(file));
        }
        warn_of_nfs(&file, place);
        let anchor = place.open_anchor();
        if let Some(anchor) = &anchor {
            if !anchor.try_lock().map_err(|error| fault("lock the anchor of", &place.lock, error))? {
                // Somebody removed the lock's file under its holder, who goes on in the old one.
                file.unlock();
                return Ok(Taking::Busy(file));
            }
            if !place.has_anchor(anchor) {
                return Ok(Taking::Moved);
            }
        }
        let side = match side(place, &file)? {
            Side::NotNeeded => None,
            Side::Locked(side) => Some(side),
            Side::Busy => {
                file.unlock();
                return Ok(Taking::Busy(file));
            }
        };
        let ledger = Ledger::of(side.as_ref().unwrap_or(&file).contents());
        let now = clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // The clock as floor lets tokens rise also when the file was removed, and the counter with it.
        let floor = u64::try_from(now.as_micros()).unwrap_or(0).max(elsewhere(place, &file, side.is_some())?);
        let token = ledger.advance(floor).map_err(|error| fault("write the counter of", &place.lock, error))?;
        let granted_ms = u64::try_from(now.as_millis()).unwrap_or(0);
        if let Err(error) = ledger.enter(&Entry::new(claim.attempt, token, granted_ms, &claim.record)) {
            // The lock is ours all the same; others will not see whose it is.
            tracing::debug!(target: "distlock", %error, "the holder of a lock could not be written down");
        }
        Ok(Taking::Taken(Hold { attempt: claim.attempt, token, place: place.clone(), anchor, side, file }))
    }

    pub(super) fn grant(&self) -> Grant {
        Grant::new(self.token, None)
    }

    /// Whether the lock is still ours alone: one of the files that we have locked must still be in its place.
    pub(super) fn is_intact(&self) -> Result<bool> {
        let is_anchored = |anchor: &LockFile| self.place.has_anchor(anchor);
        Ok(self.place.has(&self.file)? || self.anchor.as_ref().is_some_and(is_anchored))
    }

    pub(super) fn descriptor(&self) -> Result<OwnedFd> {
        self.file.copy().map_err(|error| fault("copy the descriptor of", &self.place.lock, error))
    }

    /// Frees the lock.
    pub(super) fn end(self) -> Release {
        if !self.is_intact().unwrap_or(true) {
            return Release::NotOurs;
        }
        // A child that has the descriptor goes on as the holder, under our name.
        if !self.file.is_inherited() {
            let written = self.side.as_ref().unwrap_or(&self.file).contents();
            // Should that fail, the kernel still knows that nobody holds the lock.
            let _ = Ledger::of(written).strike(self.attempt);
        }
        Release::Released
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
        let what = if content == Content::Foreign { "has contents that are not ours" } else { "cannot be written to" };
        return Err(Error::new(ErrorKind::Foreign, format!("{} {what}", place.lock.display())));
    };
    for _ in 0..super::TRIES {
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
    use std::time::Duration;

    use super::super::place::Places;
    use super::super::tests::Scratch;
    use super::*;
    use crate::key::Key;
    use crate::owner::{OwnerId, Process, Record};

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
        assert!(matches!(take(&place, place.open().unwrap()), Taking::Busy(_)));
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
        assert!(matches!(take(&place, place.open().unwrap()), Taking::Busy(_)), "its holder is still there");
        assert_eq!(hold.end(), Release::Released);
    }
}
