//! The console's metrics in the Prometheus text format.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::audit::{Audit, AuditEvent};
use crate::watcher::{Totals, Watcher};

/// Returns all metrics.
pub(crate) fn text(totals: Totals, watcher: &Watcher, audit: &Audit) -> String {
    let counts = &watcher.counts;
    let number = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (suffix, value) in values {
            let _ = writeln!(text, "{name}{suffix} {value}");
        }
    };
    let mut gauge = |name, help, value: usize| metric(name, "gauge", help, &[("", value as f64)]);
    gauge("distlock_console_engine_up", "Whether the last listing succeeded.", totals.is_up.into());
    gauge("distlock_console_locks", "Locks that are held or waited for.", totals.locks);
    gauge("distlock_console_holds", "Holds of these locks.", totals.holds);
    gauge("distlock_console_waiters", "Waiters of these locks.", totals.waiters);
    gauge("distlock_console_browsers", "Connected browsers.", watcher.viewers());
    let listings = number(&counts.listings);
    let seconds = number(&counts.listing_us) / 1e6;
    let listing = [("_sum", seconds), ("_count", listings)];
    metric("distlock_console_listing_duration_seconds", "summary", "Time the engine takes to list.", &listing);
    let errors = [("", number(&counts.errors))];
    metric("distlock_console_listing_errors_total", "counter", "Listings that failed.", &errors);
    let ends = [("broken", AuditEvent::Broken), ("refused", AuditEvent::Refused), ("unknown", AuditEvent::Unknown)];
    let breaks = ends.map(|(name, event)| (format!("{{outcome=\"{name}\"}}"), audit.count(event) as f64));
    let breaks: Vec<(&str, f64)> = breaks.iter().map(|(label, count)| (label.as_str(), *count)).collect();
    metric("distlock_console_recent_breaks", "gauge", "Breaks among the last 1000, by outcome.", &breaks);
    text
}
