//! Workers that are wrong on purpose, to show that each rule of the judge can fail.

use std::str::FromStr;

/// What is wrong with the workers of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// They believe in their locks after the deadline.
    IgnoresDeadline,
    /// They enter without asking.
    SkipsLock,
    /// They say that every grant has the token of the first.
    RepeatsToken,
    /// Their tokens fall.
    LowersToken,
    /// They write with the token of their first hold, to a resource that does not look.
    OpensFence,
    /// They poll, so that whoever comes in the right moment overtakes those who wait.
    Barges,
    /// They never give a lock back, and never end.
    Hoards,
    /// They hold locks for longer than a lease, and nothing renews them.
    NeverRenews,
    /// They leave a lock behind with an endless lease.
    Litters,
}

impl Broken {
    /// Every one, by its name on the worker's command line.
    pub const ALL: [(&'static str, Broken); 9] = [
        ("ignores-deadline", Broken::IgnoresDeadline),
        ("skips-lock", Broken::SkipsLock),
        ("repeats-token", Broken::RepeatsToken),
        ("lowers-token", Broken::LowersToken),
        ("opens-fence", Broken::OpensFence),
        ("barges", Broken::Barges),
        ("hoards", Broken::Hoards),
        ("never-renews", Broken::NeverRenews),
        ("litters", Broken::Litters),
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
