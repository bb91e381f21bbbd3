//! A lock that is held for a client.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock::{AttemptId, Clock, Error, FencingToken, HoldState, Key, LockGuard, LossReason, Moment, OwnerId};
use distlock_http::Peer;
use serde::{Serialize, Serializer};
use tokio::sync::{Notify, RwLock, SetOnce};

use crate::failure::Failure;
use crate::liveness::Liveness;

/// The name of a hold. Only its client knows it.
pub(crate) type HoldId = AttemptId;

/// Why the daemon has ended a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The client released it.
    Released,
    /// The client was silent for too long.
    Silent,
    /// The client's process has died.
    Died,
    /// The daemon stops.
    Stopped,
}

/// A lock that is held for a client.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: HoldId,
    pub(crate) key: Key,
    pub(crate) owner: OwnerId,
    token: FencingToken,
    slot: Option<u32>,
    /// The client that acquired it.
    pub(crate) peer: Peer,
    /// The key of the attempt that acquired it, if the client gave one.
    pub(crate) attempt: Option<String>,
    /// Locked for reading while the guard is used; written to once, to take it out.
    guard: RwLock<Option<LockGuard>>,
    life: Mutex<Liveness>,
    /// Set before the guard is taken out: its users let go.
    leaving: SetOnce<End>,
    /// Tells the event stream to look.
    pub(crate) news: Notify,
    /// The newest stream; an older one ends.
    stream: AtomicU64,
    asked: Mutex<Option<String>>,
}

/// A hold as its client sees it.
#[derive(Debug, Serialize)]
pub(crate) struct HoldView<'h> {
    #[serde(serialize_with = "as_text")]
    id: HoldId,
    name: &'h str,
    // As text: JSON readers round numbers of this size.
    #[serde(serialize_with = "as_text")]
    token: FencingToken,
    owner: &'h str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    state: ViewState,
    left_ms: u64,
    took_ms: u64,
    silence_ms: u64,
    lease: bool,
}

/// The state of a hold in an answer: one that is lost is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ViewState {
    Held,
    AtRisk,
}

/// What an event stream looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sight {
    /// The lock is held; the end of its lease, and the time until the end that the client may rely on.
    Held { is_at_risk: bool, lease_end: Option<Moment>, left: Duration },
    /// The lock is lost.
    Lost(LossReason),
    /// The daemon has ended the hold.
    Ended(End),
}

impl Hold {
    pub(crate) fn new(guard: LockGuard, peer: Peer, attempt: Option<String>, life: Liveness) -> Hold {
        Hold {
            id: HoldId::random(),
            key: guard.key().clone(),
            owner: guard.owner().clone(),
            token: guard.fencing_token(),
            slot: guard.slot(),
            peer,
            attempt,
            guard: RwLock::new(Some(guard)),
            life: Mutex::new(life),
            leaving: SetOnce::new(),
            news: Notify::new(),
            stream: AtomicU64::new(0),
            asked: Mutex::default(),
        }
    }

    pub(crate) fn life(&self) -> MutexGuard<'_, Liveness> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the client is told now about a request that arrived at `received`: the lock is the client's until
    /// `took_ms + left_ms` after it sent that request.
    pub(crate) fn view(&self, clock: &Clock, received: Moment, lease: bool) -> Result<HoldView<'_>, Failure> {
        let guard = self.guard.try_read().map_err(|_| Failure::no_such_hold())?;
        let guard = guard.as_ref().ok_or_else(Failure::no_such_hold)?;
        guard.check().map_err(|error| Failure::from(&error))?;
        let mut life = self.life();
        let now = clock.now();
        let end = life.announce(guard.deadline(), now).ok_or_else(Failure::no_such_hold)?;
        Ok(HoldView {
            id: self.id,
            name: self.key.as_str(),
            token: self.token,
            owner: self.owner.as_str(),
            slot: self.slot,
            state: if guard.state() == HoldState::AtRisk { ViewState::AtRisk } else { ViewState::Held },
            // Both are rounded down.
            left_ms: millis(end.since(now)),
            took_ms: millis(now.since(received)),
            silence_ms: millis(life.silence()),
            lease,
        })
    }

    /// Returns what the event stream must know. An event is news and no promise: it may arrive late.
    pub(crate) fn sight(&self, clock: &Clock) -> Sight {
        if let Some(end) = self.leaving.get() {
            return Sight::Ended(*end);
        }
        let Ok(guard) = self.guard.try_read() else { return Sight::Ended(End::Released) };
        let Some(guard) = guard.as_ref() else { return Sight::Ended(End::Released) };
        if let Err(error) = guard.check() {
            return Sight::Lost(error.loss_reason().cloned().unwrap_or(LossReason::Closed));
        }
        let (lease_end, now) = (guard.deadline(), clock.now());
        let left = self.life().end(lease_end, now).since(now);
        Sight::Held { is_at_risk: guard.state() == HoldState::AtRisk, lease_end, left }
    }

    /// Extends the lease.
    pub(crate) async fn extend(&self, ttl: Duration) -> Result<(), Failure> {
        let guard = self.guard.read().await;
        let guard = guard.as_ref().ok_or_else(Failure::no_such_hold)?;
        tokio::select! {
            extended = guard.extend(ttl) => extended.map_err(|error| Failure::from(&error))?,
            _ = self.leaving.wait() => return Err(Failure::no_such_hold()),
        }
        self.life().extended(ttl);
        Ok(())
    }

    /// Returns the reason of a client that asks for the lock, if one does within `limit`.
    pub(crate) async fn look_for_question(&self, limit: Duration) -> Result<Option<String>, Error> {
        let guard = self.guard.read().await;
        let Some(guard) = guard.as_ref() else { return Ok(None) };
        tokio::select! {
            asked = guard.asked() => asked.map(Some),
            () = tokio::time::sleep(limit) => Ok(None),
            _ = self.leaving.wait() => Ok(None),
        }
    }

    /// Keeps a question for the event stream.
    pub(crate) fn was_asked(&self, reason: String) {
        *self.asked() = Some(reason);
        self.news.notify_one();
    }

    /// Returns a question that the event stream has not seen.
    pub(crate) fn take_question(&self) -> Option<String> {
        self.asked().take()
    }

    fn asked(&self) -> MutexGuard<'_, Option<String>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the guard out, once: its users let go first.
    pub(crate) async fn take(&self, end: End) -> Option<LockGuard> {
        self.life().finish();
        let _ = self.leaving.set(end);
        self.news.notify_one();
        self.guard.write().await.take()
    }

    /// Records which client makes a request about the hold. Call this before the client is told anything.
    pub(crate) fn used_by(&self, peer: &Peer) {
        if *peer != self.peer {
            self.life().share();
        }
    }

    /// Returns the only process that ever used this hold: with its death the hold is of no use.
    pub(crate) fn only_process(&self) -> Option<i32> {
        match self.peer {
            Peer::Process { pid, .. } if !self.life().is_shared() => pid,
            _ => None,
        }
    }

    /// Makes this stream the newest one, and returns its number.
    pub(crate) fn open_stream(&self, now: Moment) -> u64 {
        let number = self.stream.fetch_add(1, Ordering::Relaxed) + 1;
        self.life().stream_opened(now);
        // The older stream looks, and ends.
        self.news.notify_waiters();
        number
    }

    pub(crate) fn is_newest_stream(&self, number: u64) -> bool {
        self.stream.load(Ordering::Relaxed) == number
    }
}

fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
