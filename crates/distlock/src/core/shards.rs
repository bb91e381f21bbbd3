//! The keeper's renewals and releases, grouped by server: a server that hangs delays only its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::core::pending_release::PendingRelease;
use crate::types::clock::Moment;
use crate::types::token::AttemptId;

/// How many holds one renewal call carries.
const BATCH: usize = 256;
/// How many renewal calls are in flight to one server.
const RENEWALS_AT_ONCE: usize = 4;
/// How many releases are in flight to one server.
const RELEASES_AT_ONCE: usize = 64;

/// The work of each server, by the number that [`Backend::shard`](crate::backend::Backend::shard) returns.
#[derive(Default)]
pub(crate) struct Shards(BTreeMap<u64, Shard>);

struct Shard {
    /// Holds to renew.
    ready: Vec<Ready>,
    /// Whether they are in their order.
    is_ordered: bool,
    renewal_slots: Arc<Semaphore>,
    releases: VecDeque<PendingRelease>,
    /// Repetitions of confirmed releases: they never delay a first release.
    repetitions: VecDeque<PendingRelease>,
    release_slots: Arc<Semaphore>,
}

/// A hold to renew.
struct Ready {
    end: Moment,
    attempt: AttemptId,
    /// Its renewals without a reply.
    unanswered: u32,
}

impl Default for Shard {
    fn default() -> Self {
        Shard {
            ready: Vec::new(),
            is_ordered: true,
            renewal_slots: Arc::new(Semaphore::new(RENEWALS_AT_ONCE)),
            releases: VecDeque::new(),
            repetitions: VecDeque::new(),
            release_slots: Arc::new(Semaphore::new(RELEASES_AT_ONCE)),
        }
    }
}

impl Shard {
    fn is_idle(&self) -> bool {
        self.ready.is_empty()
            && !self.has_releases()
            && self.renewal_slots.available_permits() == RENEWALS_AT_ONCE
            && self.release_slots.available_permits() == RELEASES_AT_ONCE
    }

    fn next_batch(&mut self) -> Option<(Vec<AttemptId>, OwnedSemaphorePermit)> {
        if self.ready.is_empty() {
            return None;
        }
        // Also while no call can begin, so that holds that are added again and again take no room.
        self.order();
        let slot = self.renewal_slots.clone().try_acquire_owned().ok()?;
        // Renewals without a reply are retried in smaller and smaller calls: a part of a server that hangs costs only its
        // own locks.
        let unanswered = self.ready.last()?.unanswered;
        let size = (BATCH >> (2 * unanswered).min(8)).max(1);
        let batch = self.ready.drain(self.ready.len().saturating_sub(size)..);
        Some((batch.rev().map(|ready| ready.attempt).collect(), slot))
    }

    /// Puts the nearest end last. A hold that was added again before its call began stands there once.
    fn order(&mut self) {
        if !std::mem::replace(&mut self.is_ordered, true) {
            let order = |ready: &Ready| std::cmp::Reverse((ready.end, ready.attempt));
            self.ready.sort_by_key(order);
            self.ready.dedup_by(|again, first| {
                let is_same = order(again) == order(first);
                first.unanswered = if is_same { first.unanswered.max(again.unanswered) } else { first.unanswered };
                is_same
            });
        }
    }

    fn next_release(&mut self) -> Option<(PendingRelease, OwnedSemaphorePermit)> {
        if !self.has_releases() {
            return None;
        }
        let slot = self.release_slots.clone().try_acquire_owned().ok()?;
        self.releases.pop_front().or_else(|| self.repetitions.pop_front()).map(|release| (release, slot))
    }

    fn has_releases(&self) -> bool {
        !self.releases.is_empty() || !self.repetitions.is_empty()
    }
}

impl Shards {
    /// Adds a hold that ends at `end`, with its count of renewals without a reply. Added twice, it is renewed once.
    pub(crate) fn renew(&mut self, shard: u64, end: Moment, attempt: AttemptId, unanswered: u32) {
        let shard = self.0.entry(shard).or_default();
        shard.ready.push(Ready { end, attempt, unanswered });
        shard.is_ordered = false;
    }

