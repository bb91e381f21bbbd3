//! Requests for the entries of an owner, whose keys are beside the queue: each depends on the head that they belong to.

use super::attempt::Mark;
use super::client::Client;
use super::failure::Failure;
use super::messages::{Compare, DeleteRangeRequest, PutRequest, Request, RequestOp, Response, TxnRequest};
use super::names::end_of;
use super::queue::{created_at, exists, hangs_on, own, range, ranges_of, txn};

/// Makes the key of an entry, if its head is there, and writes the head so that who made it does not delete it any more.
/// Answers the revision; `None` when it is not there.
pub(super) async fn enter(
    client: &Client,
    head: &Mark,
    key: &[u8],
    value: Vec<u8>,
    lease: i64,
) -> Result<Option<i64>, Failure> {
    let put = PutRequest { key: key.to_vec(), value, lease, ..PutRequest::default() };
    let touch = PutRequest { key: head.key.clone(), ignore_value: true, ignore_lease: true, ..PutRequest::default() };
    let request = TxnRequest {
        compare: vec![created_at(&head.key, head.created)],
        success: vec![Request::Put(put).into(), Request::Put(touch).into()],
        failure: Vec::new(),
    };
    let answer = txn(client, request).await?;
    Ok(answer.succeeded.then(|| answer.header.unwrap_or_default().revision))
}

/// Makes the key of an entry and deletes that of another one, `old`, if it is there. Answers the revision as of which ours is
/// there; `None` when neither is.
pub(super) async fn swap(
    client: &Client,
    head: &Mark,
    old: &[u8],
    key: &[u8],
    value: Vec<u8>,
    lease: i64,
) -> Result<Option<i64>, Failure> {
    let put = PutRequest { key: key.to_vec(), value, lease, ..PutRequest::default() };
    let delete = DeleteRangeRequest { key: old.to_vec() };
    let request = TxnRequest {
        compare: vec![created_at(&head.key, head.created), exists(old)],
        success: vec![Request::Put(put).into(), Request::DeleteRange(delete).into()],
        failure: vec![range(own(key))],
    };
    let answer = txn(client, request).await?;
    let is_there = answer.succeeded || ranges_of(answer.responses).flatten().next().is_some();
    Ok(is_there.then(|| answer.header.unwrap_or_default().revision))
}

/// Writes other values to the head and to the key of an entry, if that hangs on `lease`. Answers whether they were there.
pub(super) async fn amend(
    client: &Client,
    head: (&Mark, Vec<u8>),
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
    Ok(txn(client, request).await?.succeeded)
}

/// What became of an entry that was to be deleted.
#[derive(Debug)]
pub(super) struct Out {
    /// Whether it was there.
    pub(super) deleted: bool,
    /// Whether it was the last one, so that the head was deleted with it.
    pub(super) was_last: bool,
}

/// Deletes the key of an entry in `area`; and the head, if it is the last one.
pub(super) async fn go_out(client: &Client, head: &Mark, area: &[u8], key: &[u8]) -> Result<Out, Failure> {
    let delete = |key: &[u8]| RequestOp::from(Request::DeleteRange(DeleteRangeRequest { key: key.to_vec() }));
    let only_if = |compare, key: &[u8]| {
        RequestOp::from(Request::Txn(TxnRequest { compare, success: vec![delete(key)], failure: Vec::new() }))
    };
    let none_in = |from: &[u8], to: Vec<u8>| Compare { range_end: to, ..created_at(from, 0) };
    let behind = [key, b"\0"].concat();
    let ours = || only_if(vec![exists(key)], key);
    let request = TxnRequest {
        compare: vec![none_in(area, key.to_vec()), none_in(&behind, end_of(area))],
        // All conditions are about the moment before.
        success: vec![ours(), only_if(vec![exists(key), created_at(&head.key, head.created)], &head.key)],
        failure: vec![ours()],
    };
    let answer = txn(client, request).await?;
    let mut done = answer.responses.into_iter().map(|op| match op.response {
        Some(Response::Txn(inner)) => inner.succeeded,
        _ => false,
    });
    Ok(Out { deleted: done.next().unwrap_or_default(), was_last: done.next().unwrap_or_default() })
}
