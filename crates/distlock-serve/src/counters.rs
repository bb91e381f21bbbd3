//! The daemon's metrics, in the Prometheus text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hold::End;

/// What has happened since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) acquired: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) failed: AtomicU64,
    withdrawn: AtomicU64,
    waiting: AtomicU64,
    released: AtomicU64,
    silent: AtomicU64,
    died: AtomicU64,
    stopped: AtomicU64,
}

/// A request that waits for a lock. Dropped before its end, it was withdrawn.
pub(crate) struct WaitingRequest<'a>(Option<&'a Counters>);

impl WaitingRequest<'_> {
    pub(crate) fn over(mut self) {
        if let Some(counters) = self.0.take() {
            counters.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if let Some(counters) = self.0.take() {
            counters.waiting.fetch_sub(1, Ordering::Relaxed);
            Counters::add(&counters.withdrawn);
        }
    }
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that begins to wait.
    pub(crate) fn wait(&self) -> WaitingRequest<'_> {
        Counters::add(&self.waiting);
        WaitingRequest(Some(self))
    }

    pub(crate) fn ended(&self, end: End) -> &AtomicU64 {
        match end {
            End::Released => &self.released,
            End::Silent => &self.silent,
            End::Died => &self.died,
            End::Stopped => &self.stopped,
        }
    }

    /// Returns all metrics.
    pub(crate) fn text(&self, holds: usize, streams: usize) -> String {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (label, value) in values {
                let _ = writeln!(text, "{name}{label} {value}");
            }
        };
        metric("distlock_serve_holds", "gauge", "Locks that are held for clients.", &[("", holds as u64)]);
        metric("distlock_serve_streams", "gauge", "Open event streams.", &[("", streams as u64)]);
        metric("distlock_serve_waiting", "gauge", "Requests that wait for a lock.", &[("", number(&self.waiting))]);
        let outcomes = [
            ("{outcome=\"acquired\"}", number(&self.acquired)),
            ("{outcome=\"busy\"}", number(&self.busy)),
            ("{outcome=\"failed\"}", number(&self.failed)),
            ("{outcome=\"withdrawn\"}", number(&self.withdrawn)),
        ];
        metric("distlock_serve_requests_total", "counter", "Requests for locks, by outcome.", &outcomes);
        let ends = [
            ("{end=\"released\"}", number(&self.released)),
            ("{end=\"silent\"}", number(&self.silent)),
            ("{end=\"died\"}", number(&self.died)),
            ("{end=\"stopped\"}", number(&self.stopped)),
        ];
        metric("distlock_serve_holds_ended_total", "counter", "Holds that have ended, by why.", &ends);
        text
    }
}
