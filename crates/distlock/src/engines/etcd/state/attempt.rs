//! One attempt to take a lock, and the hold that it may become: what this client knows of it, as rules.
//!
//! Each method is an event, named after what happened; its return value is what the caller has to do about it. There is
//! no clock here and nothing is awaited. The model in `models/` explores these very rules.

#![cfg_attr(
    not(feature = "simulation"),
    allow(unreachable_pub, reason = "only the model of this repository reaches it")
)]

use std::time::Duration;

use super::effect::{
    AfterDeletion, Chore, Granted, LeaseGone, Lost, Move, NoAmendment, Renewed, SawDeletion, ToDelete, Wait,
};
use super::phase::{Leaving, Phase};
use crate::contract::Term;
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::types::clock::Moment;

/// A hold is watched when it lasts longer than this. Most holds are shorter and cost no watch.
pub(crate) const WATCH_AFTER: Duration = Duration::from_millis(250);
/// A hold that was passed on within this client and is older than this will not be released in a moment.
const RELEASED_SOON: Duration = Duration::from_millis(5);
/// How long an unanswered request may still make a key: its deletion is repeated until then.
pub(crate) const LATE_KEY_WAIT: Duration = Duration::from_secs(60);

/// A lease that a key may hang on.
pub trait LeaseHandle: Clone {
    /// The id that etcd gave it.
    fn id(&self) -> i64;
}

/// What this client knows of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttemptState<L> {
    /// The lease that the key hangs on.
    lease: L,
    /// The leases that the key was asked to be moved to, and may hang on already. Each is longer than `lease`, so that
    /// a late request never moves the key back.
    next_leases: Vec<L>,
    phase: Phase,
    /// The key's create revision, which is the fencing token; 0 while it is not known.
    created: i64,
    /// The last revision at which a key of this name was seen deleted.
    deleted: i64,
    /// The last revision at which the key was seen written before the lock was held.
    written: i64,
    /// The revision up to which the queue was read.
    revision: i64,
    /// The keys whose end it waits for, as of `revision`: while all of them exist, the lock is not free for it.
    before: Vec<QueueKey>,
    /// The reply to a predecessor's release showed the key that was made at the first revision: from the second
    /// revision on it is the first key of the queue.
    shown_first: Option<(i64, i64)>,
    /// The slot of a semaphore that it has.
    slot: Option<u32>,
    /// How many requests to make the key were not answered and may still make it.
    unanswered: u32,
    /// A lease that the key may have hung on is gone; it was not checked yet whether the key went with it.
    in_question: bool,
    /// The key may go on without this attempt, or may still be deleted by its name: no other key may get that name.
    name_is_taken: bool,
    /// The start of the term that the core knows.
    known_start: Moment,
    /// After this moment the key is deleted.
    keep_until: Moment,
    /// Until when an unanswered request may make the key, though a release was answered.
    late_until: Option<Moment>,
}

impl<L: LeaseHandle> AttemptState<L> {
    /// Returns a new attempt. `created` is not 0 where it takes a hold over.
    pub fn new(lease: L, created: i64, known_start: Moment, keep_until: Moment) -> Self {
        AttemptState {
            lease,
            next_leases: Vec::new(),
            phase: Phase::Waiting,
            created,
            deleted: 0,
            written: 0,
            revision: 0,
            before: Vec::new(),
            shown_first: None,
            slot: None,
            unanswered: 0,
            in_question: false,
            name_is_taken: false,
            known_start,
            keep_until,
            late_until: None,
        }
    }

    /// Returns the lease that the key hangs on.
    pub fn lease(&self) -> &L {
        &self.lease
    }

    /// Returns all leases that the key may hang on.
    pub fn leases(&self) -> impl Iterator<Item = &L> {
        std::iter::once(&self.lease).chain(&self.next_leases)
    }

    /// Returns the leases that the key was asked to be moved to.
    pub fn next_leases(&self) -> &[L] {
        &self.next_leases
    }

    /// Returns the key's create revision; 0 while it is not known.
    pub fn created(&self) -> i64 {
        self.created
    }

    /// Returns the keys whose end it waits for.
    pub fn before(&self) -> &[QueueKey] {
        &self.before
    }

    /// Returns the start of the term that the core knows.
    pub fn known_start(&self) -> Moment {
        self.known_start
    }

    /// Returns the moment after which the key is deleted.
    pub fn keep_until(&self) -> Moment {
        self.keep_until
    }

    /// Returns whether the lock is held.
    pub fn is_held(&self) -> bool {
        self.phase.is_held()
    }

