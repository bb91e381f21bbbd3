//! The queue of a lock's waiters in all processes, in the order in which they came.
//!
//! A directory beside the lock: a ticket for each waiter, whose file name begins with its number, and a liveness file
//! for each process, whose flock shows that the process lives. When a process is killed the kernel frees that flock,
//! and all its tickets are void at once. That costs one descriptor per process and lock, however many tasks wait.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT};

use crate::engines::file::error::file_error;
use crate::engines::file::protocol::lock_contents::{self, LONGEST_ENTRY};
use crate::engines::file::protocol::own_directory;
use crate::engines::file::wire::lock_file::{CHANGED_FILE_TRIES, Links, LockFile};
use crate::engines::shared::admission;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::mode::{AskedMode, Mode};
use crate::types::owner::Record;
use crate::types::token::AttemptId;

const LIVE: &str = ".live";

/// The queue of one lock.
#[derive(Debug, Clone)]
pub(crate) struct TicketQueue {
    dir: PathBuf,
}

/// Where a claim stands in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The claim has to wait for no live waiter.
    First,
    /// The nearest live waiter that it has to wait for, and how many tickets there are up to that one.
    Behind(TicketName, usize),
    /// The claim's ticket was removed.
    Gone,
}

impl TicketQueue {
    pub(crate) fn at(dir: &Path) -> TicketQueue {
        TicketQueue { dir: dir.to_owned() }
    }

    /// Returns the position of a claim in `mode` with the ticket `mine`, or with none yet. Removes the files of dead
    /// processes on the way, and passes over waiters that live but are `stuck`.
    pub(crate) fn position(
        &self,
        mine: Option<TicketName>,
        mode: Mode,
        stuck: impl Fn(TicketName) -> bool,
    ) -> Result<Position> {
        let listed = self.list()?;
        if mine.is_some_and(|mine| listed.tickets.binary_search(&mine).is_err()) {
            return Ok(Position::Gone);
        }
        let before = listed.tickets.iter().take_while(|ticket| mine.is_none_or(|mine| **ticket < mine));
        let before: Vec<TicketName> = before.copied().collect();
        let mut live = LiveProcesses::new(self, mine);
        for (index, ticket) in before.iter().enumerate().rev() {
            if !live.has(ticket.liveness) {
                self.discard(&ticket.to_string());
            } else if admission::waits_behind(mode, ticket.mode) && !stuck(*ticket) {
                return Ok(Position::Behind(*ticket, index + 1));
            }
        }
        for liveness in listed.liveness.into_iter().filter(|liveness| !live.has(*liveness)) {
            self.discard(&liveness_name(liveness));
        }
        if mine.is_none() {
            self.remove_if_empty();
        }
        Ok(Position::First)
    }

    /// Returns the mode of a live waiter other than `attempt` that disagrees with a claim. A waiter that has not written its
    /// record yet counts as one that resizes its semaphore.
    pub(crate) fn disagreeing(&self, asked: AskedMode, attempt: AttemptId) -> Result<Option<Mode>> {
        let mut live = LiveProcesses::new(self, None);
        let others = self.list()?.tickets.into_iter().filter(|ticket| ticket.attempt != attempt);
        let agrees = |ticket: &TicketName, resizes| asked.agrees_with(AskedMode { mode: ticket.mode, resizes });
        let resizes = |ticket: &TicketName| self.record(*ticket).is_none_or(|record| record.resizes);
        let mut against = others.filter(|ticket| !agrees(ticket, false) && !agrees(ticket, resizes(ticket)));
        Ok(against.find(|ticket| live.has(ticket.liveness)).map(|ticket| ticket.mode))
    }

    /// Whether both tickets are there and the process of `before` lives.
    pub(crate) fn is_behind(&self, mine: TicketName, before: TicketName) -> bool {
        let is_there = |ticket| rustix::fs::lstat(self.ticket_path(ticket)).is_ok();
        is_there(mine) && is_there(before) && (mine.liveness == before.liveness || self.is_live(before.liveness))
    }

    /// Returns the records of the live waiters, the next one first. Changes nothing.
    pub(crate) fn waiters(&self) -> Result<Vec<Arc<Record>>> {
        let listed = self.list()?;
        let mut live = LiveProcesses::new(self, None);
        let live = listed.tickets.into_iter().filter(|ticket| live.has(ticket.liveness));
        // A waiter that left since, or has not written its record yet, is left out.
        Ok(live.filter_map(|ticket| self.record(ticket)).map(Arc::new).collect())
    }

