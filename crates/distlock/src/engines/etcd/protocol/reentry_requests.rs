//! Requests for the entries of an owner, whose keys are beside the queue: each depends on the head that they belong to.

use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, Request, RequestOp, Response, ResponseOp, TxnRequest,
};
use crate::engines::etcd::protocol::names::end_of;
use crate::engines::etcd::protocol::queue::{created_at, exists, hangs_on, range, ranges_of, unchanged, whole};
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::wire::client::Client;

/// How often it is tried again to take a key over that was written in between.
const ROUNDS: usize = 8;

/// The key of an entry that is to be made.
///
/// It is named after its attempt, and so was that of an earlier entry of the same attempt, which was given up. Requests
/// about that one may still come. So each depends on the lease that the key hangs on: two such entries have the same
/// one only when everything about the first was answered.
#[derive(Debug, Clone)]
pub(crate) struct NewEntry<'a> {
    pub(crate) head: &'a QueueKey,
    pub(crate) key: &'a [u8],
    pub(crate) value: Vec<u8>,
    pub(crate) lease: i64,
}

impl NewEntry<'_> {
    fn put(&self) -> RequestOp {
        let (key, value) = (self.key.to_vec(), self.value.clone());
        Request::Put(PutRequest { key, value, lease: self.lease, ..PutRequest::default() }).into()
    }

    /// Makes the key if nothing has its name, and does `also` then; reads what has it otherwise.
    fn make(&self, also: Option<RequestOp>) -> RequestOp {
        Request::Txn(TxnRequest {
            compare: vec![created_at(self.key, 0)],
            success: std::iter::once(self.put()).chain(also).collect(),
            failure: vec![range(whole(self.key))],
        })
        .into()
    }

    /// Our key was made, unless a reply has found one of its name: then that one becomes ours. Returns the revision as
    /// of which it is; `None` when it was written since, or the head is gone.
    async fn settle(&self, client: &Client, found: Option<KeyValue>, revision: i64) -> Result<Option<i64>, Failure> {
        let Some(found) = found.filter(|found| found.lease != self.lease) else { return Ok(Some(revision)) };
        // A late request of an earlier entry has made it, and whatever cleans up after that one would delete it.
        let request = TxnRequest {
            compare: vec![created_at(&self.head.key, self.head.created), unchanged(&found)],
            success: vec![self.put()],
            failure: Vec::new(),
        };
        let answer = client.txn(request).await?;
        Ok(answer.succeeded.then(|| answer.header.unwrap_or_default().revision))
    }
}

/// Makes the key of an entry, if its head is there, and writes the head so that its maker does not delete it any more.
/// Returns the revision; `None` when it is not there. A request that comes late leaves a key that is there as it is.
pub(crate) async fn enter(client: &Client, wanted: &NewEntry<'_>) -> Result<Option<i64>, Failure> {
    let head = wanted.head;
    let touch = PutRequest { key: head.key.clone(), ignore_value: true, ignore_lease: true, ..PutRequest::default() };
    let request = TxnRequest {
        compare: vec![created_at(&head.key, head.created)],
        success: vec![wanted.make(Some(Request::Put(touch).into()))],
        failure: Vec::new(),
    };
    for _ in 0..ROUNDS {
        let answer = client.txn(request.clone()).await?;
        if !answer.succeeded {
            return Ok(None);
        }
        let revision = answer.header.unwrap_or_default().revision;
        let entered = wanted.settle(client, found_in(answer.responses), revision).await?;
        if entered.is_some() {
            return Ok(entered);
        }
    }
    Err(too_busy())
}

/// Makes the key of an entry and deletes that of another one, `old`, if it is there, and the head. Returns the revision
/// as of which ours is there; `None` when neither is, or the head is gone.
pub(crate) async fn swap(client: &Client, wanted: &NewEntry<'_>, old: &[u8]) -> Result<Option<i64>, Failure> {
    let delete = DeleteRangeRequest { key: old.to_vec() };
    let head_is_there = || created_at(&wanted.head.key, wanted.head.created);
    let look =
        TxnRequest { compare: vec![head_is_there()], success: vec![range(whole(wanted.key))], failure: Vec::new() };
    let request = TxnRequest {
        compare: vec![head_is_there(), exists(old)],
        success: vec![wanted.make(None), Request::DeleteRange(delete).into()],
        failure: vec![Request::Txn(look).into()],
    };
    for _ in 0..ROUNDS {
        let answer = client.txn(request.clone()).await?;
        let found = found_in(answer.responses);
        if !answer.succeeded && found.is_none() {
            return Ok(None);
        }
        let revision = answer.header.unwrap_or_default().revision;
        let swapped = wanted.settle(client, found, revision).await?;
        if swapped.is_some() {
            return Ok(swapped);
        }
    }
    Err(too_busy())
}

/// Returns the key that a reply shows, which was asked for by its name.
fn found_in(responses: Vec<ResponseOp>) -> Option<KeyValue> {
    let inner = |op: ResponseOp| match op.response {
        Some(Response::Txn(inner)) => inner.responses,
        _ => vec![op],
    };
    ranges_of(responses.into_iter().flat_map(inner).collect()).flatten().next()
}

fn too_busy() -> Failure {
    // Its earlier steps are done.
    Failure::new(Fault::Unknown, "the entry is written again and again")
}