    /// Returns whether it still waits.
    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// Returns whether its key is known to be gone.
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Returns whether it is being given up.
    pub fn is_leaving(&self) -> bool {
        self.phase.is_leaving()
    }

    /// Returns whether the predecessor has left and this key is the first.
    pub fn is_first(&self) -> bool {
        self.first_at().is_some()
    }

    /// Returns the revision from which on this key is the first, if a release has shown that.
    pub fn first_at(&self) -> Option<i64> {
        self.shown_first.filter(|(created, _)| *created == self.created).map(|(_, revision)| revision)
    }

    /// Returns until when an unanswered request may make the key, though a release was answered.
    pub fn late_until(&self) -> Option<Moment> {
        self.late_until
    }

    /// Returns whether an unanswered request may still make the key.
    pub fn has_unanswered(&self) -> bool {
        self.unanswered > 0
    }

    /// Returns whether a check is due whether the key is still there.
    pub fn is_in_question(&self) -> bool {
        self.in_question
    }

    /// Returns whether nothing of it is on the server, nor can come to be there.
    pub fn is_unmade(&self) -> bool {
        self.created == 0 && self.unanswered == 0
    }

    /// Returns whether another key may get the name of this one, once this attempt is forgotten.
    pub fn frees_name(&self) -> bool {
        self.unanswered == 0 && !self.name_is_taken
    }