    /// Returns a waiter's record. The file may be another user's: no link is followed, no pipe waited for, and no
    /// more is read than a record can have.
    fn record(&self, ticket: TicketName) -> Option<Record> {
        let file = LockFile::open_to_read(&self.ticket_path(ticket), Links::Refuse).ok()??;
        let json = lock_contents::read_at(file.contents(), 0, LONGEST_ENTRY).ok()?;
        serde_json::from_slice(&json).ok()
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn ticket_path(&self, ticket: TicketName) -> PathBuf {
        self.dir.join(ticket.to_string())
    }

    /// Returns the waiter's last beat, by its own clock; `None` when it has left.
    pub(crate) fn beat(&self, ticket: TicketName) -> Option<Moment> {
        let stat = rustix::fs::lstat(self.ticket_path(ticket)).ok()?;
        let seconds = u64::try_from(stat.st_mtime).ok()?;
        Some(Moment::from_nanos(
            seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(stat.st_mtime_nsec).ok()?)?,
        ))
    }

    pub(crate) fn liveness_path(&self, liveness: AttemptId) -> PathBuf {
        self.dir.join(liveness_name(liveness))
    }

    fn list(&self) -> Result<Listing> {
        let mut listed = Listing::default();
        let entries = match own_directory::read(&self.dir) {
            // A process that may not read the queue cannot write to it either: it competes as flock(1) does.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                return Ok(listed);
            }
            entries => entries.map_err(|error| file_error("read the queue", &self.dir, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| file_error("read the queue", &self.dir, error))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(liveness) = name.strip_suffix(LIVE).and_then(|id| id.parse().ok()) {
                listed.liveness.push(liveness);
            } else if let Ok(ticket) = name.parse() {
                listed.tickets.push(ticket);
            }
        }
        listed.tickets.sort_unstable();
        Ok(listed)
    }

    /// Whether a process lives: its liveness file is locked. A file that cannot be opened counts as locked, so that
    /// no live waiter is passed over.
    fn is_live(&self, liveness: AttemptId) -> bool {
        match LockFile::open_to_read(&self.liveness_path(liveness), Links::Refuse) {
            Ok(Some(file)) => !file.probe().unwrap_or(false),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Removes a file that was found dead. Names are never reused, so it stays dead.
    fn discard(&self, name: &str) {
        let _ = std::fs::remove_file(self.dir.join(name));
    }

    /// Removes the directory if nothing is in it.
    fn remove_if_empty(&self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}

#[derive(Debug, Default)]
struct Listing {
    tickets: Vec<TicketName>,
    liveness: Vec<AttemptId>,
}

/// Which processes live; each is probed once.
struct LiveProcesses<'a> {
    queue: &'a TicketQueue,
    known: HashMap<AttemptId, bool>,
}

impl<'a> LiveProcesses<'a> {
    fn new(queue: &'a TicketQueue, mine: Option<TicketName>) -> Self {
        LiveProcesses { queue, known: mine.map(|mine| (mine.liveness, true)).into_iter().collect() }
    }

    fn has(&mut self, liveness: AttemptId) -> bool {
        *self.known.entry(liveness).or_insert_with(|| self.queue.is_live(liveness))
    }
}

/// The name of a ticket. Sorted, the names are the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TicketName {
    number: u64,
    attempt: AttemptId,
    pub(crate) liveness: AttemptId,
    mode: Mode,
}

impl TicketName {
    /// Returns when it was taken, or a little later.
    pub(crate) fn taken(self) -> Moment {
        Moment::from_nanos(self.number)
    }

    fn order(&self) -> (u64, AttemptId, AttemptId) {
        (self.number, self.attempt, self.liveness)
    }
}

impl Ord for TicketName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for TicketName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for TicketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{}-{}", self.number, self.attempt, self.liveness)?;
        match self.mode {
            Mode::Exclusive | Mode::Reentrant => Ok(()),
            Mode::Shared => f.write_str("-s"),
            Mode::Slot { of } => write!(f, "-{of}"),
        }
    }
}

impl FromStr for TicketName {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let (number, attempt, liveness, mode) = match parts[..] {
            [number, attempt, liveness] => (number, attempt, liveness, Mode::Exclusive),
            [number, attempt, liveness, "s"] => (number, attempt, liveness, Mode::Shared),
            [number, attempt, liveness, of] => (number, attempt, liveness, Mode::Slot { of: number_in(of)? }),
            _ => return Err(Error::invalid("ticket", text)),
        };
        let name =
            TicketName { number: number_in(number)?, attempt: attempt.parse()?, liveness: liveness.parse()?, mode };
        if name.to_string() == text { Ok(name) } else { Err(Error::invalid("ticket", text)) }
    }
}

fn number_in<N: FromStr<Err: fmt::Display>>(text: &str) -> Result<N> {
    text.parse().map_err(|error| Error::invalid("ticket", error))
}

/// Shows to the waiters of a lock that this process lives. Removed when the last ticket of the process is gone.
#[derive(Debug)]
pub(crate) struct LivenessFile {
    queue: TicketQueue,
    id: AttemptId,
    file: LockFile,
}

