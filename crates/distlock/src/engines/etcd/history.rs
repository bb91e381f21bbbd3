//! The histories of locks: a key for each entry, on leases that end by themselves.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::lease_id::lease_id as shared_lease_id;
use crate::engines::etcd::protocol::messages::{
    DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest, RangeResponse,
    Request, Response, TxnRequest,
};
use crate::engines::etcd::protocol::methods::{LEASE_GRANT, RANGE};
use crate::engines::etcd::protocol::names::end_of;
use crate::engines::etcd::protocol::pages;
use crate::engines::etcd::wire::client::REQUEST_WAIT;
use crate::engines::shared::listing::Allowance;
use crate::types::error::Result;
use crate::types::history::{HISTORY_TTL, HistoryEntry};
use crate::types::key::Key;
use crate::types::token::AttemptId;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How many operations a transaction has; servers take 128 unless they are told otherwise.
const MOST_OPS: usize = 100;
/// How many more than it should have a history may have before the oldest are deleted.
const SLACK: i64 = 16;

impl Engine {
    /// Adds entries to the histories of their locks, and deletes what is too old there.
    pub(super) async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Result<()> {
        // Half of them are puts, the others ask how long each history has become.
        for some in entries.chunks(MOST_OPS / 2) {
            let lease = self.lease_of_today().await?;
            let histories: BTreeSet<Vec<u8>> = some.iter().map(|(key, _)| self.names.history_key(key)).collect();
            let mut success = Vec::with_capacity(MOST_OPS);
            for (number, (key, entry)) in some.iter().enumerate() {
                let name = format!("{:016x}.{number:04x}.{}", entry.at_ms, AttemptId::random());
                let key = [self.names.history_key(key), name.into_bytes()].concat();
                let value = entry.to_line()?.into_bytes();
                success.push(Request::Put(PutRequest { key, value, lease, ..PutRequest::default() }).into());
            }
            success.extend(histories.iter().map(|history| Request::Range(some_of(history, 1)).into()));
            let answer = self.client.txn(TxnRequest { success, ..TxnRequest::default() }).await;
            let answer = answer.inspect_err(|failure| {
                if failure.fault == Fault::LeaseGone {
                    *self.history_lease.lock() = None;
                }
            })?;
            let counts = answer.responses.into_iter().filter_map(|op| match op.response {
                Some(Response::Range(range)) => Some(range.count),
                _ => None,
            });
            for (history, count) in histories.iter().zip(counts) {
                if count > i64::from(most) + SLACK {
                    self.shorten(history, count - i64::from(most)).await?;
                }
            }
        }
        Ok(())
    }

    /// The last entries of a lock's history, at most `most`.
    pub(super) async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        let mut stored = pages::list(&self.client, &self.names.history_key(key), &mut Allowance::new()).await?;
        stored.sort_by(in_order);
        let last = stored.iter().skip(stored.len().saturating_sub(most as usize));
        Ok(last.filter_map(|kv| HistoryEntry::from_line(&kv.value)).collect())
    }

    /// Deletes the `over` oldest entries of a history. Others may do so at the same time: they delete the same.
    async fn shorten(&self, history: &[u8], over: i64) -> Result<(), Failure> {
        let mut answer: RangeResponse = self.client.call(RANGE, some_of(history, 0), REQUEST_WAIT).await?;
        // Not by the server: entries of one transaction have one revision there, and no order.
        answer.kvs.sort_by(in_order);
        answer.kvs.truncate(usize::try_from(over).unwrap_or_default());
        for some in answer.kvs.chunks(MOST_OPS) {
            let delete = |key: &[u8]| Request::DeleteRange(DeleteRangeRequest { key: key.to_vec() }).into();
            let success = some.iter().map(|kv| delete(&kv.key)).collect();
            self.client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        }
        Ok(())
    }

    /// The lease of today, which all clients with this prefix share: one for each would be many, where each run of a
    /// program is a client.
    async fn lease_of_today(&self) -> Result<i64, Failure> {
        let id = lease_id(&self.names.prefix, self.clock.wall());
        if *self.history_lease.lock() == Some(id) {
            return Ok(id);
        }
        let ttl = i64::try_from((HISTORY_TTL + DAY).as_secs()).unwrap_or(i64::MAX);
        let granted: Result<LeaseGrantResponse, Failure> =
            self.client.call(LEASE_GRANT, LeaseGrantRequest { ttl, id }, REQUEST_WAIT).await;
        match granted {
            Ok(_) => {}
            Err(failure) if failure.says("lease already exists") => {}
            Err(failure) => return Err(failure),
        }
        *self.history_lease.lock() = Some(id);
        Ok(id)
    }
}

/// The name of a day's lease. By the prefix too: to put a key on a lease one must be allowed to write all its others.
fn lease_id(prefix: &str, now: SystemTime) -> i64 {
    let day = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / DAY.as_secs();
    shared_lease_id(&format!("distlock history {day} {prefix}"))
}

/// In which order two entries were written.
fn in_order(one: &KeyValue, other: &KeyValue) -> Ordering {
    (one.create_revision, &one.key).cmp(&(other.create_revision, &other.key))
}

/// The keys of some entries of a history; 0: all.
fn some_of(history: &[u8], limit: i64) -> RangeRequest {
    RangeRequest {
        key: history.to_vec(),
        range_end: end_of(history),
        limit,
        keys_only: true,
        ..RangeRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_and_a_prefix_have_one_lease() {
        let at = |hours: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(hours * 3600);
        assert_eq!(lease_id("a/", at(25)), lease_id("a/", at(47)));
        assert_ne!(lease_id("a/", at(25)), lease_id("a/", at(49)));
        assert_ne!(lease_id("a/", at(25)), lease_id("b/", at(25)));
        assert!(lease_id("", at(0)) > 0);
    }
}
