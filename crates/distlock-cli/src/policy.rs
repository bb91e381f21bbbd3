//! How the child is ended when the lock is at risk.

use std::time::Duration;

use rustix::process::Signal;

use crate::child::Placement;

/// The time between the first signal and SIGKILL, unless `--kill-after` is given or the lease is too short.
const GRACE: Duration = Duration::from_secs(5);

/// What happens to the child when the lock is lost or about to be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLost {
    /// The child is ended before the lease ends.
    #[default]
    Term,
    /// The child continues; stderr and the exit code report the loss.
    Warn,
    /// The child continues and the loss is not reported.
    Ignore,
}

/// The rules by which a child is supervised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Where the child runs.
    pub placement: Placement,
    /// What happens on a loss.
    pub on_lost: OnLost,
    /// The first signal on a loss.
    pub signal: Signal,
    /// The time between that signal and SIGKILL.
    pub grace: Duration,
    /// SIGKILL follows a forwarded INT or TERM after this time; `None`: no limit.
    pub kill_after: Option<Duration>,
    /// The time reserved between SIGKILL and the lease's end for the kernel to end the processes.
    pub margin: Duration,
    /// The child is ended after holding the lock this long.
    pub at_most: Option<Duration>,
}

impl Policy {
    /// Returns the rules for a lease of `ttl`, with the grace that `--kill-after` sets.
    ///
    /// # Errors
    /// When the grace leaves no time to renew the lease.
    pub fn new(ttl: Duration, kill_after: Option<Duration>) -> Result<Policy, String> {
        let margin = (ttl / 20).clamp(Duration::from_millis(10), Duration::from_millis(250));
        // A third of the lease passes before each renewal; the sixth between that and one half is for the renewal
        // itself.
        let longest = (ttl / 2).saturating_sub(margin);
        let grace = kill_after.unwrap_or(GRACE.min(ttl / 3));
        if grace > longest {
            let (grace, ttl) = (grace.as_secs_f64(), ttl.as_secs_f64());
            return Err(format!(
                "--kill-after {grace} s is too long for --ttl {ttl} s: the command is signalled that long before the \
                 lease ends, which must not be before the lease is due to be renewed; use at most {:.1} s, or a longer --ttl",
                longest.as_secs_f64()
            ));
        }
        Ok(Policy {
            placement: Placement::default(),
            on_lost: OnLost::default(),
            signal: Signal::TERM,
            grace,
            kill_after,
            margin,
            at_most: None,
        })
    }

    /// Returns the shortest lease, of at least `ttl`, for which [`Policy::new`] accepts `kill_after`.
    #[must_use]
    pub fn ttl_for(ttl: Duration, kill_after: Option<Duration>) -> Duration {
        let needed = kill_after.map_or(Duration::ZERO, |grace| (grace + Duration::from_millis(250)) * 2);
        ttl.max(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_never_reaches_a_renewed_lease() {
        for ttl_ms in [100, 300, 1_000, 10_000, 30_000, 600_000] {
            let ttl = Duration::from_millis(ttl_ms);
            let policy = Policy::new(ttl, None).unwrap();
            assert!(policy.grace + policy.margin <= ttl / 2, "{policy:?}");
        }
        assert_eq!(Policy::new(Duration::from_secs(30), None).unwrap().grace, GRACE);
    }

    #[test]
    fn a_grace_that_does_not_fit_is_refused_or_makes_the_lease_longer() {
        let (ttl, long) = (Duration::from_secs(30), Some(Duration::from_secs(20)));
        let problem = Policy::new(ttl, long).unwrap_err();
        assert!(problem.contains("at most 14.8 s"), "{problem}");
        assert!(Policy::new(Policy::ttl_for(ttl, long), long).is_ok());
        assert_eq!(Policy::ttl_for(ttl, Some(Duration::from_secs(1))), ttl);
    }
}
