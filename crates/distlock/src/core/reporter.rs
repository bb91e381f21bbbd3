//! Delivers events to the observer, in order. The keeper's events are queued here, so that a slow observer delays no
//! renewal.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::types::activity::Tracker;
use crate::types::clock::Clock;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::{Event, EventKind, LossReason, Observer, trace};
use crate::types::key::Key;
use crate::types::owner::{Holder, OwnerId};
use crate::types::token::FencingToken;

/// The longest queue of events; more are dropped.
const MOST_PENDING: usize = 16_384;
/// How long a call waits for an observer that is busy with other events.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

thread_local! {
    /// Whether an observer is being called on this thread: waiting for an event that it causes would deadlock.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// How the keeper's events reach the observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Queued, on a thread of their own.
    Apart,
    /// At once, on the keeper's thread: for a race checker or a simulation, which decides the order of tasks.
    Inline,
}

/// Reports the core's events to the log and the observer.
pub(crate) struct Reporter {
    pub(crate) backend: &'static str,
    queue: Option<ObserverQueue>,
}

impl Reporter {
    /// Returns a reporter of the events of `backend`, for a family with this clock.
    pub(crate) fn new(backend: &'static str, observer: Option<Arc<dyn Observer>>, clock: &Clock) -> Result<Reporter> {
        Ok(Reporter { backend, queue: observer.map(|observer| ObserverQueue::new(observer, clock)).transpose()? })
    }

    /// Reports from a caller's task. The observer has received the event when this returns, unless it is busy for
    /// [`LONGEST_WAIT`].
    pub(crate) fn emit(&self, key: &Key, owner: &OwnerId, token: Option<FencingToken>, kind: EventKind<'_>) {
        let event = Event { key, owner, token, backend: self.backend, kind };
        trace(&event);
        if let Some(queue) = &self.queue {
            queue.tell(&event);
        }
    }

    /// Reports without waiting for the observer, for the keeper and for the drop of a guard.
    pub(crate) fn emit_later(&self, key: &Key, owner: &OwnerId, token: Option<FencingToken>, kind: EventKind<'_>) {
        let event = Event { key, owner, token, backend: self.backend, kind };
        trace(&event);
        if let Some(queue) = &self.queue {
            queue.tell_later(&event);
        }
    }

    /// Waits until the observer has received all events so far, at most for [`LONGEST_WAIT`].
    pub(crate) fn flush(&self) {
        if let Some(queue) = &self.queue {
            queue.flush();
        }
    }
}

/// An observer and its queue of events.
pub(crate) struct ObserverQueue {
    delivery: Arc<Delivery>,
    pace: Pace,
    clock: Clock,
}

struct Delivery {
    observer: Arc<dyn Observer>,
    pending: Mutex<PendingEvents>,
    /// Signals a queued event, a delivered event, or the end.
    changed: Condvar,
    /// Held while the observer is called: it receives one event at a time.
    turn: Mutex<()>,
}

#[derive(Default)]
struct PendingEvents {
    events: VecDeque<OwnedEvent>,
    /// How many events were ever queued, and how many of them were delivered.
    pushed: u64,
    told: u64,
    dropped: u64,
    is_over: bool,
}

impl ObserverQueue {
    pub(crate) fn new(observer: Arc<dyn Observer>, clock: &Clock) -> Result<ObserverQueue> {
        let pace = if clock.is_in_order() { Pace::Inline } else { Pace::Apart };
        let (pending, changed, turn) = (Mutex::default(), Condvar::new(), Mutex::default());
        let delivery = Arc::new(Delivery { observer, pending, changed, turn });
        if pace == Pace::Apart {
            let serves = delivery.clone();
            let failed = |e| Error::new(ErrorKind::Backend, "cannot start the thread of the observer").with_source(e);
            // A thread of their own: observers are the user's code and must delay no lock.
            let thread = std::thread::Builder::new().name("distlock-events".into()).spawn(move || serves.serve());
            thread.map_err(failed)?;
        }
        Ok(ObserverQueue { delivery, pace, clock: clock.clone() })
    }

    /// Delivers an event after all queued ones. It is delivered on the caller's thread only if the observer is idle;
    /// otherwise the observer's thread delivers it, and the caller waits for that at most [`LONGEST_WAIT`].
    pub(crate) fn tell(&self, event: &Event<'_>) {
        if self.pace == Pace::Inline {
            return self.delivery.call(event);
        }
        if let Some(_turn) = self.delivery.free_turn() {
            return self.delivery.call(event);
        }
        if let Some(number) = self.delivery.push(event, self.clock.tracker()) {
            self.delivery.wait_until_told(number);
        }
    }

    /// Queues an event for the observer's thread.
    pub(crate) fn tell_later(&self, event: &Event<'_>) {
        match self.pace {
            Pace::Inline => self.delivery.call(event),
            Pace::Apart => drop(self.delivery.push(event, self.clock.tracker())),
        }
    }

    pub(crate) fn flush(&self) {
        let last = self.delivery.pending().pushed;
        self.delivery.wait_until_told(last);
    }
}

