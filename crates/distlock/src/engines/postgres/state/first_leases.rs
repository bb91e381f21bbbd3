//! Holds that were handed over and not renewed since.

use std::collections::BTreeSet;

use crate::types::sync::Mutex;
use crate::types::token::AttemptId;

/// More are forgotten: their renewals are then no more urgent than others.
const MOST: usize = 4096;

/// The attempts whose first lease, which is short, is not renewed yet.
#[derive(Debug, Default)]
pub(in crate::engines) struct FirstLeases(Mutex<BTreeSet<AttemptId>>);

impl FirstLeases {
    pub(in crate::engines) fn begin(&self, attempt: AttemptId) {
        let mut attempts = self.0.lock();
        if attempts.len() >= MOST {
            attempts.clear();
        }
        attempts.insert(attempt);
    }

    /// The attempt's hold is renewed, lost or released.
    pub(in crate::engines) fn end(&self, attempt: AttemptId) {
        self.0.lock().remove(&attempt);
    }

    pub(in crate::engines) fn have_any(&self, attempts: impl IntoIterator<Item = AttemptId>) -> bool {
        let known = self.0.lock();
        !known.is_empty() && attempts.into_iter().any(|attempt| known.contains(&attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_lease_is_known_until_it_ends_and_the_set_is_bounded() {
        let (leases, attempt) = (FirstLeases::default(), AttemptId::random());
        leases.begin(attempt);
        assert!(leases.have_any([AttemptId::random(), attempt]) && !leases.have_any([AttemptId::random()]));
        leases.end(attempt);
        assert!(!leases.have_any([attempt]));
        (0..3 * MOST).for_each(|_| leases.begin(AttemptId::random()));
        assert!(leases.0.lock().len() <= MOST);
    }
}
