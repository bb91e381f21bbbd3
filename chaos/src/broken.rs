//! Workers with one deliberate defect, to show that each rule of the judge can fail.

use std::str::FromStr;

/// The defect of the workers of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// They believe in their holds after the deadline.
    IgnoresDeadline,
    /// They enter without acquiring the lock.
    SkipsLock,
    /// They report the token of the first grant for every grant.
    RepeatsToken,
    /// Their tokens fall.
    LowersToken,
    /// They write with the token of their first hold, to a resource that does not check tokens.
    OpensFence,
    /// They poll, so that a worker that polls at the right moment overtakes the waiters.
    Barges,
    /// They never release a lock, and never exit.
    Hoards,
    /// They hold locks for longer than a lease without renewing.
    NeverRenews,
    /// They leave a lock with a very long lease behind.
    Litters,
    /// Each process runs a tick for itself.
    RepeatsTicks,
}

impl Broken {
    /// All defects, by their names on the worker's command line.
    pub const ALL: [(&'static str, Broken); 10] = [
        ("ignores-deadline", Broken::IgnoresDeadline),
        ("skips-lock", Broken::SkipsLock),
        ("repeats-token", Broken::RepeatsToken),
        ("lowers-token", Broken::LowersToken),
        ("opens-fence", Broken::OpensFence),
        ("barges", Broken::Barges),
        ("hoards", Broken::Hoards),
        ("never-renews", Broken::NeverRenews),
        ("litters", Broken::Litters),
        ("repeats-ticks", Broken::RepeatsTicks),
    ];

    pub(crate) fn name(self) -> &'static str {
        Broken::ALL.iter().find(|(_, broken)| *broken == self).map_or("", |(name, _)| name)
    }
}

impl FromStr for Broken {
    type Err = String;

    fn from_str(text: &str) -> Result<Broken, String> {
        let found = Broken::ALL.iter().find(|(name, _)| *name == text).map(|(_, broken)| *broken);
        found.ok_or_else(|| format!("nothing is broken by `{text}`"))
    }
}