impl Drop for ObserverQueue {
    fn drop(&mut self) {
        self.delivery.pending().is_over = true;
        self.delivery.changed.notify_all();
    }
}

impl Delivery {
    /// Queues an event. Returns its number; `None` if it was dropped.
    fn push(&self, event: &Event<'_>, tracker: Tracker) -> Option<u64> {
        let mut pending = self.pending();
        if pending.events.len() >= MOST_PENDING {
            pending.dropped += 1;
            return None;
        }
        pending.events.push_back(OwnedEvent::of(event, tracker));
        pending.pushed += 1;
        self.changed.notify_all();
        Some(pending.pushed)
    }

    /// Takes the turn if the observer is idle and its queue is empty.
    fn free_turn(&self) -> Option<MutexGuard<'_, ()>> {
        if IS_INSIDE.get() {
            return None;
        }
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.pending().events.is_empty().then_some(turn)
    }

    fn wait_until_told(&self, number: u64) {
        if !IS_INSIDE.get() {
            let is_open = |pending: &mut PendingEvents| pending.told < number;
            drop(self.changed.wait_timeout_while(self.pending(), LONGEST_WAIT, is_open));
        }
    }

    /// Runs the observer's thread.
    fn serve(&self) {
        while self.wait_for_note() {
            // Taken for each event anew, so that a caller can deliver in between.
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let (note, dropped) = {
                let mut pending = self.pending();
                (pending.events.pop_front(), std::mem::take(&mut pending.dropped))
            };
            if dropped > 0 {
                tracing::warn!(target: "distlock", { events = dropped }, "an observer is too slow: events were dropped");
            }
            if let Some(note) = note {
                note.with(|event| self.call(event));
                self.pending().told += 1;
                self.changed.notify_all();
            }
        }
    }

    /// Waits for an event. Returns `false` when none can come any more.
    fn wait_for_note(&self) -> bool {
        let is_idle = |pending: &mut PendingEvents| pending.events.is_empty() && !pending.is_over;
        let waited = self.changed.wait_while(self.pending(), is_idle);
        !waited.unwrap_or_else(PoisonError::into_inner).events.is_empty()
    }

    fn call(&self, event: &Event<'_>) {
        let was_inside = IS_INSIDE.replace(true);
        let told = catch_unwind(AssertUnwindSafe(|| self.observer.on_event(event)));
        IS_INSIDE.set(was_inside);
        if told.is_err() {
            tracing::error!(target: "distlock", "an observer panicked");
        }
    }

    fn pending(&self) -> MutexGuard<'_, PendingEvents> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An owned [`Event`].
struct OwnedEvent {
    key: Key,
    owner: OwnerId,
    token: Option<FencingToken>,
    backend: &'static str,
    kind: NoteKind,
    /// Until the event is delivered, there is work to do.
    _tracker: Tracker,
}

enum NoteKind {
    Waiting(Option<Holder>),
    Acquired(Duration),
    TimedOut(Duration),
    Failed(Error, Duration),
    Renewed(Option<Duration>),
    RenewalFailed(Error, Option<Duration>, u32),
    Released(Duration),
    Lost(LossReason, Duration),
}

impl OwnedEvent {
    fn of(event: &Event<'_>, tracker: Tracker) -> OwnedEvent {
        let kind = match event.kind {
            EventKind::Waiting { holder } => NoteKind::Waiting(holder.cloned()),
            EventKind::Acquired { waited } => NoteKind::Acquired(waited),
            EventKind::TimedOut { waited } => NoteKind::TimedOut(waited),
            EventKind::Failed { error, waited } => NoteKind::Failed(error.duplicate(), waited),
            EventKind::Renewed { margin } => NoteKind::Renewed(margin),
            EventKind::RenewalFailed { error, left, failures } => {
                NoteKind::RenewalFailed(error.duplicate(), left, failures)
            }
            EventKind::Released { held } => NoteKind::Released(held),
            EventKind::Lost { reason, held } => NoteKind::Lost(reason.clone(), held),
        };
        OwnedEvent {
            key: event.key.clone(),
            owner: event.owner.clone(),
            token: event.token,
            backend: event.backend,
            kind,
            _tracker: tracker,
        }
    }

    fn with(&self, tell: impl FnOnce(&Event<'_>)) {
        let kind = match &self.kind {
            NoteKind::Waiting(holder) => EventKind::Waiting { holder: holder.as_ref() },
            NoteKind::Acquired(waited) => EventKind::Acquired { waited: *waited },
            NoteKind::TimedOut(waited) => EventKind::TimedOut { waited: *waited },
            NoteKind::Failed(error, waited) => EventKind::Failed { error, waited: *waited },
            NoteKind::Renewed(margin) => EventKind::Renewed { margin: *margin },
            NoteKind::RenewalFailed(error, left, failures) => {
                EventKind::RenewalFailed { error, left: *left, failures: *failures }
            }
            NoteKind::Released(held) => EventKind::Released { held: *held },
            NoteKind::Lost(reason, held) => EventKind::Lost { reason, held: *held },
        };
        let OwnedEvent { key, owner, token, backend, .. } = self;
        tell(&Event { key, owner, token: *token, backend, kind });
    }
}
