//! Metrics, recorded through the `metrics` facade. Without the feature everything here is compiled away.
//!
//! The names are in docs/metrics.md, which a test compares with the recorded ones.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
pub(crate) use self::off::{AcquireMeter, Group, HoldMeter, forced, operation};
#[cfg(feature = "metrics")]
pub(crate) use self::on::{AcquireMeter, Group, HoldMeter, forced, operation};

use crate::types::error::{ErrorKind, Result};

/// Returns how an acquisition ended, as a label and in traces.
#[cfg_attr(not(any(feature = "metrics", feature = "spans")), allow(dead_code))]
pub(crate) fn asked<T>(end: &Result<Option<T>>) -> &'static str {
    match end {
        Ok(Some(_)) => "acquired",
        Ok(None) => "busy",
        Err(error) => match error.kind() {
            ErrorKind::Timeout => "timeout",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Unknown => "unknown",
            _ => "error",
        },
    }
}

/// The outcome of a call as a label. The set of words is fixed, so that dashboards can name them.
pub(crate) trait MeteredResult {
    /// Returns the label.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code))]
    fn outcome(&self) -> &'static str;
}

impl<T> MeteredResult for Result<T> {
    fn outcome(&self) -> &'static str {
        match self {
            Ok(_) => "ok",
            Err(error) => match error.kind() {
                ErrorKind::Unavailable => "unavailable",
                ErrorKind::Unknown => "unknown",
                ErrorKind::Unsupported => "unsupported",
                _ => "error",
            },
        }
    }
}

/// The outcome of a batch: `ok` only if all of it is.
impl<T> MeteredResult for Vec<Result<T>> {
    fn outcome(&self) -> &'static str {
        self.iter().map(MeteredResult::outcome).find(|outcome| *outcome != "ok").unwrap_or("ok")
    }
}
