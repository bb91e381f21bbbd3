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
pub(crate) struct LogEvents {
    journal: Arc<Journal>,
    clock: Clock,
    told: Mutex<HashMap<u64, Moment>>,
}

impl LogEvents {
    pub(crate) fn new(journal: Arc<Journal>) -> LogEvents {
        LogEvents { journal, clock: Clock::system(), told: Mutex::default() }
    }

    /// Returns when an attempt learned that its lock is lost.
    pub(crate) fn told(&self, attempt: u64) -> Option<Moment> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).remove(&attempt)
    }

    fn record(&self, fields: &EventFields) {
        let (at, Ok(attempt)) = (self.clock.now(), fields.owner.parse()) else { return };
        match fields.message.as_str() {
            "lock busy" => self.journal.write(at, attempt, What::Queued),
            "lock lost" => {
                self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt, at);
                self.journal.write(at, attempt, What::Told { reason: fields.reason.clone() });
            }
            _ => {}
        }
    }
}

/// Forwards log events to [`LogEvents`].
pub(crate) struct LogSubscriber(pub(crate) Arc<LogEvents>);

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "distlock"
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        self.0.record(&fields);
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
struct EventFields {
    message: String,
    owner: String,
    reason: String,
}

impl Visit for EventFields {
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
