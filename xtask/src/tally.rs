//! Counts of passed, failed and skipped tests.

use std::fmt;
use std::ops::AddAssign;

/// Counts of tests; a step that is not a test counts as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Passed.
    pub(crate) passed: usize,
    /// Failed.
    pub(crate) failed: usize,
    /// Not run.
    pub(crate) skipped: usize,
}

impl Tally {
    /// Returns the count of one check.
    pub(crate) fn one(good: bool) -> Self {
        Tally { passed: usize::from(good), failed: usize::from(!good), skipped: 0 }
    }

    /// Returns whether nothing failed.
    pub(crate) fn is_good(self) -> bool {
        self.failed == 0
    }

    /// A run that failed has at least one failure, also when it died before it could count.
    pub(crate) fn of_run(self, good: bool) -> Self {
        if good || self.failed > 0 { self } else { Tally { failed: 1, ..self } }
    }

    /// Counts tests that passed only because they skipped themselves as skipped.
    pub(crate) fn with_skips(self, skips: usize) -> Self {
        let moved = skips.min(self.passed);
        Tally { passed: self.passed - moved, skipped: self.skipped + moved, ..self }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_is_named_only_when_something_was_skipped() {
        assert_eq!(Tally { passed: 3, failed: 0, skipped: 0 }.to_string(), "3 passed, 0 failed");
        assert_eq!(Tally { passed: 3, failed: 1, skipped: 2 }.to_string(), "3 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_run_without_counts_is_one_failure() {
        assert_eq!(Tally::default().of_run(false).failed, 1);
        assert_eq!(Tally { failed: 4, ..Tally::default() }.of_run(false).failed, 4);
        assert_eq!(Tally::one(true).of_run(true), Tally::one(true));
    }

    #[test]
    fn a_self_skipped_test_is_skipped_and_not_passed() {
        let tally = Tally { passed: 5, failed: 1, skipped: 1 }.with_skips(2);
        assert_eq!(tally, Tally { passed: 3, failed: 1, skipped: 3 });
        assert_eq!(Tally::one(true).with_skips(9), Tally { passed: 0, failed: 0, skipped: 1 });
    }
}
