//! The phases of an attempt or an entry.

#![cfg_attr(
    not(feature = "simulation"),
    allow(unreachable_pub, reason = "only the model of this repository reaches it")
)]

use crate::types::clock::Moment;

/// Where an attempt or an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not granted, as far as this client knows.
    Waiting,
    /// Granted at this moment.
    Held(Moment),
    /// Being given up.
    Leaving {
        /// Whether it was a hold.
        was_held: bool,
    },
    /// Its key is deleted.
    Gone,
}

/// A release that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Whether it ends a hold.
    pub was_held: bool,
    /// Whether an earlier release was sent.
    pub repeated: bool,
}

impl Phase {
    pub(crate) fn is_held(self) -> bool {
        matches!(self, Phase::Held(_))
    }

    pub(crate) fn is_leaving(self) -> bool {
        matches!(self, Phase::Leaving { .. })
    }

    /// A release begins, or is repeated.
    pub(crate) fn leave(&mut self) -> Leaving {
        let repeated = self.is_leaving();
        let was_held = matches!(self, Phase::Held(_) | Phase::Leaving { was_held: true });
        *self = Phase::Leaving { was_held };
        Leaving { was_held, repeated }
    }
}
