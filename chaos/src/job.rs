//! The jobs that workers run once per tick, and the steps of a request for one.

use std::fmt;
use std::str::FromStr;

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TickJob {
    /// Its ticks have names; failed runs are repeated.
    Named,
    /// Its ticks have names; a run is not repeated.
    AtMostOnce,
    /// Its ticks are periods of the engine's clock; failed runs are repeated.
    Periodic,
}

impl TickJob {
    /// All jobs, by their names in journals.
    pub(crate) const ALL: [(&'static str, TickJob); 3] =
        [("named", TickJob::Named), ("at-most-once", TickJob::AtMostOnce), ("periodic", TickJob::Periodic)];
}

/// What became of a request, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobStep {
    /// The worker is about to request a run.
    Asks,
    /// It was told that the tick is done.
    ToldDone,
    /// It was told that no run is left.
    Exhausted,
    /// It was told to run.
    Runs,
    /// Its run failed.
    Failed,
    /// It is about to mark the tick as done.
    Finishes,
    /// It was told that its run has succeeded.
    Succeeded,
    /// It was told nothing certain: neither of the request nor of its end.
    InDoubt,
}

impl JobStep {
    const ALL: [(&'static str, JobStep); 8] = [
        ("asks", JobStep::Asks),
        ("told-done", JobStep::ToldDone),
        ("exhausted", JobStep::Exhausted),
        ("runs", JobStep::Runs),
        ("failed", JobStep::Failed),
        ("finishes", JobStep::Finishes),
        ("succeeded", JobStep::Succeeded),
        ("in-doubt", JobStep::InDoubt),
    ];
}

fn name_in<T: PartialEq>(all: &[(&'static str, T)], one: &T) -> &'static str {
    all.iter().find(|(_, other)| other == one).map_or("", |(name, _)| name)
}

fn find_in<T: Copy>(all: &[(&'static str, T)], text: &str) -> Result<T, String> {
    all.iter().find(|(name, _)| *name == text).map(|(_, one)| *one).ok_or_else(|| format!("unknown: `{text}`"))
}

impl fmt::Display for TickJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_in(&TickJob::ALL, self))
    }
}

impl FromStr for TickJob {
    type Err = String;

    fn from_str(text: &str) -> Result<TickJob, String> {
        find_in(&TickJob::ALL, text)
    }
}

impl fmt::Display for JobStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_in(&JobStep::ALL, self))
    }
}

impl FromStr for JobStep {
    type Err = String;

    fn from_str(text: &str) -> Result<JobStep, String> {
        find_in(&JobStep::ALL, text)
    }
}