    /// Adds a release.
    pub(crate) fn add_release(&mut self, shard: u64, release: PendingRelease) {
        let shard = self.0.entry(shard).or_default();
        let queue = if release.is_confirmed { &mut shard.repetitions } else { &mut shard.releases };
        queue.push_back(release);
    }

    /// Returns the holds of the next renewal call, and its permit.
    pub(crate) fn next_batch(&mut self) -> Option<(Vec<AttemptId>, OwnedSemaphorePermit)> {
        self.0.values_mut().find_map(Shard::next_batch)
    }

    /// Returns the next release, and its permit.
    pub(crate) fn next_release(&mut self) -> Option<(PendingRelease, OwnedSemaphorePermit)> {
        self.0.values_mut().find_map(Shard::next_release)
    }

    /// Drops servers without work: they come and go.
    pub(crate) fn forget_idle(&mut self) {
        self.0.retain(|_, shard| !shard.is_idle());
    }

    pub(crate) fn has_releases(&self) -> bool {
        self.0.values().any(Shard::has_releases)
    }

    /// Takes all releases that are not in flight.
    pub(crate) fn take_releases(&mut self) -> impl Iterator<Item = PendingRelease> {
        let take = |shard: &mut Shard| {
            let (releases, repetitions) = (std::mem::take(&mut shard.releases), std::mem::take(&mut shard.repetitions));
            releases.into_iter().chain(repetitions)
        };
        self.0.values_mut().flat_map(take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::hold::tests::{START, TTL, hold};
    use crate::types::options::Options;

    #[test]
    fn a_server_whose_calls_do_not_end_holds_up_no_other() {
        let mut shards = Shards::default();
        let mut begun = Vec::new();
        for number in 0..1000_u64 {
            shards.renew(1, START, AttemptId::random(), u32::try_from(number).unwrap());
        }
        begun.extend(std::iter::from_fn(|| shards.next_batch()));
        assert_eq!(begun.len(), RENEWALS_AT_ONCE, "the rest waits");
        let other = AttemptId::random();
        shards.renew(2, START.after(TTL), other, 0);
        assert_eq!(shards.next_batch().expect("begun").0, [other]);

        let release = || PendingRelease::withdraw(&hold(&Options::default()).claim, START);
        (0..200).for_each(|_| shards.add_release(1, release()));
        let releases: Vec<_> = std::iter::from_fn(|| shards.next_release()).collect();
        assert_eq!(releases.len(), RELEASES_AT_ONCE);
        let last = release();
        let attempt = last.claim.attempt;
        shards.add_release(2, last);
        assert_eq!(shards.next_release().expect("begun").0.claim.attempt, attempt);
        assert_eq!(shards.take_releases().count(), 200 - RELEASES_AT_ONCE);
    }

    #[test]
    fn repetitions_are_sent_after_all_first_releases() {
        let mut shards = Shards::default();
        let first = PendingRelease::withdraw(&hold(&Options::default()).claim, START);
        let repetition = first.repeat(START.after(TTL), START);
        shards.add_release(0, repetition);
        shards.add_release(0, first);
        let order: Vec<_> =
            std::iter::from_fn(|| shards.next_release()).map(|(release, _)| release.is_confirmed).collect();
        assert_eq!(order, [false, true]);
        assert!(!shards.has_releases());
    }

    #[test]
    fn a_hold_that_is_due_again_before_its_call_begins_is_renewed_once() {
        let (mut shards, attempt) = (Shards::default(), AttemptId::random());
        (0..3).for_each(|unanswered| shards.renew(0, START, attempt, unanswered));
        let (batch, slot) = shards.next_batch().expect("begun");
        assert_eq!(batch, [attempt]);
        assert!(shards.next_batch().is_none());
        shards.forget_idle();
        assert_eq!(shards.0.len(), 1, "a call is under way");
        drop(slot);
        shards.forget_idle();
        assert!(shards.0.is_empty());
    }
}
