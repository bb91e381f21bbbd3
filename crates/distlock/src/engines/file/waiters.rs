//! The waiters of this process, and what each of them listens to.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustix::fs::inotify::WatchFlags;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::protocol::lock_contents::LockContents;
use super::protocol::lock_paths::LockPaths;
use super::protocol::ticket_queue::{LivenessFile, Ticket, TicketName, TicketQueue};
use super::wire::inotify::{Inotify, Subscription};
use super::wire::lock_file::{FileId, LockFile};
use crate::contract::Claim;
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// From this position in the queue on, a process that has no inotify instance yet polls: a user has only 128
/// instances, for all programs.
const LAST_NOTIFIED: usize = 64;

/// A waiter that did not claim again for so long is suspended or hangs, and is passed over until it does. By then it
/// would have polled ten times.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often a waiter that is not notified of changes reads the whole queue.
const REREAD_AFTER: Duration = Duration::from_secs(2);

/// The waiters of this process.
pub(super) struct Waiters {
    clock: Clock,
    keeper: OnceLock<Handle>,
    inotify: Mutex<Option<Arc<Inotify>>>,
    waiters: Mutex<HashMap<AttemptId, Arc<Waiter>>>,
    liveness_files: Mutex<HashMap<PathBuf, Weak<LivenessFile>>>,
}

impl Waiters {
    pub(super) fn new(clock: Clock) -> Waiters {
        Waiters {
            clock,
            keeper: OnceLock::new(),
            inotify: Mutex::default(),
            waiters: Mutex::default(),
            liveness_files: Mutex::default(),
        }
    }

    pub(super) fn attach(&self, keeper: &Handle) {
        let _ = self.keeper.set(keeper.clone());
    }

    /// Sleeps for `length` on the keeper's timer: the caller's runtime may have none.
    pub(super) async fn pause(&self, length: Duration) {
        let sleep = {
            let _inside = self.keeper.get().map(Handle::enter);
            tokio::time::sleep(length)
        };
        sleep.await;
    }

    pub(super) fn get(&self, attempt: AttemptId) -> Option<Arc<Waiter>> {
        self.waiters.lock().get(&attempt).cloned()
    }

    /// Takes a place behind all other waiters. Returns false when this process may not write to the queue.
    pub(super) fn enter(&self, claim: &Claim, queue: &TicketQueue, file: Option<LockFile>) -> Result<bool> {
        let liveness = match self.liveness(queue) {
            Ok(liveness) => liveness,
            Err(error) => {
                tracing::debug!(target: "distlock", %error, "no place in the queue of a lock; polling");
                return Ok(false);
            }
        };
        let now = self.clock.now();
        let ticket = Ticket::take(liveness, claim.attempt, now, &claim.record)?;
        ticket.beat(now);
        let waiter = Waiter {
            ticket,
            hint: Arc::default(),
            listening: Mutex::default(),
            file: Mutex::new(file),
            last_read: Mutex::default(),
            seen: Mutex::default(),
        };
        self.waiters.lock().insert(claim.attempt, Arc::new(waiter));
        Ok(true)
    }

    /// Gives up the place of `attempt`, if it has one.
    pub(super) fn leave(&self, attempt: AttemptId) {
        let waiter = self.waiters.lock().remove(&attempt);
        // A pending wait still has the waiter, and must not keep the place.
        if let Some(waiter) = waiter {
            waiter.ticket.give_up();
        }
    }

    pub(super) fn close(&self) {
        let all: Vec<AttemptId> = self.waiters.lock().keys().copied().collect();
        all.into_iter().for_each(|attempt| self.leave(attempt));
        *self.inotify.lock() = None;
    }

    /// Listens for the waiter `before` to leave, by itself or with its process. Returns true when it listens only
    /// since this call.
    pub(super) fn follow(&self, waiter: &Waiter, queue: &TicketQueue, before: TicketName, ahead: usize) -> bool {
        let Some(inotify) = self.inotify(ahead) else { return false };
        let (ticket, liveness) = (queue.ticket_path(before), queue.liveness_path(before.liveness));
        // Other processes open a liveness file only for reading; only its own process has it open for writing.
        let paths = [(ticket.as_path(), WatchFlags::DELETE_SELF), (liveness.as_path(), WatchFlags::CLOSE_WRITE)];
        waiter.listen_to(&inotify, Target::Before(before), &paths)
    }

    /// Listens for the lock's file to be closed, removed or replaced.
    pub(super) fn listen(&self, waiter: &Waiter, paths: &LockPaths, file: &LockFile) {
        let Some(inotify) = self.inotify(0) else { return };
        // Clients of distlock hold the lock's file open for writing. The last close of another holder may be one for
        // reading, but so is the close of each inspection: those notifications are subscribed to only when they are
        // needed.
        let ours = LockContents::of(file.contents()).has_live_holder();
        let closed = if ours { WatchFlags::CLOSE_WRITE } else { WatchFlags::CLOSE };
        let events = closed | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        waiter.listen_to(&inotify, Target::Lock(file.id(), ours), &[(&paths.lock, events)]);
    }

    fn inotify(&self, ahead: usize) -> Option<Arc<Inotify>> {
        let mut inotify = self.inotify.lock();
        if inotify.as_ref().is_some_and(|inotify| !inotify.is_alive()) {
            *inotify = None;
        }
        if inotify.is_none() && ahead < LAST_NOTIFIED {
            let started = Inotify::start(self.keeper.get()?);
            *inotify = started
                .map(Arc::new)
                .inspect_err(|error| {
                    tracing::debug!(target: "distlock", %error, "no inotify; polling");
                })
                .ok();
        }
        inotify.clone()
    }

