//! The notes of locks' ticks: a key for each, on a lease that ends when the note is forgotten.
//!
//! etcd has no clock that a client could read, so ticks follow the clock of each machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::contract::{Claim, LockTicks, TickNotes};
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::lease_id::lease_id;
use crate::engines::etcd::protocol::messages::{
    KeyValue, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest, RangeResponse, Request, TxnRequest,
};
use crate::engines::etcd::protocol::methods::{LEASE_GRANT, RANGE};
use crate::engines::etcd::protocol::names::end_of;
use crate::engines::etcd::protocol::pages;
use crate::engines::etcd::protocol::queue::{self, created_at, hangs_on, unchanged};
use crate::engines::etcd::state::attempts::Attempt;
use crate::engines::etcd::state::effect::NoAmendment;
use crate::engines::etcd::wire::client::REQUEST_WAIT;
use crate::engines::shared::listing::{Allowance, in_time};
use crate::types::error::{Error, Result};
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote, check_count, millis};

/// How often a note is tried again when the one before it was written or forgotten in between.
const ROUNDS: usize = 8;

impl Engine {
    /// Returns the notes of a lock, or that of one tick.
    pub(super) async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        let stored = match tick {
            Some(tick) => self.stored(&self.names.tick_key(key, tick)).await?.into_iter().collect(),
            None => pages::list(&self.client, &self.names.ticks_of(key), &mut Allowance::new()).await?,
        };
        let now_ms = self.wall_ms();
        let notes = stored.iter().filter_map(|kv| live(kv, now_ms)).collect();
        Ok(TickNotes { is_common: false, ..TickNotes::at(now_ms, notes) })
    }

    /// Returns the notes of all locks whose names begin with `prefix`.
    pub(super) async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        let (mut all, mut allowance): (BTreeMap<Key, Vec<TickNote>>, _) = (BTreeMap::new(), Allowance::new());
        let (from, now_ms) = (self.names.all_ticks(prefix), self.wall_ms());
        let take = |kv: KeyValue| {
            if let (Some(key), Some(note)) = (self.names.lock_with_tick(&kv.key), live(&kv, now_ms)) {
                allowance.spend(1, kv.key.len() + kv.value.len())?;
                all.entry(key).or_default().push(note);
            }
            Ok(())
        };
        in_time(pages::walk(&self.client, &from, &end_of(&from), take)).await?;
        Ok(all.into_iter().collect())
    }

    /// Writes a note as the holder of the lock. Returns whether it is stored.
    pub(super) async fn note_tick(self: &Arc<Self>, claim: &Claim, note: &TickNote) -> Result<bool> {
        let (engine, claim, note) = (self.clone(), claim.clone(), note.clone());
        // A task that moves or deletes the key waits for this one, and not for the caller.
        self.finish(async move { engine.note_alone(&claim, &note).await }).await
    }

    async fn note_alone(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        let (key, line) = (self.names.tick_key(&claim.key, &note.tick), note.to_line()?.into_bytes());
        let attempt = self.attempts.get(claim.attempt);
        let _making = match &attempt {
            Some(attempt) => Some(attempt.making().lock().await),
            None => None,
        };
        for _ in 0..ROUNDS {
            let stored = self.stored(&key).await?;
            if stored.as_ref().is_some_and(|stored| stored.value == line) {
                return Ok(true);
            }
            let Some((own, created, hold_lease)) = attempt.as_deref().map(held_key).transpose()?.flatten() else {
                return Ok(false);
            };
            let last = stored.as_ref().and_then(|kv| live(kv, self.wall_ms()));
            if last.as_ref().is_some_and(|last| !note.may_replace(last)) {
                return Ok(false);
            }
            if stored.is_none() {
                check_count(self.count(&self.names.ticks_of(&claim.key)).await?)?;
            }
            let lease = self.lease_until(&key, note.forget_ms).await?;
            let put = PutRequest { key: key.clone(), value: line.clone(), lease, ..PutRequest::default() };
            let before = stored.as_ref().map_or_else(|| created_at(&key, 0), unchanged);
            let request = TxnRequest {
                compare: vec![created_at(&own, created), hangs_on(&own, hold_lease), before],
                success: vec![Request::Put(put).into()],
                failure: Vec::new(),
            };
            match self.client.txn(request).await {
                Ok(answer) if answer.succeeded => return Ok(true),
                Ok(_) => {}
                // The lease has ended before the note was on it.
                Err(failure) if failure.fault == Fault::LeaseGone => {}
                Err(failure) => return Err(failure.into()),
            }
            let (holder, _) = queue::read(&self.client, &own).await?;
            if holder.is_none_or(|kv| kv.create_revision != created || kv.lease != hold_lease) {
                // A request before this one may have been carried out without a reply.
                return Ok(self.stored(&key).await?.is_some_and(|stored| stored.value == line));
            }
        }
        Err(Error::unavailable("etcd: the note of a tick changes again and again"))
    }

    async fn stored(&self, key: &[u8]) -> Result<Option<KeyValue>, Failure> {
        Ok(queue::read(&self.client, key).await?.0)
    }

    async fn count(&self, prefix: &[u8]) -> Result<usize, Failure> {
        let (key, range_end) = (prefix.to_vec(), end_of(prefix));
        let request = RangeRequest { key, range_end, limit: 1, keys_only: true, ..RangeRequest::default() };
        let answer: RangeResponse = self.client.call(RANGE, request, REQUEST_WAIT).await?;
        Ok(usize::try_from(answer.count).unwrap_or_default())
    }

    /// Returns the lease of a note that is forgotten at `forget_ms`. All writers of that note have the same.
    async fn lease_until(&self, key: &[u8], forget_ms: u64) -> Result<i64, Failure> {
        let id = lease_id(&format!("distlock tick {forget_ms} {}", String::from_utf8_lossy(key)));
        let ttl = forget_ms.saturating_sub(self.wall_ms()).div_ceil(1000).max(1);
        let ttl = i64::try_from(ttl).unwrap_or(i64::MAX);
        let granted: Result<LeaseGrantResponse, Failure> =
            self.client.call(LEASE_GRANT, LeaseGrantRequest { ttl, id }, REQUEST_WAIT).await;
        match granted {
            Ok(_) => Ok(id),
            Err(failure) if failure.says("lease already exists") => Ok(id),
            // Nothing is written yet, whatever became of the lease.
            Err(failure) if failure.fault == Fault::Unknown => {
                Err(Failure::new(Fault::Refused, "etcd: no reply to a request for a lease"))
            }
            Err(failure) => Err(failure),
        }
    }

    fn wall_ms(&self) -> u64 {
        millis(self.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

/// Returns the key of a hold, when it was made and what it hangs on; `None` if it is not held.
fn held_key(attempt: &Attempt) -> Result<Option<(Vec<u8>, i64, i64)>> {
    match attempt.state().amendment() {
        Ok((created, lease, _)) => Ok(Some((attempt.key().to_vec(), created, lease))),
        Err(NoAmendment::NotHeld) => Ok(None),
        Err(NoAmendment::Moving) => Err(Error::unavailable("it is being moved to another lease")),
    }
}

fn live(stored: &KeyValue, now_ms: u64) -> Option<TickNote> {
    TickNote::from_line(&stored.value).filter(|note| note.forget_ms > now_ms)
}
