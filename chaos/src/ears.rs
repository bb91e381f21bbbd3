//! Receives the events that the library logs: a wait begins, a lock is lost.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use distlock::{Clock, Moment};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

use crate::journal::{Journal, What};

/// A `tracing` subscriber that writes to the journal. An owner's name is the number of its attempt.
pub(crate) struct Ears {
    journal: Arc<Journal>,
    clock: Clock,
    told: Mutex<HashMap<u64, Moment>>,
}

impl Ears {
    pub(crate) fn new(journal: Arc<Journal>) -> Ears {
        Ears { journal, clock: Clock::system(), told: Mutex::default() }
    }

    /// Returns when an attempt learned that its lock is lost.
    pub(crate) fn told(&self, attempt: u64) -> Option<Moment> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).remove(&attempt)
    }

    fn hear(&self, heard: &Heard) {
        let (at, Ok(attempt)) = (self.clock.now(), heard.owner.parse()) else { return };
        match heard.message.as_str() {
            "lock busy" => self.journal.write(at, attempt, What::Queued),
            "lock lost" => {
                self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt, at);
                self.journal.write(at, attempt, What::Told { reason: heard.reason.clone() });
            }
            _ => {}
        }
    }
}

/// Forwards log events to [`Ears`].
pub(crate) struct Listening(pub(crate) Arc<Ears>);

impl Subscriber for Listening {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "distlock"
    }

    fn event(&self, event: &Event<'_>) {
        let mut heard = Heard::default();
        event.record(&mut heard);
        self.0.hear(&heard);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Heard {
    message: String,
    owner: String,
    reason: String,
}

impl Visit for Heard {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = match field.name() {
            "message" => &mut self.message,
            "lock.owner" => &mut self.owner,
            "lock.reason" => &mut self.reason,
            _ => return,
        };
        let _ = write!(text, "{value:?}");
    }
}