    fn liveness(&self, queue: &TicketQueue) -> io::Result<Arc<LivenessFile>> {
        let mut liveness_files = self.liveness_files.lock();
        let open = liveness_files.get(queue.dir()).and_then(Weak::upgrade).filter(|liveness| liveness.is_intact());
        if let Some(liveness) = open {
            return Ok(liveness);
        }
        let liveness = Arc::new(LivenessFile::open(queue)?);
        liveness_files.retain(|_, liveness| liveness.strong_count() > 0);
        liveness_files.insert(queue.dir().to_owned(), Arc::downgrade(&liveness));
        Ok(liveness)
    }
}

/// A waiter of this process. Dropping it gives up its place.
#[derive(Debug)]
pub(super) struct Waiter {
    ticket: Ticket,
    hint: Arc<Notify>,
    listening: Mutex<Option<Listening>>,
    /// The lock's file, once this waiter is the first: another try must not close it, which would notify the waiter
    /// itself.
    file: Mutex<Option<LockFile>>,
    /// The waiter before this one when the queue was last read, and when that was.
    last_read: Mutex<Option<(TicketName, Moment)>>,
    /// The last beat of each waiter before this one, and when it was first seen.
    seen: Mutex<HashMap<TicketName, (Moment, Moment)>>,
}

/// What a waiter listens to.
#[derive(Debug)]
struct Listening {
    target: Target,
    inotify: Weak<Inotify>,
    _subscriptions: Vec<Subscription>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Before(TicketName),
    Lock(FileId, bool),
}

/// Whether the waiter of `ticket` is stuck, judged by its last beat alone, for a claim that has not watched it. All
/// processes of a machine share one clock; a process whose clock was set apart passes over waiters, or waits for
/// them, without need.
pub(super) fn seems_stuck(ticket: TicketName, beat: Option<Moment>, now: Moment) -> bool {
    let Some(beat) = beat else { return false };
    // Before the first beat, the file's time is the wall clock's, which is ahead of all beats.
    let beat = if beat > now.after(STUCK_AFTER) { ticket.taken() } else { beat };
    now.since(beat) >= STUCK_AFTER
}

impl Waiter {
    pub(super) fn name(&self) -> TicketName {
        self.ticket.name()
    }

    /// Shows to the waiters behind that this one goes on.
    pub(super) fn beat(&self, now: Moment) {
        self.ticket.beat(now);
    }

    /// Whether the waiter `before`, whose last beat is `beat`, is stuck. Only this process's clock counts.
    pub(super) fn finds_stuck(&self, before: TicketName, beat: Option<Moment>, now: Moment) -> bool {
        let Some(beat) = beat else { return false };
        let mut seen = self.seen.lock();
        let (last, since) = seen.entry(before).or_insert((beat, now));
        if *last != beat {
            (*last, *since) = (beat, now);
        }
        now.since(*since) >= STUCK_AFTER
    }

    /// Returns when an event came from what the waiter listens to, also if it came before this call.
    pub(super) async fn hint(&self) {
        self.hint.notified().await;
    }

    /// Whether the waiter will be notified of changes.
    pub(super) fn is_notified(&self) -> bool {
        self.listening.lock().as_ref().is_some_and(Listening::is_alive)
    }

    /// Returns the waiter before this one, if this one listens to it.
    pub(super) fn follows(&self) -> Option<TicketName> {
        match self.listening.lock().as_ref().filter(|listening| listening.is_alive())?.target {
            Target::Before(before) => Some(before),
            Target::Lock(..) => None,
        }
    }

    /// Records that `before` was the waiter before this one when the queue was read.
    pub(super) fn stands_behind(&self, before: TicketName, now: Moment) {
        *self.last_read.lock() = Some((before, now));
    }

    /// Returns the waiter before this one, if the queue was read a moment ago. To read the queue for each poll would
    /// cost a time quadratic in its length; never to read it would miss that it has become short enough for inotify.
    pub(super) fn stood_behind(&self, now: Moment) -> Option<TicketName> {
        let (before, read) = (*self.last_read.lock())?;
        (now.since(read) < REREAD_AFTER).then_some(before)
    }

    /// Returns the lock's file, which the first in the queue keeps open.
    pub(super) fn file(&self) -> MutexGuard<'_, Option<LockFile>> {
        self.file.lock()
    }

    /// Returns true when the waiter did not listen to `target` before, or when a file is gone already.
    fn listen_to(&self, inotify: &Arc<Inotify>, target: Target, paths: &[(&Path, WatchFlags)]) -> bool {
        let mut listening = self.listening.lock();
        if listening.as_ref().is_some_and(|listening| listening.target == target && listening.is_alive()) {
            return false;
        }
        *listening = None;
        let subscribed = paths.iter().map(|(path, events)| inotify.subscribe(path, *events, &self.hint));
        match subscribed.collect::<io::Result<Vec<_>>>() {
            Ok(subscriptions) => {
                *listening =
                    Some(Listening { target, inotify: Arc::downgrade(inotify), _subscriptions: subscriptions });
                true
            }
            // A file that is gone already is a change, too. Any other error is a limit: the waiter polls.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Listening {
    fn is_alive(&self) -> bool {
        self.inotify.upgrade().is_some_and(|inotify| inotify.is_alive())
    }
}
