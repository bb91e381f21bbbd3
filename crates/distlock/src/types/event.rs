//! Events of locks, for observers and for `tracing`.

use std::fmt;
use std::time::Duration;

use crate::types::error::Error;
use crate::types::key::Key;
use crate::types::owner::{Holder, OwnerId};
use crate::types::token::FencingToken;

/// Why a lock was lost.
///
/// ```
/// use distlock::LossReason;
///
/// // The word is `lock.reason` in logs and the label of the metric; the sentence is `reason` in logs.
/// assert_eq!(LossReason::MaxHold.to_string(), "max_hold");
/// assert!(LossReason::MaxHold.describe().contains("max_hold"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LossReason {
    /// Its lease ended before a renewal succeeded.
    Expired,
    /// The engine reported that the attempt no longer holds it.
    Revoked,
    /// It was force-released.
    Broken,
    /// It was held for as long as [`max_hold`](crate::LockRequest::max_hold) allows.
    MaxHold,
    /// Its watchdog was not [fed](crate::LockGuard::feed) for too long.
    Silent,
    /// Another process [took it over](crate::Locker::adopt).
    Adopted,
    /// Its locker was closed.
    Closed,
    /// Its owner unlocked it, by [`Locker::unlock`](crate::Locker::unlock).
    Unlocked,
}

impl LossReason {
    /// Returns the word for it that logs and metrics use.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            LossReason::Expired => "expired",
            LossReason::Revoked => "revoked",
            LossReason::Broken => "broken",
            LossReason::MaxHold => "max_hold",
            LossReason::Silent => "silent",
            LossReason::Adopted => "adopted",
            LossReason::Closed => "closed",
            LossReason::Unlocked => "unlocked",
        }
    }

    /// Returns what happened to the lock, as a clause: "its lease ended before a renewal was answered".
    #[must_use]
    pub const fn describe(&self) -> &'static str {
        match self {
            LossReason::Expired => "its lease ended before a renewal was answered",
            LossReason::Revoked => "the engine says that it is not ours any more",
            LossReason::Broken => "it was released by force",
            LossReason::MaxHold => "it was held for as long as max_hold allows",
            LossReason::Silent => "its watchdog was not fed",
            LossReason::Adopted => "another process took it over",
            LossReason::Closed => "its locker was closed",
            LossReason::Unlocked => "its owner unlocked it by name",
        }
    }
}

/// Writes [`LossReason::as_str`].
impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something that happened to a lock; an [`Observer`] receives it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The lock.
    pub key: &'a Key,
    /// The owner it happened to.
    pub owner: &'a OwnerId,
    /// The fencing token, once there is one.
    pub token: Option<FencingToken>,
    /// The engine's name.
    pub backend: &'static str,
    /// What happened.
    pub kind: EventKind<'a>,
}

/// What an [`Event`] is about.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// Another owner holds the lock; this owner waits.
    Waiting {
        /// The holder, if known.
        holder: Option<&'a Holder>,
    },
    /// The lock was granted.
    Acquired {
        /// Time since the request.
        waited: Duration,
    },
    /// The wait ended before the lock was free.
    TimedOut {
        /// Time since the request.
        waited: Duration,
    },
    /// The request ended because the engine could not be reached; whether another owner holds the lock is unknown.
    Failed {
        /// The caller's error: kind `Unavailable`, or `Unknown` if a claim may have been applied.
        error: &'a Error,
        /// Time since the request.
        waited: Duration,
    },
    /// The lease was renewed.
    Renewed {
        /// Time that was left of the old lease, the leading signal of trouble; `None` without a lease.
        margin: Option<Duration>,
    },
    /// A renewal failed; it is retried until the lease ends.
    RenewalFailed {
        /// Why.
        error: &'a Error,
        /// Time until the lock counts as lost; `None` without a lease.
        left: Option<Duration>,
        /// The number of failed renewals since the last success.
        failures: u32,
    },
    /// The lock was released.
    Released {
        /// Time since it was granted.
        held: Duration,
    },
    /// The lock was lost.
    Lost {
        /// Why.
        reason: &'a LossReason,
        /// Time since it was granted.
        held: Duration,
    },
}

