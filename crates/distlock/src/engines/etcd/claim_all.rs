//! Several locks in one step: one transaction makes all keys, if all queues are empty.

use std::sync::Arc;

use crate::contract::{Claim, ClaimedAll};
use crate::engines::etcd::claim::key_request;
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{Header, KeyValue, Request, TxnRequest};
use crate::engines::etcd::protocol::queue::{KeyRequest, first_of, is_free, own, range, ranges_of};
use crate::engines::etcd::protocol::value;
use crate::engines::etcd::state::attempts::Attempt;
use crate::engines::etcd::wire::client::Client;
use crate::types::error::{Error, ErrorKind, Result};

/// How many locks one transaction takes: etcd allows for 128 operations.
const MOST_LOCKS: usize = 40;

/// How several queues looked to a request for all of them.
#[derive(Debug)]
struct AllQueues {
    /// Whether this very request made all keys.
    is_new: bool,
    /// The create revisions of our keys that are there.
    own: Vec<Option<i64>>,
    /// The first key of each queue, where it is not a new one of ours.
    heads: Vec<Option<KeyValue>>,
    header: Header,
}

impl AllQueues {
    /// Returns the first lock that another owner holds, or whose key is gone; `None` when all are ours.
    fn first_taken(&self) -> Option<usize> {
        if self.is_new {
            return None;
        }
        let head = |place: usize| self.heads.get(place)?.as_ref().map(|head| head.create_revision);
        let mut places = 0..self.own.len();
        let taken = places.clone().find(|place| head(*place).is_some_and(|head| self.own[*place] != Some(head)));
        taken.or_else(|| places.find(|place| self.own[*place].is_none()))
    }
}

/// Makes our keys in several queues if all of them are empty; otherwise none.
async fn join_all(client: &Client, wanted: &[KeyRequest]) -> Result<AllQueues, Failure> {
    let request = TxnRequest {
        compare: wanted.iter().map(|one| is_free(&one.lock)).collect(),
        success: wanted.iter().map(|one| Request::Put(one.put(None)).into()).collect(),
        failure: wanted.iter().flat_map(|one| [range(own(&one.key)), range(first_of(&one.lock, 1))]).collect(),
    };
    let answer = client.txn(request).await?;
    let header = answer.header.unwrap_or_default();
    if answer.succeeded {
        return Ok(AllQueues {
            is_new: true,
            own: vec![Some(header.revision); wanted.len()],
            heads: Vec::new(),
            header,
        });
    }
    let mut ranges = ranges_of(answer.responses);
    let mut first = || ranges.next().unwrap_or_default().into_iter().next();
    let read = wanted.iter().map(|_| (first().map(|own| own.create_revision), first()));
    let (own, heads) = read.unzip();
    Ok(AllQueues { is_new: false, own, heads, header })
}

impl Engine {
    pub(super) async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<ClaimedAll> {
        self.check_claims(claims)?;
        self.start();
        let mut attempts = Vec::with_capacity(claims.len());
        for claim in claims {
            match self.attempt_of(claim).await {
                Ok(Some(attempt)) => attempts.push(attempt),
                failed => {
                    self.forget_unmade(&attempts);
                    return Err(failed.err().unwrap_or_else(|| Error::unavailable("the lease was lost just now")));
                }
            }
        }
        let before = self.seen_revision.now();
        let seen = match self.make_all(&attempts, claims).await {
            Ok(seen) => seen,
            Err(failure) => {
                if failure.fault == Fault::LeaseGone {
                    attempts.iter().for_each(|attempt| {
                        self.lease_lost(&attempt.lease());
                    });
                }
                self.forget_unmade(&attempts);
                return Err(failure.into());
            }
        };
        self.seen_revision.check(before, seen.header)?;
        if let Some(which) = seen.first_taken() {
            self.forget_unmade(&attempts);
            let head = seen.heads.into_iter().nth(which).flatten();
            let holder = head.map(|head| value::holder_of(&head.value, head.create_revision));
            return Ok(ClaimedAll::Busy(claims[which].key.clone(), holder));
        }
        let grants = attempts.iter().map(|attempt| self.grant_at(attempt, seen.header.revision)).collect();
        match grants {
            Some(grants) => Ok(ClaimedAll::Granted(grants)),
            None => Err(Error::unknown("a lock was lost while it was granted")),
        }
    }

    /// Refuses what one transaction cannot take.
    fn check_claims(&self, claims: &[Claim]) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Unsupported, format!("one transaction cannot take {why}")));
        let mut locks: Vec<_> = claims.iter().map(|claim| self.names.lock(&claim.key)).collect();
        locks.sort();
        match () {
            () if locks.len() > MOST_LOCKS => refuse("that many locks"),
            // They would be in each other's queues, made at the same revision.
            () if locks.windows(2).any(|pair| pair[1].starts_with(&pair[0])) => refuse("locks whose names nest"),
            () => Ok(()),
        }
    }

    /// Makes all keys, or none. That goes on when the caller's future is dropped: only when its end is known can it be
    /// undone.
    async fn make_all(self: &Arc<Self>, attempts: &[Arc<Attempt>], claims: &[Claim]) -> Result<AllQueues, Failure> {
        let mut making = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            making.push(attempt.making().clone().lock_owned().await);
        }
        let wanted: Vec<_> = attempts.iter().zip(claims).map(|(attempt, claim)| key_request(attempt, claim)).collect();
        let (engine, attempts) = (self.clone(), attempts.to_vec());
        self.finish(async move {
            let outcome = join_all(&engine.client, &wanted).await;
            for (place, attempt) in attempts.iter().enumerate() {
                match &outcome {
                    Ok(seen) => attempt.state().made(seen.own.get(place).copied().flatten(), seen.is_new),
                    Err(failure) if failure.fault == Fault::Unknown => attempt.state().unanswered(),
                    Err(_) => {}
                }
            }
            drop(making);
            outcome
        })
        .await
    }

    /// Of these nothing is on the server, and nothing is on its way.
    fn forget_unmade(&self, attempts: &[Arc<Attempt>]) {
        for attempt in attempts {
            let is_unmade = attempt.state().is_unmade();
            if is_unmade {
                self.attempts.remove(attempt);
            }
        }
    }
}
