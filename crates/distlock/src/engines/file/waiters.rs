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

/// From this place on a process that has no inotify instance yet polls: a user has only 128 of them, for everything.
const LAST_NOTIFIED: usize = 64;

/// A waiter that did not claim again for so long is suspended or hangs, and is passed over until it does. It would have
/// polled ten times.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How often who is not told of changes reads the whole queue.
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

    /// Waits for so long, by the keeper's timer: the caller's runtime may have none.
    pub(super) async fn pause(&self, length: Duration) {
        let sleep = {
            let _inside = self.keeper.get().map(Handle::enter);
            tokio::time::sleep(length)
        };
        sleep.await;
    }

    pub(super) fn get(&self, attempt: AttemptId) -> Option<Arc<Waiter>> {
        locked(&self.waiters).get(&attempt).cloned()
    }

    /// Takes a place behind all others. False: we may not write there.
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
        locked(&self.waiters).insert(claim.attempt, Arc::new(waiter));
        Ok(true)
    }

    /// Gives up the place, if there is one.
    pub(super) fn leave(&self, attempt: AttemptId) {
        let waiter = locked(&self.waiters).remove(&attempt);
        // A wait that is still there must not keep the place.
        if let Some(waiter) = waiter {
            waiter.ticket.give_up();
        }
    }

    pub(super) fn close(&self) {
        let all: Vec<AttemptId> = locked(&self.waiters).keys().copied().collect();
        all.into_iter().for_each(|attempt| self.leave(attempt));
        *locked(&self.inotify) = None;
    }

    /// Listens for the one before to go, by itself or with its process. True: only since now.
    pub(super) fn follow(&self, waiter: &Waiter, queue: &TicketQueue, before: TicketName, ahead: usize) -> bool {
        let Some(inotify) = self.inotify(ahead) else { return false };
        let (ticket, liveness) = (queue.ticket_path(before), queue.liveness_path(before.liveness));
        // Who looks at a session opens it only for reading; for writing it is open in its own process alone.
        let paths = [(ticket.as_path(), WatchFlags::DELETE_SELF), (liveness.as_path(), WatchFlags::CLOSE_WRITE)];
        waiter.listen_to(&inotify, Target::Before(before), &paths)
    }

    /// Listens for the lock's file to be closed, removed or replaced.
    pub(super) fn listen(&self, waiter: &Waiter, paths: &LockPaths, file: &LockFile) {
        let Some(inotify) = self.inotify(0) else { return };
        // Our own clients hold the lock open for writing. Anybody else's last close may be one for reading, but so is
        // each look at the file: those hints we take only when they are needed.
        let ours = LockContents::of(file.contents()).has_live_holder();
        let closed = if ours { WatchFlags::CLOSE_WRITE } else { WatchFlags::CLOSE };
        let events = closed | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        waiter.listen_to(&inotify, Target::Lock(file.id(), ours), &[(&paths.lock, events)]);
    }

    fn inotify(&self, ahead: usize) -> Option<Arc<Inotify>> {
        let mut inotify = locked(&self.inotify);
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
        let mut liveness_files = locked(&self.liveness_files);
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

/// One who waits. Dropping it gives its place up.
#[derive(Debug)]
pub(super) struct Waiter {
    ticket: Ticket,
    hint: Arc<Notify>,
    listening: Mutex<Option<Listening>>,
    /// The lock's file, once this waiter is the first: trying again must not close it.
    file: Mutex<Option<LockFile>>,
    /// The waiter before it when the queue was last read, and when that was.
    last_read: Mutex<Option<(TicketName, Moment)>>,
    /// The last beat of those before it, and when that was first seen.
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

/// Whether one whose last beat is `beat` has shown nothing for too long, to somebody who has not watched it. The clock of
/// all processes of a machine is one; who has set its own apart passes over others, or waits for them, without need.
pub(super) fn seems_stuck(ticket: TicketName, beat: Option<Moment>, now: Moment) -> bool {
    let Some(beat) = beat else { return false };
    // One that has not come to its first beat has the wall clock's time, which is ahead of all beats.
    let beat = if beat > now.after(STUCK_AFTER) { ticket.taken() } else { beat };
    now.since(beat) >= STUCK_AFTER
}

impl Waiter {
    pub(super) fn name(&self) -> TicketName {
        self.ticket.name()
    }

    /// Shows to those behind that it goes on.
    pub(super) fn beat(&self, now: Moment) {
        self.ticket.beat(now);
    }

    /// Whether one before it, whose last beat is `beat`, has shown nothing for too long, by our own clock alone.
    pub(super) fn finds_stuck(&self, before: TicketName, beat: Option<Moment>, now: Moment) -> bool {
        let Some(beat) = beat else { return false };
        let mut seen = locked(&self.seen);
        let (last, since) = seen.entry(before).or_insert((beat, now));
        if *last != beat {
            (*last, *since) = (beat, now);
        }
        now.since(*since) >= STUCK_AFTER
    }

    /// Returns when something happened to what the waiter listens to, also if it happened before this call.
    pub(super) async fn hint(&self) {
        self.hint.notified().await;
    }

    /// Whether hints will come.
    pub(super) fn is_notified(&self) -> bool {
        locked(&self.listening).as_ref().is_some_and(Listening::is_alive)
    }

    /// The waiter before it, when it listens to that one.
    pub(super) fn follows(&self) -> Option<TicketName> {
        match locked(&self.listening).as_ref().filter(|listening| listening.is_alive())?.target {
            Target::Before(before) => Some(before),
            Target::Lock(..) => None,
        }
    }

    /// The queue was read: `before` is the one before it.
    pub(super) fn stands_behind(&self, before: TicketName, now: Moment) {
        *locked(&self.last_read) = Some((before, now));
    }

    /// The waiter before it, when the queue was read a moment ago. To read it for each poll would cost as much as there
    /// are waiters, for each of them; never to read it would be never to hear that it is short enough for a watcher.
    pub(super) fn stood_behind(&self, now: Moment) -> Option<TicketName> {
        let (before, read) = (*locked(&self.last_read))?;
        (now.since(read) < REREAD_AFTER).then_some(before)
    }

    /// The lock's file, which the first in the queue keeps open.
    pub(super) fn file(&self) -> MutexGuard<'_, Option<LockFile>> {
        locked(&self.file)
    }

    /// True when it did not listen to this before, or cannot.
    fn listen_to(&self, inotify: &Arc<Inotify>, target: Target, paths: &[(&Path, WatchFlags)]) -> bool {
        let mut listening = locked(&self.listening);
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
            // Gone already: that is news too. Anything else, a limit: the waiter polls.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Listening {
    fn is_alive(&self) -> bool {
        self.inotify.upgrade().is_some_and(|inotify| inotify.is_alive())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