    /// Returns whether its key hangs on `lease`, or will, and is not given up.
    pub fn needs(&self, lease: i64) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Held(_)) && self.leases().any(|other| other.id() == lease)
    }

    /// Returns what it waits for; `None` when it does not wait with a key that is known to be made.
    pub fn wait(&self) -> Option<Wait> {
        let waits = self.phase == Phase::Waiting && self.created != 0;
        waits.then(|| Wait {
            created: self.created,
            revision: self.revision,
            before: self.before.clone(),
            first_at: self.first_at(),
        })
    }

    /// Returns whether a waiter need not wait any longer.
    pub fn has_news(&self) -> bool {
        self.is_first() || self.phase != Phase::Waiting
    }

    /// Returns whether a hold that was passed on within this client is about to be released; with `has_next`, the next
    /// waiter of this client gets it then and releases it too.
    pub fn is_released_soon(&self, now: Moment, has_next: bool) -> bool {
        self.is_first()
            && match self.phase {
                Phase::Waiting => true,
                Phase::Held(since) => now.since(since) < RELEASED_SOON,
                Phase::Leaving { .. } => has_next,
                Phase::Gone => false,
            }
    }

    /// The core asks for it once more.
    pub fn asked_again(&mut self, keep_until: Moment) {
        self.keep_until = self.keep_until.max(keep_until);
    }

    /// A request to make the key was answered: the key was made at `own`, by this request if `is_new`.
    pub fn made(&mut self, own: Option<i64>, is_new: bool) {
        self.created = own.unwrap_or(0);
        // One of the unanswered requests made it.
        let was_there = own.is_some() && !is_new;
        self.unanswered = self.unanswered.saturating_sub(u32::from(was_there));
    }

    /// The key that was made at `created` came in one request with the predecessor's release, and is the first.
    pub fn came_with_release(&mut self, created: i64) {
        self.shown_first = Some((created, created));
    }

    /// A request to make or to take over the key was not answered.
    pub fn unanswered(&mut self) {
        self.unanswered += 1;
    }

    /// The queue was read as of `revision`, and the lock is not free.
    pub fn queue_read(&mut self, revision: i64) {
        self.revision = revision;
    }

    /// What it waits for was still there as of `revision`.
    pub fn queue_unchanged(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    /// It waits for the end of one of `before` from now on. Returns what it waited for until now.
    pub fn put_behind(&mut self, before: Vec<QueueKey>) -> Vec<QueueKey> {
        std::mem::replace(&mut self.before, before)
    }

    /// Its key was seen with this slot of a semaphore.
    pub fn slot_seen(&mut self, slot: Option<u32>) {
        self.slot = slot;
    }

    /// The server showed as of `revision` that the lock is its own; `lease_is_gone` and `term` are those of its lease.
    pub fn granted(&mut self, revision: i64, lease_is_gone: bool, term: Term, now: Moment) -> Granted {
        if self.deleted > self.created || lease_is_gone {
            return Granted::Lost;
        }
        match self.phase {
            Phase::Held(_) => {}
            Phase::Waiting => self.phase = Phase::Held(now),
            Phase::Leaving { .. } | Phase::Gone => return Granted::GivenUp,
        }
        self.revision = self.revision.max(revision);
        // Another attempt may have taken the hold over before this client heard of it.
        self.in_question |= self.written > self.revision;
        self.known_start = term.start;
        self.keep_until = self.keep_until.max(term.start.after(term.ttl));
        Granted::Held { created: self.created, slot: self.slot }
    }

    /// The reply to the predecessor's release showed, as of `revision`, that the key made at `created` is the first.
    /// Returns whether the attempt waits with that key, and is to be woken. An attempt that does not know its key yet
    /// finds out when its own request is answered.
    pub fn handed_over(&mut self, created: i64, revision: i64) -> bool {
        let waits = self.phase == Phase::Waiting;
        if waits && (self.created == created || self.created == 0) {
            self.shown_first = Some((created, revision));
        }
        waits && self.created == created
    }

    /// A release begins; `None` when the key is gone.
    pub fn leave(&mut self) -> Option<Leaving> {
        (self.phase != Phase::Gone).then(|| self.phase.leave())
    }

    /// Returns the key that a release deletes.
    pub fn to_delete(&self) -> ToDelete {
        let moving_to = self.next_leases.iter().map(LeaseHandle::id).collect();
        ToDelete { created: self.created, lease: self.lease.id(), moving_to }
    }

    /// A request to delete the key that was made at `created` was not answered.
    pub fn deletion_unanswered(&mut self, created: i64) {
        if created == 0 {
            // It may still arrive, and would delete the next key of this name.
            self.name_is_taken = true;
        }
    }

    /// A release was answered: the key was `deleted`, or was not there. `was_known` says whether its create revision
    /// was known when the request was sent.
    pub fn left(&mut self, was_known: bool, deleted: bool, now: Moment) -> AfterDeletion {
        // Another client may have taken the hold over, with the name of the key.
        self.name_is_taken |= !deleted && self.phase == Phase::Leaving { was_held: true };
        if !was_known && deleted {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
        if self.unanswered == 0 {
            return AfterDeletion::Forget;
        }
        self.created = 0;
        let until = *self.late_until.get_or_insert(now.after(LATE_KEY_WAIT));
        if now < until { AfterDeletion::Late } else { AfterDeletion::Forget }
    }

    /// A lease is gone, and every key that hung on it.
    pub fn lease_gone(&mut self, lease: i64, now: Moment) -> LeaseGone {
        let others = self.next_leases.len();
        self.next_leases.retain(|next| next.id() != lease);
        let was_moving_to_it = self.next_leases.len() < others;
        match () {
            () if self.lease.id() == lease && !self.next_leases.is_empty() => {
                let tell = self.phase.is_held();
                if tell {
                    self.phase = Phase::Leaving { was_held: false };
                    self.keep_until = now;
                }
                LeaseGone::GivenUp { tell }
            }
            () if self.lease.id() == lease => LeaseGone::KeyLost,
            // The key may have hung on it, or not yet.
            () if was_moving_to_it => {
                self.in_question = true;
                LeaseGone::Look
            }
            () => LeaseGone::Untouched,
        }
    }

    /// The key is gone, with its lease or because another client deleted it or took it over.
    pub fn lost(&mut self) -> Lost {
        let phase = std::mem::replace(&mut self.phase, Phase::Gone);
        Lost {
            tell: phase.is_held(),
            wake: phase == Phase::Waiting,
            delete_after: (self.unanswered > 0).then_some(self.created),
        }
    }

    /// A watch saw at `revision` that a key of this name was deleted.
    pub fn saw_deletion(&mut self, revision: i64) -> SawDeletion {
        self.deleted = self.deleted.max(revision);
        // The end of an older key of the same name says nothing about this one.
        if !(1..revision).contains(&self.created) {
            return SawDeletion::Nothing;
        }
        match self.phase {
            Phase::Held(_) => SawDeletion::FindReason { created: self.created },
            Phase::Waiting => SawDeletion::KeyLost,
            Phase::Leaving { .. } | Phase::Gone => SawDeletion::Nothing,
        }
    }

    /// A watch saw at `revision` that the key was written. Returns whether to read who wrote it.
    pub fn saw_write(&mut self, revision: i64) -> bool {
        if self.phase == Phase::Waiting {
            self.written = self.written.max(revision);
        }
        self.phase.is_held() && self.revision < revision
    }

    /// A watch may have seen changes of the key before it became this attempt's: it is read once.
    pub fn was_not_watched(&mut self) {
        self.in_question = true;
    }

    /// Returns the revision at which the key of a hold was there; `None` when it is no hold.
    pub fn held_at(&self) -> Option<i64> {
        self.phase.is_held().then_some(self.revision)
    }

    /// The key was read as of `revision`, and this attempt was the last to write it.
    pub fn found_own_value(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
        self.in_question = false;
    }

    /// The key was read as of `revision`, and its value is not that of a lock client.
    pub fn found_foreign_value(&mut self, revision: i64) {
        (self.revision, self.in_question) = (revision, false);
    }

    /// The hold goes on as that of another attempt. [`lost`](Self::lost) follows.
    pub fn taken_by_another(&mut self) {
        self.name_is_taken = true;
    }

    /// The key of another hold became its own.
    pub fn taken_over(&mut self) {
        self.unanswered = 0;
    }

    /// A watch saw the key deleted before it became this attempt's.
    pub fn end_was_seen(&mut self) {
        self.deleted = self.created.saturating_add(1);
    }

    /// Returns the lease and the create revision to take a hold over with; `None` when it is given up or gone.
    pub fn adopter(&self) -> Option<(i64, i64)> {
        matches!(self.phase, Phase::Waiting | Phase::Held(_)).then(|| (self.lease.id(), self.created))
    }

    /// Those of its leases that are in `leases` were renewed, and `term` is the one that ends first; `None`: the first
    /// of them is gone.
    pub fn renewed(&mut self, leases: &[L], term: Option<Term>) -> Renewed {
        if !self.phase.is_held() {
            return Renewed::Lost;
        }
        let Some(term) = term else { return Renewed::Again };
        // A lease that it was moved to meanwhile may end sooner.
        if !self.leases().all(|lease| leases.iter().any(|renewed| renewed.id() == lease.id())) {
            return Renewed::Again;
        }
        self.known_start = self.known_start.max(term.start);
        self.keep_until = self.keep_until.max(term.start.after(term.ttl));
        Renewed::Done
    }

    /// Returns the create revision, the lease and the slot with which the value of a hold is written.
    pub fn amendment(&self) -> Result<(i64, i64, Option<u32>), NoAmendment> {
        match () {
            () if !self.phase.is_held() => Err(NoAmendment::NotHeld),
            () if !self.next_leases.is_empty() => Err(NoAmendment::Moving),
            () => Ok((self.created, self.lease.id(), self.slot)),
        }
    }

    /// The hold is to be moved to `longer`, whose term began at `start`, unless its lease `is_long_enough`.
    pub fn begin_move(&mut self, longer: &L, start: Moment, is_long_enough: bool) -> Move {
        match self.phase {
            Phase::Held(_) if !is_long_enough => {}
            Phase::Held(_) => return Move::Done,
            _ => return Move::Lost,
        }
        if start <= self.known_start {
            return Move::RenewFirst;
        }
        // Until the reply the key may hang on either.
        let in_doubt = self.next_leases.iter().any(|next| next.id() == longer.id());
        if !in_doubt {
            self.next_leases.push(longer.clone());
        }
        Move::Send { created: self.created, from: self.lease.id(), in_doubt }
    }

    /// A request to move the key was answered: it hangs on `lease`. Returns whether that is one of the leases that it
    /// was moved to; otherwise the key is gone or another client's, and [`lost`](Self::lost) follows.
    pub fn moved(&mut self, lease: Option<i64>) -> bool {
        let Some(next) = self.next_leases.iter().find(|next| Some(next.id()) == lease).cloned() else {
            self.name_is_taken = true;
            return false;
        };
        self.lease = next;
        self.next_leases.clear();
        self.in_question = false;
        true
    }

    /// The server refused to move the key to `lease`, and did nothing.
    pub fn move_refused(&mut self, lease: i64) {
        self.next_leases.retain(|next| next.id() != lease);
    }

    /// Housekeeping looks after it.
    pub fn due(&mut self, now: Moment) -> Chore {
        let is_over = now >= self.keep_until;
        match self.phase {
            Phase::Gone => Chore::Forget,
            // The core repeats a release, and forgets it when its time is over.
            Phase::Leaving { .. } if self.late_until.is_some_and(|until| now < until) || !is_over => Chore::Rest,
            Phase::Leaving { .. } => Chore::Delete,
            Phase::Held(_) | Phase::Waiting if is_over => {
                self.phase = Phase::Leaving { was_held: self.phase.is_held() };
                Chore::End
            }
            Phase::Waiting => Chore::WatchQueue,
            Phase::Held(since) if now.since(since) < WATCH_AFTER => Chore::LookAt(since.after(WATCH_AFTER)),
            Phase::Held(_) => Chore::WatchKey { revision: self.revision, in_question: self.in_question },
        }
    }
}

#[cfg(test)]
mod tests;