/// Receives the events of a locker and its clones, one at a time, in the order in which they were reported. Any closure
/// that takes an event is one.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use distlock::{Event, EventKind, Locker};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let grants = Arc::new(AtomicU32::new(0));
/// let counted = grants.clone();
/// let observer = move |event: &Event<'_>| match event.kind {
///     EventKind::Acquired { .. } => drop(counted.fetch_add(1, Ordering::Relaxed)),
///     EventKind::Lost { reason, .. } => eprintln!("{} was lost: {}", event.key, reason.describe()),
///     _ => {}
/// };
/// let locker = Locker::builder().observer(observer).connect("mem://observer").await?;
/// locker.lock("invoice:42").await?.unlock().await?;
/// assert_eq!(grants.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
///
/// Events of a caller's own call are delivered before that call returns, unless the observer is busy with other
/// events for 100 ms: return quickly, or the caller waits. The keeper's events (a renewal, a loss) are delivered on a
/// thread of their own, so that a slow observer delays no renewal. Up to 16 384 events are queued; more are dropped,
/// and their number is logged. A panic is caught and logged.
pub trait Observer: Send + Sync + 'static {
    /// Receives an event.
    fn on_event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// Logs one line with the fields that every message has.
macro_rules! log {
    ($level:ident, $event:expr, $message:literal $(, $field:literal = $value:expr)*) => {
        tracing::event!(
            target: "distlock",
            tracing::Level::$level,
            "lock.name" = %$event.key,
            "lock.owner" = %$event.owner,
            "lock.token" = $event.token.map(FencingToken::get),
            "lock.backend" = $event.backend,
            $($field = $value,)*
            $message
        )
    };
}

/// Logs the event.
pub(crate) fn trace(event: &Event<'_>) {
    match event.kind {
        EventKind::Waiting { holder } => {
            log!(DEBUG, event, "lock busy", "lock.holder" = holder.map(display));
        }
        EventKind::Acquired { waited } => {
            log!(DEBUG, event, "lock acquired", "lock.outcome" = "acquired", "lock.wait_s" = waited.as_secs_f64());
        }
        EventKind::TimedOut { waited } => {
            log!(INFO, event, "lock wait timed out", "lock.outcome" = "timeout", "lock.wait_s" = waited.as_secs_f64());
        }
        EventKind::Failed { error, waited } => {
            let outcome = if error.may_be_applied() { "unknown" } else { "unavailable" };
            log!(
                WARN,
                event,
                "lock wait failed",
                "lock.outcome" = outcome,
                "error.kind" = error.kind().as_str(),
                "error" = display(error),
                "lock.wait_s" = waited.as_secs_f64()
            );
        }
        EventKind::Renewed { margin } => {
            log!(TRACE, event, "lock renewed", "lock.margin_s" = margin.map(|margin| margin.as_secs_f64()));
        }
        EventKind::RenewalFailed { error, left, failures } => {
            let left = left.map(|left| left.as_secs_f64());
            // Thousands of locks are retried several times a second while an engine is unreachable: one warning is
            // enough.
            if failures == 1 {
                log!(
                    WARN,
                    event,
                    "lock renewal failed",
                    "error.kind" = error.kind().as_str(),
                    "error" = display(error),
                    "lock.ttl_s" = left
                );
            } else {
                log!(DEBUG, event, "lock renewal failed again", "error" = display(error), "lock.ttl_s" = left);
            }
        }
        EventKind::Released { held } => {
            log!(DEBUG, event, "lock released", "lock.outcome" = "released", "lock.held_s" = held.as_secs_f64());
        }
        EventKind::Lost { reason, held } => {
            log!(
                ERROR,
                event,
                "lock lost",
                "lock.outcome" = "lost",
                "lock.reason" = reason.as_str(),
                "reason" = reason.describe(),
                "lock.held_s" = held.as_secs_f64()
            );
        }
    }
}
