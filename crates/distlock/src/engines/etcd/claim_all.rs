//! Several locks in one step: one transaction makes all keys, if nobody is in any of the queues.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::contract::{Claim, ClaimedAll};
use crate::engines::etcd::engine::{Engine, ask_of, holder_of};
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{Compare, Header, KeyValue, Request, TxnRequest};
use crate::engines::etcd::protocol::names::end_of;
use crate::engines::etcd::protocol::queue::{Ask, created_at, first_of, own, range, ranges_of, txn};
use crate::engines::etcd::state::attempts::Attempt;
use crate::engines::etcd::wire::client::Client;
use crate::types::error::{Error, ErrorKind, Result};

/// How many locks one transaction takes: etcd allows for 128 operations.
const MOST: usize = 40;

/// How several queues looked to a request for all of them.
#[derive(Debug)]
struct Gathered {
    /// Whether this very request made all keys.
    is_new: bool,
    /// The create revisions of our keys that are there.
    own: Vec<Option<i64>>,
    /// The first key of each queue, where it is not a new one of ours.
    heads: Vec<Option<KeyValue>>,
    header: Header,
}

impl Gathered {
    /// The first of the locks that somebody else has, or that was ours and is gone; `None` when all are ours.
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

/// Makes our keys in several queues if nobody is in any of them; otherwise none.
async fn join_all(client: &Client, asks: &[Ask]) -> Result<Gathered, Failure> {
    let free = |ask: &Ask| Compare { range_end: end_of(&ask.lock), ..created_at(&ask.lock, 0) };
    let request = TxnRequest {
        compare: asks.iter().map(free).collect(),
        success: asks.iter().map(|ask| Request::Put(ask.put(None)).into()).collect(),
        failure: asks.iter().flat_map(|ask| [range(own(&ask.key)), range(first_of(&ask.lock, 1))]).collect(),
    };
    let answer = txn(client, request).await?;
    let header = answer.header.unwrap_or_default();
    if answer.succeeded {
        return Ok(Gathered { is_new: true, own: vec![Some(header.revision); asks.len()], heads: Vec::new(), header });
    }
    let mut ranges = ranges_of(answer.responses);
    let mut first = || ranges.next().unwrap_or_default().into_iter().next();
    let seen = asks.iter().map(|_| (first().map(|own| own.create_revision), first()));
    let (own, heads) = seen.unzip();
    Ok(Gathered { is_new: false, own, heads, header })
}

impl Engine {
    pub(super) async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<ClaimedAll> {
        self.check_together(claims)?;
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
        let gathered = match self.make_all(&attempts, claims).await {
            Ok(gathered) => gathered,
            Err(failure) => {
                if failure.fault == Fault::LeaseGone {
                    attempts.iter().for_each(|attempt| {
                        let session = attempt.state().session.clone();
                        self.lease_lost(&session);
                    });
                }
                self.forget_unmade(&attempts);
                return Err(failure.into());
            }
        };
        self.seen_revision.check(before, gathered.header)?;
        if let Some(which) = gathered.first_taken() {
            self.forget_unmade(&attempts);
            let head = gathered.heads.into_iter().nth(which).flatten();
            let holder = head.map(|head| holder_of(&head.value, head.create_revision));
            return Ok(ClaimedAll::Busy(claims[which].key.clone(), holder));
        }
        let grants = attempts.iter().map(|attempt| self.grant_at(attempt, gathered.header.revision)).collect();
        match grants {
            Some(grants) => Ok(ClaimedAll::Granted(grants)),
            None => Err(Error::unknown("a lock was lost while it was granted")),
        }
    }

    /// Refuses what one transaction cannot take.
    fn check_together(&self, claims: &[Claim]) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Unsupported, format!("one transaction cannot take {why}")));
        let mut locks: Vec<_> = claims.iter().map(|claim| self.names.lock(&claim.key)).collect();
        locks.sort();
        match () {
            () if locks.len() > MOST => refuse("that many locks"),
            // They would be in each other's queues, made at the same revision.
            () if locks.windows(2).any(|pair| pair[1].starts_with(&pair[0])) => refuse("locks whose names nest"),
            () => Ok(()),
        }
    }

    /// Makes all keys, or none. That goes on when the caller's future is dropped: only when its end is known can it be
    /// undone.
    async fn make_all(self: &Arc<Self>, attempts: &[Arc<Attempt>], claims: &[Claim]) -> Result<Gathered, Failure> {
        let mut making = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            making.push(attempt.making.clone().lock_owned().await);
        }
        let asks: Vec<_> = attempts.iter().zip(claims).map(|(attempt, claim)| ask_of(attempt, claim)).collect();
        let (tell, told) = oneshot::channel();
        let (engine, attempts) = (self.clone(), attempts.to_vec());
        self.run(async move {
            let outcome = join_all(&engine.client, &asks).await;
            for (place, attempt) in attempts.iter().enumerate() {
                let mut state = attempt.state();
                match &outcome {
                    Ok(gathered) => {
                        let own = gathered.own.get(place).copied().flatten();
                        state.created = own.unwrap_or(0);
                        // It was made by one of the requests that were not answered.
                        let was_there = own.is_some() && !gathered.is_new;
                        state.doubts = state.doubts.saturating_sub(u32::from(was_there));
                    }
                    Err(failure) => state.doubts += u32::from(failure.fault == Fault::Unknown),
                }
            }
            drop(making);
            let _ = tell.send(outcome);
        });
        told.await.unwrap_or_else(|_| Err(Failure::new(Fault::Unknown, "the engine was closed")))
    }

    /// Of these nothing is on the server, and nothing is on its way.
    fn forget_unmade(&self, attempts: &[Arc<Attempt>]) {
        for attempt in attempts {
            let is_unmade = {
                let state = attempt.state();
                state.created == 0 && state.doubts == 0
            };
            if is_unmade {
                self.attempts.remove(attempt);
            }
        }
    }
}