/// Writes other values to the head and to the key of an entry, if that hangs on `lease`. Returns whether they were
/// there.
pub(crate) async fn amend(
    client: &Client,
    head: (&QueueKey, Vec<u8>),
    entry: (&[u8], Vec<u8>),
    lease: i64,
) -> Result<bool, Failure> {
    let ((head, head_value), (key, value)) = (head, entry);
    let put = |key: &[u8], value| {
        Request::Put(PutRequest { key: key.to_vec(), value, ignore_lease: true, ..PutRequest::default() }).into()
    };
    let request = TxnRequest {
        compare: vec![created_at(&head.key, head.created), hangs_on(key, lease)],
        success: vec![put(key, value), put(&head.key, head_value)],
        failure: Vec::new(),
    };
    Ok(client.txn(request).await?.succeeded)
}

/// What became of an entry that was to be deleted.
#[derive(Debug)]
pub(crate) struct Out {
    /// Whether it was there.
    pub(crate) deleted: bool,
    /// Whether it was the last one, so that the head was deleted with it.
    pub(crate) was_last: bool,
}

/// Deletes the key of an entry in `area`, if it hangs on `lease`; and the head, if it is the last one. One of the same
/// name that hangs on another lease is another entry.
pub(crate) async fn go_out(
    client: &Client,
    head: &QueueKey,
    area: &[u8],
    (key, lease): (&[u8], i64),
) -> Result<Out, Failure> {
    let delete = |key: &[u8]| RequestOp::from(Request::DeleteRange(DeleteRangeRequest { key: key.to_vec() }));
    let only_if = |compare, key: &[u8]| {
        RequestOp::from(Request::Txn(TxnRequest { compare, success: vec![delete(key)], failure: Vec::new() }))
    };
    let none_in = |from: &[u8], to: Vec<u8>| Compare { range_end: to, ..created_at(from, 0) };
    let behind = [key, b"\0"].concat();
    let ours = || only_if(vec![hangs_on(key, lease)], key);
    let request = TxnRequest {
        compare: vec![none_in(area, key.to_vec()), none_in(&behind, end_of(area))],
        // All conditions are about the moment before.
        success: vec![ours(), only_if(vec![hangs_on(key, lease), created_at(&head.key, head.created)], &head.key)],
        failure: vec![ours()],
    };
    let answer = client.txn(request).await?;
    let mut done = answer.responses.into_iter().map(|op| match op.response {
        Some(Response::Txn(inner)) => inner.succeeded,
        _ => false,
    });
    Ok(Out { deleted: done.next().unwrap_or_default(), was_last: done.next().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::engines::etcd::Etcd;
    use crate::engines::etcd::protocol::queue;
    use crate::engines::etcd::shared_lease;
    use crate::types::clock::Clock;

    const AREA: &[u8] = b"a{}1/";
    const KEY: &[u8] = b"a{}1/new";

    async fn make(client: &Client, key: &[u8]) {
        let put = PutRequest { key: key.to_vec(), ..PutRequest::default() };
        client.txn(TxnRequest { success: vec![Request::Put(put).into()], ..TxnRequest::default() }).await.unwrap();
    }

    /// Whichever way a key has come that an earlier entry of the same attempt has asked for: the entry that is asked
    /// for now has it, and only that one deletes it.
    #[tokio::test]
    async fn a_key_of_an_earlier_entry_becomes_that_of_the_next() {
        let server = EtcdServer::start();
        let etcd = Etcd::builder([server.address().to_string()]).build().unwrap();
        let client = &etcd.engine.client;
        for swaps in [false, true] {
            make(client, b"a/head").await;
            make(client, b"a{}1/old").await;
            let head = QueueKey::of(&queue::read(client, b"a/head").await.unwrap().0.unwrap());
            let mut leases = Vec::new();
            for _ in 0..2 {
                let lease = shared_lease::private(Duration::from_secs(60), client, &Clock::system()).await.unwrap();
                let wanted = NewEntry { head: &head, key: KEY, value: Vec::new(), lease: lease.id };
                let made = match swaps {
                    true => swap(client, &wanted, b"a{}1/old").await,
                    false => enter(client, &wanted).await,
                };
                let (key, revision) = queue::read(client, KEY).await.unwrap();
                assert_eq!((made.unwrap(), key.unwrap().lease), (Some(revision), lease.id));
                leases.push(lease.id);
            }
            let old = go_out(client, &head, AREA, (KEY, leases[0])).await.unwrap();
            assert!(!old.deleted && !old.was_last);
            let new = go_out(client, &head, AREA, (KEY, leases[1])).await.unwrap();
            assert_eq!((new.deleted, new.was_last), (true, swaps), "who was not swapped is still there");
        }
    }

    /// A request that was carried out and not answered is repeated: the entry stands as it is, whatever etcd says about
    /// keys that are asked for without their values.
    #[tokio::test]
    async fn an_entry_that_is_there_is_not_written_again_also_in_etcd_3_7() {
        let server = EtcdServer::start();
        let etcd = Etcd::builder([server.address().to_string()]).build().unwrap();
        let client = &etcd.engine.client;
        client.as_of_3_7.store(true, std::sync::atomic::Ordering::Relaxed);
        make(client, b"a/head").await;
        let head = QueueKey::of(&queue::read(client, b"a/head").await.unwrap().0.unwrap());
        let lease = shared_lease::private(Duration::from_secs(60), client, &Clock::system()).await.unwrap();
        let wanted = NewEntry { head: &head, key: KEY, value: Vec::new(), lease: lease.id };
        assert!(enter(client, &wanted).await.unwrap().is_some());
        let (made, _) = queue::read(client, KEY).await.unwrap();
        assert!(enter(client, &wanted).await.unwrap().is_some());
        assert!(swap(client, &wanted, b"a{}1/old").await.unwrap().is_some(), "nothing is left to delete");
        assert_eq!(queue::read(client, KEY).await.unwrap().0, made);
    }
}
