//! What this client knows of a node's note, and which claims the node may vote for without changing it.

/// A note of a node that votes, as the node told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownNote {
    text: String,
    born_us: u64,
    leases_end_us: u64,
    max_lease_us: u64,
}

impl KnownNote {
    /// Reads the note that a node of the run `run_id` told at `now_us` by its clock. Returns `None` unless the node votes.
    pub(crate) fn read(text: &str, run_id: &str, now_us: u64) -> Option<KnownNote> {
        let mut words = text.split(' ');
        let is_its_own = words.next() == Some(run_id);
        let mut number = || words.next()?.parse::<u64>().ok();
        let (born_us, _leapt_us, quarantine_end_us) = (number()?, number()?, number()?);
        let (leases_end_us, max_lease_us) = (number()?, number()?);
        let votes = is_its_own && quarantine_end_us <= now_us && words.next().is_none();
        votes.then(|| KnownNote { text: text.to_owned(), born_us, leases_end_us, max_lease_us })
    }

    /// Returns what a node without a restart guard has instead of a note: it votes whatever it has forgotten.
    pub(crate) fn unguarded() -> KnownNote {
        KnownNote { text: String::new(), born_us: 0, leases_end_us: u64::MAX, max_lease_us: u64::MAX }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns until when, by the node's clock, it may vote for `ballot` and a lease of `ttl_ms` without changing its note;
    /// `None` when it may not.
    pub(crate) fn votes_until(&self, ballot: u64, ttl_ms: u64) -> Option<u64> {
        let ttl_us = ttl_ms.saturating_mul(1000);
        (ballot > self.born_us && ttl_us <= self.max_lease_us).then(|| self.leases_end_us.saturating_sub(ttl_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: &str = "abc 1000 0 5000 90000 40000";

    #[test]
    fn only_the_note_of_this_run_of_a_node_that_votes_is_known() {
        assert_eq!(KnownNote::read(NOTE, "abc", 5000).unwrap().text(), NOTE);
        for (text, run_id, now_us) in [
            (NOTE, "abd", 5000),
            (NOTE, "abc", 4999),
            ("", "", 5000),
            ("abc 1000 0 5000 90000", "abc", 5000),
            ("abc 1000 0 5000 90000 40000 1", "abc", 5000),
            ("abc 1000 0 x 90000 40000", "abc", 5000),
        ] {
            assert_eq!(KnownNote::read(text, run_id, now_us), None, "{text:?} of {run_id:?} at {now_us}");
        }
    }

    #[test]
    fn a_vote_fits_the_note_until_its_lease_would_outlast_the_others() {
        let note = KnownNote::read(NOTE, "abc", 5000).unwrap();
        assert_eq!(note.votes_until(1001, 30), Some(60_000));
        assert_eq!(note.votes_until(1001, 40), Some(50_000));
        assert_eq!(note.votes_until(1001, 41), None, "longer than any lease before");
        assert_eq!(note.votes_until(1000, 30), None, "the node may have forgotten that ballot");
        assert_eq!(KnownNote::unguarded().votes_until(1, u64::MAX), Some(0));
    }
}
