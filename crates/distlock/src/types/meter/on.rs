//! The metrics with the feature.

use crate::types::sync::Mutex;

use metrics::{Gauge, counter, gauge, histogram};

use super::MeteredResult;
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;
use crate::types::event::{EventKind, LossReason};

/// The label of a group of locks: `'static`, so that there are few different ones.
#[derive(Debug, Clone, Copy)]
// tidy-allow(name): the same type without the feature
pub(crate) struct Group(pub(crate) &'static str);

impl Default for Group {
    fn default() -> Self {
        Group("default")
    }
}

/// Counts one in a gauge from `begin` until `end`, or until it is dropped.
#[derive(Default)]
struct Counted(Mutex<Option<Gauge>>);

impl Counted {
    fn begin(&self, gauge: Gauge) {
        gauge.increment(1.0);
        *self.0.lock() = Some(gauge);
    }

    fn end(&self) {
        if let Some(gauge) = self.0.lock().take() {
            gauge.decrement(1.0);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end();
    }
}

/// Records one hold.
// tidy-allow(name): the same type without the feature
pub(crate) struct HoldMeter {
    group: &'static str,
    active: Counted,
}

impl HoldMeter {
    pub(crate) fn new(group: Group) -> HoldMeter {
        HoldMeter { group: group.0, active: Counted::default() }
    }

    /// Records an event of the hold.
    pub(crate) fn saw(&self, backend: &'static str, kind: &EventKind<'_>) {
        let group = self.group;
        match kind {
            EventKind::Acquired { .. } => {
                self.active.begin(gauge!("distlock_active", "group" => group, "backend" => backend));
            }
            EventKind::Renewed { margin } => {
                counter!("distlock_renewals_total", "backend" => backend, "outcome" => "renewed").increment(1);
                if let Some(margin) = margin {
                    histogram!("distlock_renewal_margin_seconds", "backend" => backend).record(*margin);
                }
            }
            EventKind::RenewalFailed { .. } => {
                counter!("distlock_renewals_total", "backend" => backend, "outcome" => "failed").increment(1);
            }
            EventKind::Released { held } => self.ended(backend, "released", *held),
            EventKind::Lost { reason, held } => {
                let end = if **reason == LossReason::Broken { "forced" } else { "lost" };
                counter!("distlock_losses_total", "backend" => backend, "reason" => word_for(reason)).increment(1);
                self.ended(backend, end, *held);
            }
            EventKind::Waiting { .. } | EventKind::TimedOut { .. } | EventKind::Failed { .. } => {}
        }
    }

    fn ended(&self, backend: &'static str, end: &'static str, held: std::time::Duration) {
        self.active.end();
        let group = self.group;
        histogram!("distlock_hold_duration_seconds", "group" => group, "backend" => backend, "end" => end).record(held);
    }
}

fn word_for(reason: &LossReason) -> &'static str {
    match reason {
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

/// Records one acquisition, also if it is dropped.
// tidy-allow(name): the same type without the feature
pub(crate) struct AcquireMeter {
    clock: Clock,
    started: Moment,
    backend: &'static str,
    group: &'static str,
    /// `None`: it is not to be recorded.
    outcome: Option<&'static str>,
    waiting: Counted,
}

impl AcquireMeter {
    pub(crate) fn begin(clock: &Clock, started: Moment, backend: &'static str, group: Group) -> AcquireMeter {
        AcquireMeter {
            clock: clock.clone(),
            started,
            backend,
            group: group.0,
            outcome: Some("dropped"),
            waiting: Counted::default(),
        }
    }

    /// Another owner holds the lock: the acquisition waits.
    pub(crate) fn waits(&self) {
        self.waiting.begin(gauge!("distlock_waiting", "group" => self.group, "backend" => self.backend));
    }

    pub(crate) fn ends<T>(&mut self, end: &Result<Option<T>>) {
        self.outcome = Some(super::asked(end));
    }

    /// Records nothing: another meter continues.
    pub(crate) fn forget(&mut self) {
        self.outcome = None;
    }
}

impl Drop for AcquireMeter {
    fn drop(&mut self) {
        let AcquireMeter { backend, group, outcome: Some(outcome), .. } = *self else { return };
        let took = self.clock.now().since(self.started);
        histogram!(
            "distlock_acquire_duration_seconds",
            "group" => group,
            "backend" => backend,
            "outcome" => outcome
        )
        .record(took);
    }
}

/// Records a force release.
pub(crate) fn forced(backend: &'static str, outcome: &impl MeteredResult) {
    counter!("distlock_forced_releases_total", "backend" => backend, "outcome" => outcome.outcome()).increment(1);
}

/// Measures one call of an engine. A dropped call has no outcome and is not recorded.
pub(crate) async fn operation<F: Future<Output: MeteredResult>>(
    backend: &'static str,
    operation: &'static str,
    call: F,
) -> F::Output {
    let clock = Clock::system();
    let started = clock.now();
    let answer = call.await;
    histogram!(
        "distlock_backend_operation_duration_seconds",
        "backend" => backend,
        "operation" => operation,
        "outcome" => answer.outcome()
    )
    .record(clock.now().since(started));
    answer
}
