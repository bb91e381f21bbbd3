//! What the events of an attempt return: what its caller has to do.

#![cfg_attr(
    not(feature = "simulation"),
    allow(unreachable_pub, reason = "only the model of this repository reaches it")
)]

use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::types::clock::Moment;

/// What a waiter knows of its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Its key's create revision.
    pub created: i64,
    /// The revision up to which it has read the queue.
    pub revision: i64,
    /// The keys whose end it waits for.
    pub before: Vec<QueueKey>,
    /// It is the first from this revision on: nothing is to be waited for.
    pub first_at: Option<i64>,
}

/// What became of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granted {
    /// The lock is held.
    Held {
        /// The key's create revision.
        created: i64,
        /// The slot of a semaphore.
        slot: Option<u32>,
    },
    /// The key, or the lease, was seen to be gone: report the loss.
    Lost,
    /// The attempt was given up.
    GivenUp,
}

/// The key that a release deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToDelete {
    /// Its create revision; 0 when that is not known.
    pub created: i64,
    /// The lease that it hangs on.
    pub lease: i64,
    /// The leases that it may have been moved to.
    pub moving_to: Vec<i64>,
}

/// What to do after the reply to a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDeletion {
    /// Forget the attempt.
    Forget,
    /// An unanswered request may still make the key: retire its lease, and repeat the release.
    Late,
}

/// What to do about an attempt when a lease is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseGone {
    /// Nothing: the key does not hang on it.
    Untouched,
    /// The key is gone with it.
    KeyLost,
    /// The key may hang on another lease. No holder counts on it any more, and housekeeping deletes it.
    GivenUp {
        /// Tell the holder.
        tell: bool,
    },
    /// Check whether the key went with it.
    Look,
}

/// What to do about an attempt whose key is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Tell the holder.
    pub tell: bool,
    /// Wake the waiter.
    pub wake: bool,
    /// Unanswered requests may still make the key: delete one that is made after this revision.
    pub delete_after: Option<i64>,
}

/// What to do about a deletion that a watch saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SawDeletion {
    /// Nothing: it was an older key of this name, or this client deleted it.
    Nothing,
    /// A hold is lost: find out whether it was broken by force.
    FindReason {
        /// The key's create revision.
        created: i64,
    },
    /// A waiter's key is lost.
    KeyLost,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The hold counts on the new term.
    Done,
    /// The key may hang on another lease by now: renew again.
    Again,
    /// It is no hold any more.
    Lost,
}

/// What to do to move a hold to a longer lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Nothing: its lease is long enough.
    Done,
    /// It is no hold any more.
    Lost,
    /// The longer lease may end before the term that the holder counts on: renew it first.
    RenewFirst,
    /// Ask the server to move it.
    Send {
        /// The key's create revision.
        created: i64,
        /// The lease that it is moved from.
        from: i64,
        /// An earlier request to move it there was not answered.
        in_doubt: bool,
    },
}

/// Why a hold's value cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAmendment {
    /// It is no hold.
    NotHeld,
    /// It is being moved to another lease.
    Moving,
}

/// What housekeeping has to do for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chore {
    /// Forget it.
    Forget,
    /// Nothing: it is being given up.
    Rest,
    /// Delete its key.
    Delete,
    /// Its time is over: wake its waiter and delete its key.
    End,
    /// Keep the watch of a waiter.
    WatchQueue,
    /// Look again at this moment: the hold is young.
    LookAt(Moment),
    /// Watch the key of a hold.
    WatchKey {
        /// The key was there at this revision.
        revision: i64,
        /// Check the key, whatever the watch saw.
        in_question: bool,
    },
}
