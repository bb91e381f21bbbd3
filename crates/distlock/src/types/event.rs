//! What happens to a lock, told to whoever observes it and to `tracing`.

use std::fmt;
use std::time::Duration;

use crate::types::error::Error;
use crate::types::key::Key;
use crate::types::owner::{Holder, OwnerId};
use crate::types::token::FencingToken;

/// Why a lock was lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// Its lease ended before a renewal was answered.
    Expired,
    /// The engine says that it is not ours any more.
    Revoked,
    /// Somebody released it by force.
    Broken,
    /// It was held for as long as [`max_hold`](crate::LockRequest::max_hold) allows.
    MaxHold,
    /// Its watchdog was not [fed](crate::LockGuard::feed) for too long.
    Silent,
    /// Somebody [took it over](crate::Locker::adopt).
    Adopted,
    /// Its locker was closed.
    Closed,
    /// Its owner unlocked it, by [`Locker::unlock`](crate::Locker::unlock).
    Unlocked,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::Expired => "its lease ended before a renewal was answered",
            LossReason::Revoked => "the engine says that it is not ours any more",
            LossReason::Broken => "somebody released it by force",
            LossReason::MaxHold => "it was held for as long as max_hold allows",
            LossReason::Silent => "its watchdog was not fed",
            LossReason::Adopted => "somebody took it over",
            LossReason::Closed => "its locker was closed",
            LossReason::Unlocked => "its owner unlocked it by name",
        })
    }
}

/// Something that happened to a lock.
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
    /// Somebody else has the lock; the owner waits.
    Waiting {
        /// Who has it.
        holder: Option<&'a Holder>,
    },
    /// The lock was granted.
    Acquired {
        /// Time since it was asked for.
        waited: Duration,
    },
    /// The wait was over before the lock was free.
    TimedOut {
        /// Time since it was asked for.
        waited: Duration,
    },
    /// Asking for the lock ended because the engine could not be reached: whether another owner has it is not known.
    Failed {
        /// What the caller is told: kind `Unavailable`, or `Unknown` when a claim may have been carried out.
        error: &'a Error,
        /// Time since it was asked for.
        waited: Duration,
    },
    /// The lease was renewed.
    Renewed {
        /// How much of the old lease was left, the leading signal of trouble; `None` without a lease.
        margin: Option<Duration>,
    },
    /// A renewal failed; it is tried again until the lease ends.
    RenewalFailed {
        /// Why.
        error: &'a Error,
        /// Time until the lock counts as lost; `None` without a lease.
        left: Option<Duration>,
        /// How many renewals have failed since the last that did not.
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

/// Sees the events of a locker and its clones, one at a time, in the order in which they were reported.
///
/// What a caller's own call brings about is seen before that call returns, unless the observer is busy with other events for
/// 100 ms: return at once, or the caller waits. What the keeper finds (a renewal, a loss) is seen on a thread of its own, so
/// that a slow observer delays no renewal. As many as 16 384 events wait for it; more are dropped, and a line of log says how
/// many. A panic is caught and logged.
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn on_event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// One line of log with the fields that every message has.
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

/// Tells `tracing`.
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
                "error.kind" = debug(error.kind()),
                "error" = display(error),
                "lock.wait_s" = waited.as_secs_f64()
            );
        }
        EventKind::Renewed { margin } => {
            log!(TRACE, event, "lock renewed", "lock.margin_s" = margin.map(|margin| margin.as_secs_f64()));
        }
        EventKind::RenewalFailed { error, left, failures } => {
            let left = left.map(|left| left.as_secs_f64());
            // Thousands of locks are tried again several times a second while an engine is away: once is enough to warn.
            if failures == 1 {
                log!(
                    WARN,
                    event,
                    "lock renewal failed",
                    "error.kind" = debug(error.kind()),
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
                "lock.reason" = display(reason),
                "lock.held_s" = held.as_secs_f64()
            );
        }
    }
}