impl LivenessFile {
    /// # Errors
    /// Those of the file system; without the right to write there, the process cannot queue.
    pub(crate) fn open(queue: &TicketQueue) -> io::Result<LivenessFile> {
        for _ in 0..CHANGED_FILE_TRIES {
            own_directory::make(&queue.dir)?;
            let id = AttemptId::random();
            let path = queue.liveness_path(id);
            let file = match LockFile::open(&path, Links::Refuse) {
                // The last waiter that left removed the directory.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            // Before it was locked it looked dead: another process may have removed it, or be about to.
            if file.try_lock()? && file.is_linked() {
                return Ok(LivenessFile { queue: queue.clone(), id, file });
            }
            let _ = std::fs::remove_file(path);
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    /// Whether other processes can still see it.
    pub(crate) fn is_intact(&self) -> bool {
        self.file.is_linked()
    }
}

impl Drop for LivenessFile {
    fn drop(&mut self) {
        self.queue.discard(&liveness_name(self.id));
        self.queue.remove_if_empty();
    }
}

/// A place in the queue. Dropping it gives up the place.
#[derive(Debug)]
pub(crate) struct Ticket {
    name: TicketName,
    liveness: Arc<LivenessFile>,
}

impl Ticket {
    /// Takes a place behind all visible tickets.
    ///
    /// The number is the machine's clock, which all processes share; where a ticket is ahead of that, one more than
    /// the highest.
    pub(crate) fn take(
        liveness: Arc<LivenessFile>,
        attempt: AttemptId,
        now: Moment,
        record: &Record,
    ) -> Result<Ticket> {
        let last = liveness.queue.list()?.tickets.last().map_or(0, |last| last.number);
        let number = now.as_nanos().max(last.saturating_add(1));
        let name = TicketName { number, attempt, liveness: liveness.id, mode: record.mode };
        let path = liveness.queue.ticket_path(name);
        let json = serde_json::to_vec(record).unwrap_or_default();
        let ticket = Ticket { name, liveness };
        let written = File::create_new(&path).and_then(|mut file| file.write_all(&json));
        written.map_err(|error| file_error("queue at", &path, error))?;
        Ok(ticket)
    }

    pub(crate) fn name(&self) -> TicketName {
        self.name
    }

    /// Shows that the waiter goes on: a live process may have a waiter that hangs.
    pub(crate) fn beat(&self, now: Moment) {
        let (seconds, nanos) = (now.as_nanos() / 1_000_000_000, now.as_nanos() % 1_000_000_000);
        // Both fit: the seconds are less than 2^35.
        let now = Timespec { tv_sec: seconds as i64, tv_nsec: nanos as i64 };
        let times = Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: now };
        let path = self.liveness.queue.ticket_path(self.name);
        // A waiter that cannot beat seems stuck since it came, and may be passed over.
        let _ = rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    /// Gives up the place now, though a pending wait may still have the ticket.
    pub(crate) fn give_up(&self) {
        self.liveness.queue.discard(&self.name.to_string());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn liveness_name(liveness: AttemptId) -> String {
    format!("{liveness}{LIVE}")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::engines::file::tests::Scratch;
    use crate::types::clock::Clock;
    use crate::types::owner::OwnerId;
    use crate::types::owner::Process;

    fn ticket(liveness: &Arc<LivenessFile>, owner: &str) -> Ticket {
        let record = Record::new(OwnerId::new(owner).unwrap(), Process::current(), None, SystemTime::now());
        Ticket::take(liveness.clone(), AttemptId::random(), Clock::system().now(), &record).unwrap()
    }

    fn queue(scratch: &Scratch) -> (TicketQueue, Arc<LivenessFile>) {
        let queue = TicketQueue::at(&scratch.path().join("a.q"));
        let liveness = Arc::new(LivenessFile::open(&queue).unwrap());
        (queue, liveness)
    }

    #[test]
    fn each_stands_behind_the_one_who_came_before_and_nothing_is_left() {
        let scratch = Scratch::new();
        let (queue, liveness) = queue(&scratch);
        let other = Arc::new(LivenessFile::open(&queue).unwrap());
        let (a, b, c) = (ticket(&liveness, "a"), ticket(&other, "b"), ticket(&liveness, "c"));
        assert_eq!(queue.position(Some(a.name()), Mode::Exclusive, |_| false).unwrap(), Position::First);
        assert_eq!(queue.position(Some(c.name()), Mode::Exclusive, |_| false).unwrap(), Position::Behind(b.name(), 2));
        assert_eq!(queue.position(None, Mode::Exclusive, |_| false).unwrap(), Position::Behind(c.name(), 3));
        let owners: Vec<_> = queue.waiters().unwrap().iter().map(|record| record.owner.to_string()).collect();
        assert_eq!(owners, ["a", "b", "c"]);
        drop((b, other));
        assert_eq!(queue.position(Some(c.name()), Mode::Exclusive, |_| false).unwrap(), Position::Behind(a.name(), 1));
        drop((a, c, liveness));
        assert!(!queue.dir.exists());
    }

    #[test]
    fn the_dead_are_skipped_and_swept_away() {
        let scratch = Scratch::new();
        let (queue, liveness) = queue(&scratch);
        let (dead, mine) = (ticket(&liveness, "dead"), ticket(&Arc::new(LivenessFile::open(&queue).unwrap()), "mine"));
        // As when the process is killed: the flock is freed, the files stay.
        liveness.file.unlock();
        std::mem::forget(dead);
        assert_eq!(queue.waiters().unwrap().len(), 1);
        assert_eq!(queue.position(Some(mine.name()), Mode::Exclusive, |_| false).unwrap(), Position::First);
        drop(mine);
        assert!(!queue.dir.exists());
    }

    #[test]
    fn a_newcomer_alone_clears_away_what_the_dead_left() {
        let scratch = Scratch::new();
        let (queue, liveness) = queue(&scratch);
        liveness.file.unlock();
        std::mem::forget(ticket(&liveness, "dead"));
        assert_eq!(queue.position(None, Mode::Exclusive, |_| false).unwrap(), Position::First);
        assert!(!queue.dir.exists());
    }

    #[test]
    fn a_ticket_that_somebody_removed_is_noticed() {
        let scratch = Scratch::new();
        let (queue, liveness) = queue(&scratch);
        let mine = ticket(&liveness, "mine");
        std::fs::remove_dir_all(&queue.dir).unwrap();
        assert_eq!(queue.position(Some(mine.name()), Mode::Exclusive, |_| false).unwrap(), Position::Gone);
        assert!(!liveness.is_intact());
    }

    #[test]
    fn numbers_rise_even_when_the_clock_stands_still() {
        let scratch = Scratch::new();
        let (_line, liveness) = queue(&scratch);
        let (clock, _hand) = Clock::manual();
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::now());
        let take = || Ticket::take(liveness.clone(), AttemptId::random(), clock.now(), &record).unwrap();
        let (a, b) = (take(), take());
        assert!(a.name().number < b.name().number);
    }

    #[test]
    fn only_names_as_we_write_them_are_tickets() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Slot { of: 3 }] {
            let name = TicketName { number: 7, attempt: AttemptId::random(), liveness: AttemptId::random(), mode };
            assert_eq!(name.to_string().parse::<TicketName>().unwrap(), name);
            let text = name.to_string();
            for bad in ["", "7", "x-y-z", &text[1..], &format!("{text}-x"), &format!("{text}-03"), &format!("{text}-")]
            {
                assert!(bad.parse::<TicketName>().is_err(), "{bad}");
            }
        }
    }

    #[test]
    fn readers_pass_by_readers_and_nobody_else() {
        let scratch = Scratch::new();
        let (queue, liveness) = queue(&scratch);
        let take = |mode| {
            let record = Record::new(OwnerId::random(), Process::current(), None, SystemTime::now()).with_mode(mode);
            Ticket::take(liveness.clone(), AttemptId::random(), Clock::system().now(), &record).unwrap()
        };
        let (first, second) = (take(Mode::Shared), take(Mode::Shared));
        let (writer, late) = (take(Mode::Exclusive), take(Mode::Shared));
        let position = |ticket: &Ticket| queue.position(Some(ticket.name()), ticket.name().mode, |_| false).unwrap();
        assert_eq!((position(&first), position(&second)), (Position::First, Position::First));
        assert_eq!(position(&writer), Position::Behind(second.name(), 2));
        assert_eq!(position(&late), Position::Behind(writer.name(), 3));
        assert_eq!(queue.position(None, Mode::Shared, |_| false).unwrap(), Position::Behind(writer.name(), 3));
        let slots = Mode::Slot { of: 2 };
        assert_eq!(queue.disagreeing(slots.into(), AttemptId::random()).unwrap(), Some(Mode::Shared));
        assert_eq!(queue.disagreeing(Mode::Shared.into(), AttemptId::random()).unwrap(), None);
        drop((first, second, writer));
        assert_eq!(position(&late), Position::First);
        assert_eq!(
            queue.disagreeing(slots.into(), late.name().attempt).unwrap(),
            None,
            "it does not disagree with itself"
        );
    }

    #[test]
    fn fuzz_names_of_tickets_are_only_those_that_we_write() {
        distlock_testkit::fuzz("texts.txt", |input| {
            let text = String::from_utf8_lossy(input);
            assert!(
                text.parse::<TicketName>().is_err() || text.parse::<TicketName>().is_ok_and(|n| n.to_string() == text)
            );
        });
    }
}
