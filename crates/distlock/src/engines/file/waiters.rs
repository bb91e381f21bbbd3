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

use super::inspect;
use super::protocol::lock_paths::Place;
use super::protocol::ticket_queue::{Line, Session, Ticket, TicketName};
use super::wire::inotify::{Subscription, Watcher};
use super::wire::lock_file::{FileId, LockFile};
use crate::contract::Claim;
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// From this place on a process that has no inotify instance yet polls: a user has only 128 of them, for everything.
const LAST_TOLD: usize = 64;

/// A waiter that did not claim again for so long is suspended or hangs, and is passed over until it does. It would have
/// polled ten times.
const STUCK: Duration = Duration::from_secs(10);

/// How often who is not told of changes reads the whole queue.
const REREAD: Duration = Duration::from_secs(2);

/// The waiters of this process.
pub(super) struct Queue {
    clock: Clock,
    keeper: OnceLock<Handle>,
    watcher: Mutex<Option<Arc<Watcher>>>,
    waiters: Mutex<HashMap<AttemptId, Arc<Waiter>>>,
    sessions: Mutex<HashMap<PathBuf, Weak<Session>>>,
}

impl Queue {
    pub(super) fn new(clock: Clock) -> Queue {
        Queue {
            clock,
            keeper: OnceLock::new(),
            watcher: Mutex::default(),
            waiters: Mutex::default(),
            sessions: Mutex::default(),
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

    pub(super) fn waiter(&self, attempt: AttemptId) -> Option<Arc<Waiter>> {
        locked(&self.waiters).get(&attempt).cloned()
    }

    /// Takes a place behind all others. False: we may not write there.
    pub(super) fn enter(&self, claim: &Claim, line: &Line, file: Option<LockFile>) -> Result<bool> {
        let session = match self.session(line) {
            Ok(session) => session,
            Err(error) => {
                tracing::debug!(target: "distlock", %error, "no place in the queue of a lock; polling");
                return Ok(false);
            }
        };
        let now = self.clock.now();
        let ticket = Ticket::take(session, claim.attempt, now, &claim.record)?;
        ticket.beat(now);
        let waiter = Waiter {
            ticket,
            hint: Arc::default(),
            ear: Mutex::default(),
            file: Mutex::new(file),
            place: Mutex::default(),
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
        *locked(&self.watcher) = None;
    }

    /// Listens for the one before to go, by itself or with its process. True: only since now.
    pub(super) fn follow(&self, waiter: &Waiter, line: &Line, before: TicketName, ahead: usize) -> bool {
        let Some(watcher) = self.watcher(ahead) else { return false };
        let (ticket, session) = (line.ticket_path(before), line.session_path(before.session));
        // Who looks at a session opens it only for reading; for writing it is open in its own process alone.
        let paths = [(ticket.as_path(), WatchFlags::DELETE_SELF), (session.as_path(), WatchFlags::CLOSE_WRITE)];
        waiter.listen_to(&watcher, Target::Before(before), &paths)
    }

    /// Listens for the lock's file to be closed, removed or replaced.
    pub(super) fn listen(&self, waiter: &Waiter, place: &Place, file: &LockFile) {
        let Some(watcher) = self.watcher(0) else { return };
        // Our own clients hold the lock open for writing. Anybody else's last close may be one for reading, but so is
        // each look at the file: those hints we take only when they are needed.
        let ours = inspect::is_held_by_us(file);
        let closed = if ours { WatchFlags::CLOSE_WRITE } else { WatchFlags::CLOSE };
        let events = closed | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        waiter.listen_to(&watcher, Target::Lock(file.id(), ours), &[(&place.lock, events)]);
    }

    fn watcher(&self, ahead: usize) -> Option<Arc<Watcher>> {
        let mut watcher = locked(&self.watcher);
        if watcher.as_ref().is_some_and(|watcher| !watcher.is_alive()) {
            *watcher = None;
        }
        if watcher.is_none() && ahead < LAST_TOLD {
            let started = Watcher::start(self.keeper.get()?);
            *watcher = started
                .map(Arc::new)
                .inspect_err(|error| {
                    tracing::debug!(target: "distlock", %error, "no inotify; polling");
                })
                .ok();
        }
        watcher.clone()
    }

    fn session(&self, line: &Line) -> io::Result<Arc<Session>> {
        let mut sessions = locked(&self.sessions);
        let open = sessions.get(line.dir()).and_then(Weak::upgrade).filter(|session| session.is_intact());
        if let Some(session) = open {
            return Ok(session);
        }
        let session = Arc::new(Session::open(line)?);
        sessions.retain(|_, session| session.strong_count() > 0);
        sessions.insert(line.dir().to_owned(), Arc::downgrade(&session));
        Ok(session)
    }
}

/// One who waits. Dropping it gives its place up.
#[derive(Debug)]
pub(super) struct Waiter {
    ticket: Ticket,
    hint: Arc<Notify>,
    ear: Mutex<Option<Ear>>,
    /// The lock's file, once this waiter is the first: trying again must not close it.
    file: Mutex<Option<LockFile>>,
    /// The waiter before it when the queue was last read, and when that was.
    place: Mutex<Option<(TicketName, Moment)>>,
    /// The last beat of those before it, and when that was first seen.
    seen: Mutex<HashMap<TicketName, (Moment, Moment)>>,
}

/// What a waiter listens to.
#[derive(Debug)]
struct Ear {
    target: Target,
    watcher: Weak<Watcher>,
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
    let beat = if beat > now.after(STUCK) { ticket.taken() } else { beat };
    now.since(beat) >= STUCK
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
        now.since(*since) >= STUCK
    }

    /// Returns when something happened to what the waiter listens to, also if it happened before this call.
    pub(super) async fn hint(&self) {
        self.hint.notified().await;
    }

    /// Whether hints will come.
    pub(super) fn is_told(&self) -> bool {
        locked(&self.ear).as_ref().is_some_and(Ear::hears)
    }

    /// The waiter before it, when it listens to that one.
    pub(super) fn follows(&self) -> Option<TicketName> {
        match locked(&self.ear).as_ref().filter(|ear| ear.hears())?.target {
            Target::Before(before) => Some(before),
            Target::Lock(..) => None,
        }
    }

    /// The queue was read: `before` is the one before it.
    pub(super) fn stands_behind(&self, before: TicketName, now: Moment) {
        *locked(&self.place) = Some((before, now));
    }

    /// The waiter before it, when the queue was read a moment ago. To read it for each poll would cost as much as there
    /// are waiters, for each of them; never to read it would be never to hear that it is short enough for a watcher.
    pub(super) fn stood_behind(&self, now: Moment) -> Option<TicketName> {
        let (before, read) = (*locked(&self.place))?;
        (now.since(read) < REREAD).then_some(before)
    }

    /// The lock's file, which the first in the queue keeps open.
    pub(super) fn file(&self) -> MutexGuard<'_, Option<LockFile>> {
        locked(&self.file)
    }

    /// True when it did not listen to this before, or cannot.
    fn listen_to(&self, watcher: &Arc<Watcher>, target: Target, paths: &[(&Path, WatchFlags)]) -> bool {
        let mut ear = locked(&self.ear);
        if ear.as_ref().is_some_and(|ear| ear.target == target && ear.hears()) {
            return false;
        }
        *ear = None;
        let subscribed = paths.iter().map(|(path, events)| watcher.subscribe(path, *events, &self.hint));
        match subscribed.collect::<io::Result<Vec<_>>>() {
            Ok(subscriptions) => {
                *ear = Some(Ear { target, watcher: Arc::downgrade(watcher), _subscriptions: subscriptions });
                true
            }
            // Gone already: that is news too. Anything else, a limit: the waiter polls.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Ear {
    fn hears(&self) -> bool {
        self.watcher.upgrade().is_some_and(|watcher| watcher.is_alive())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
