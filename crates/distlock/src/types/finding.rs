//! Findings of an examination of an engine.

use std::fmt;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
use std::net::IpAddr;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
use std::time::Duration;

/// The severity of a [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Something that could not be examined, or that is good to know.
    Note,
    /// Locks work, but an expected event loses them or makes them slow.
    Warning,
    /// Two owners may hold one lock, or no owner can.
    Unsafe,
}

impl Severity {
    /// Returns the word for it, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Fine => "fine",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Unsafe => "unsafe",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing that [`examine`](crate::examine) looked at: what was found, why it matters, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The subject, in one stable word.
    pub check: &'static str,
    /// Where: a server, or what several servers have in common. Never with credentials.
    pub place: String,
    /// What was found.
    pub found: String,
    /// Why it matters; empty when it is fine.
    pub why: String,
    /// What to do about it; empty when it is fine.
    pub fix: String,
}

impl Finding {
    pub(crate) fn fine(check: &'static str, place: &str, found: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Fine,
            check,
            place: place.into(),
            found: found.into(),
            why: String::new(),
            fix: String::new(),
        }
    }

    pub(crate) fn note(check: &'static str, place: &str, found: impl Into<String>) -> Finding {
        Finding { severity: Severity::Note, ..Finding::fine(check, place, found) }
    }

    pub(crate) fn warning(check: &'static str, place: &str, found: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::fine(check, place, found) }
    }

    pub(crate) fn not_safe(check: &'static str, place: &str, found: impl Into<String>) -> Finding {
        Finding { severity: Severity::Unsafe, ..Finding::fine(check, place, found) }
    }

    pub(crate) fn because(mut self, why: impl Into<String>) -> Finding {
        self.why = why.into();
        self
    }

    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Finding {
        self.fix = fix.into();
        self
    }
}

/// The findings about one place.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    pub(crate) place: &'a str,
    pub(crate) all: Vec<Finding>,
}

#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
impl Findings<'_> {
    pub(crate) fn about(place: &str) -> Findings<'_> {
        Findings { place, all: Vec::new() }
    }

    pub(crate) fn fine(&mut self, check: &'static str, found: impl Into<String>) {
        self.all.push(Finding::fine(check, self.place, found));
    }

    pub(crate) fn note(&mut self, check: &'static str, found: impl Into<String>, why: &str, fix: &str) {
        self.all.push(Finding::note(check, self.place, found).because(why).fix(fix));
    }

    pub(crate) fn warning(&mut self, check: &'static str, found: impl Into<String>, why: &str, fix: &str) {
        self.all.push(Finding::warning(check, self.place, found).because(why).fix(fix));
    }

    pub(crate) fn not_safe(&mut self, check: &'static str, found: impl Into<String>, why: &str, fix: &str) {
        self.all.push(Finding::not_safe(check, self.place, found).because(why).fix(fix));
    }

    /// Judges whether replies are fast enough for leases of this length; the slowest of several counts.
    pub(crate) fn round_trips(&mut self, times: &[Duration], ttl: Duration, most: Duration) {
        let Some(slowest) = times.iter().max() else { return };
        let found = format!("the slowest of {} answers took {slowest:.1?}; leases last {ttl:?}", times.len());
        let most = most.min(ttl / 10);
        if *slowest <= most {
            return self.fine("latency", found);
        }
        let why = "a renewal that is not answered in time costs the lock, and every lock waits for these answers";
        let mut fix = "bring clients and server closer, or find what blocks the server".to_owned();
        if *slowest * 10 > ttl {
            fix += &format!(", or use leases over {:?}", *slowest * 10);
        }
        self.warning("latency", found, why, &fix);
    }

    /// Judges whether a third party on the network can read the traffic.
    pub(crate) fn encryption(&mut self, encrypted: bool) {
        if encrypted {
            return self.fine("tls", "connections are encrypted");
        }
        if is_of_this_machine(self.place) {
            return self.fine("tls", "connections stay on this machine");
        }
        let why = "passwords and locks can be read and changed on the way";
        self.warning(
            "tls",
            "connections are not encrypted and leave this machine",
            why,
            "use the URL's scheme with TLS",
        );
    }
}

/// Returns whether `place`, a path or `host:port`, is on this machine for certain.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) fn is_of_this_machine(place: &str) -> bool {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    place.starts_with('/') || host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the numbers of a version such as `7.0.15` or `3.5.0-rc.1`; missing ones are 0.
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) fn version(text: &str) -> [u32; 3] {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn severities_rise() {
        assert!(Severity::Fine < Severity::Note && Severity::Note < Severity::Warning);
        assert!(Severity::Warning < Severity::Unsafe);
    }

    #[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
    #[test]
    fn only_what_never_leaves_the_machine_needs_no_encryption() {
        let severity = |place: &str, encrypted: bool| {
            let mut findings = Findings::about(place);
            findings.encryption(encrypted);
            findings.all[0].severity
        };
        for place in ["127.0.0.1:6379", "[::1]:6379", "localhost:6379", "/run/redis.sock"] {
            assert_eq!(severity(place, false), Severity::Fine, "{place}");
        }
        for place in ["10.0.0.1:6379", "[fd00::1]:6379", "redis.example:6379", "localhost.example:1"] {
            assert_eq!(severity(place, false), Severity::Warning, "{place}");
            assert_eq!(severity(place, true), Severity::Fine, "{place}");
        }
    }

    #[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
    #[test]
    fn slow_is_measured_against_the_lease() {
        let found = |slowest: u64, ttl: u64| {
            let mut findings = Findings::about("here");
            let times = [Duration::from_millis(1), Duration::from_millis(slowest)];
            findings.round_trips(&times, Duration::from_millis(ttl), Duration::from_millis(350));
            (findings.all[0].severity, findings.all[0].fix.contains("leases over"))
        };
        assert_eq!(found(90, 1000), (Severity::Fine, false));
        assert_eq!(found(110, 1000), (Severity::Warning, true));
        assert_eq!(found(340, 30_000), (Severity::Fine, false));
        assert_eq!(found(360, 30_000), (Severity::Warning, false), "longer ones are no help");
    }

    #[cfg(any(feature = "etcd", feature = "redis"))]
    #[test]
    fn versions_are_three_numbers() {
        assert_eq!(version("7.0.15"), [7, 0, 15]);
        assert_eq!(version("3.5.0-rc.1"), [3, 5, 0]);
        assert_eq!(version("8"), [8, 0, 0]);
        assert!(version("3.4.9") < version("3.4.31"));
    }
}
