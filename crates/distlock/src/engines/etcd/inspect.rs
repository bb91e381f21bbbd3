//! Locks seen from outside: list, show, and end by force.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::contract::LockInfo;
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::protocol::messages::{KeyValue, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse};
use crate::engines::etcd::protocol::methods::LEASE_TIME_TO_LIVE;
use crate::engines::etcd::protocol::names::{Names, end_of};
use crate::engines::etcd::protocol::pages;
use crate::engines::etcd::protocol::queue::{self, KeyToDelete, Read};
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::protocol::standing;
use crate::engines::etcd::protocol::value;
use crate::engines::etcd::wire::client::REQUEST_WAIT;
use crate::engines::shared::listing::{Allowance, in_time};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::token::FencingToken;

impl Engine {
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        in_time(self.list_all(prefix)).await
    }

    async fn list_all(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let (mut queues, mut allowance): (BTreeMap<Key, Vec<KeyValue>>, _) = (BTreeMap::new(), Allowance::new());
        let mut take = |kv: KeyValue| {
            // What others keep here is not kept by us.
            if let Some(place) = self.names.parse(&kv.key) {
                allowance.spend(1, kv.key.len() + kv.value.len())?;
                queues.entry(place.key).or_default().push(kv);
            }
            Ok(())
        };
        let (all, histories) = (self.names.all(prefix), self.names.histories());
        if histories.starts_with(&all) {
            // A lock's keys are all on one side.
            pages::walk(&self.client, &all, &histories, &mut take).await?;
            pages::walk(&self.client, &end_of(&histories), &end_of(&all), &mut take).await?;
        } else {
            pages::walk(&self.client, &all, &end_of(&all), &mut take).await?;
        }
        let mut left = HashMap::new();
        let mut locks = Vec::with_capacity(queues.len());
        for (key, queue) in queues {
            locks.extend(self.show(key, queue, &mut left, &mut allowance).await?);
        }
        Ok(locks)
    }

    pub(super) async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        let mut allowance = Allowance::new();
        in_time(async {
            let queue = pages::list(&self.client, &self.names.lock(key), &mut allowance).await?;
            self.show(key.clone(), queue, &mut HashMap::new(), &mut allowance).await
        })
        .await
    }

    pub(super) async fn force_release(self: &Arc<Self>, key: &Key, token: FencingToken, reason: &str) -> Result<()> {
        let lock = self.names.lock(key);
        let mut queue = pages::list(&self.client, &lock, &mut Allowance::new()).await?;
        queue.sort_by_key(|kv| kv.create_revision);
        let not_held = || Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}"));
        let holders = &queue[..standing::holders(&lock, &queue)];
        let held = holders.iter().find(|held| held.create_revision.unsigned_abs() == token.get());
        let held = held.ok_or_else(not_held)?;
        let place = self.names.parse(&held.key);
        if value::read(&held.value).is_none() && place.is_none_or(|place| place.is_ours) {
            return Err(Error::new(ErrorKind::Foreign, "what holds it was not written by a lock client"));
        }
        // The mark tells the old holder what its lock was lost to. A server that is full refuses it, and still deletes.
        if let Some(value) = value::mark_broken(&held.value, reason) {
            let _ = queue::rewrite(&self.client, &QueueKey::of(held), None, value).await;
        }
        let key =
            KeyToDelete { lock: &lock, key: &held.key, created: held.create_revision, lease: None, if_new: false };
        let left = queue::delete(&self.batcher, key, Read::Nothing).await?;
        if left.deleted { Ok(()) } else { Err(not_held()) }
    }

    /// Puts a queue into words. The time that is left of each lease is asked for once.
    async fn show(
        &self,
        key: Key,
        mut queue: Vec<KeyValue>,
        left: &mut HashMap<i64, Option<Duration>>,
        allowance: &mut Allowance,
    ) -> Result<Option<LockInfo>> {
        queue.sort_by_key(|kv| kv.create_revision);
        if queue.is_empty() {
            return Ok(None);
        }
        let lock = self.names.lock(&key);
        let (held, waiting) = queue.split_at(standing::holders(&lock, &queue));
        let mut holders = Vec::with_capacity(held.len());
        for kv in held {
            let head_left = self.ttl_left(kv.lease, left).await?;
            let entries = self.entries_below(&lock, kv, allowance).await?;
            for entry in &entries {
                // Whichever of the two leases ends first.
                let own_left = self.ttl_left(entry.lease, left).await?;
                let ttl_left = own_left.into_iter().chain(head_left).min();
                holders.push(value::holder_of(&entry.value, kv.create_revision).with_ttl_left(ttl_left));
            }
            if entries.is_empty() {
                holders.push(value::holder_of(&kv.value, kv.create_revision).with_ttl_left(head_left));
            }
        }
        let waiters = waiting.iter().filter_map(|kv| Some(Arc::new(value::read(&kv.value)?.record))).collect();
        Ok(Some(LockInfo::new(key, holders, waiters)))
    }

    /// The entries of an owner that is inside by the key `head`, the first one first; none in other modes.
    async fn entries_below(&self, lock: &[u8], head: &KeyValue, allowance: &mut Allowance) -> Result<Vec<KeyValue>> {
        if Names::mode(lock, &head.key) != Mode::Reentrant {
            return Ok(Vec::new());
        }
        let mut entries = pages::list(&self.client, &Names::inside(lock, head.create_revision), allowance).await?;
        entries.sort_by_key(|kv| kv.create_revision);
        Ok(entries)
    }

    async fn ttl_left(&self, lease: i64, known: &mut HashMap<i64, Option<Duration>>) -> Result<Option<Duration>> {
        if lease == 0 {
            return Ok(None);
        }
        if let Some(left) = known.get(&lease) {
            return Ok(*left);
        }
        let request = LeaseTimeToLiveRequest { id: lease };
        let answer: LeaseTimeToLiveResponse = self.client.call(LEASE_TIME_TO_LIVE, request, REQUEST_WAIT).await?;
        let left = Some(Duration::from_secs(answer.ttl.max(0).unsigned_abs()));
        known.insert(lease, left);
        Ok(left)
    }
}
