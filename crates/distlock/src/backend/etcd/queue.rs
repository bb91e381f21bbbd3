//! The queue of a lock on the server: its keys in the order in which they were made; the first is the holder's.

use std::time::Duration;

use super::attempt::Mark;
use super::client::{Client, PATIENCE, RANGE, TXN};
use super::entry;
use super::failure::{Failure, Fault};
use super::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, Header, KeyValue, PutRequest, RangeRequest,
    RangeResponse, Request, RequestOp, Response, ResponseOp, SortOrder, SortTarget, TxnRequest, TxnResponse,
};
use super::names::end_of;

/// How the queue looked when it was read.
#[derive(Debug)]
pub(super) struct View {
    /// The create revision of our own key; `None` when it is not there.
    pub(super) own: Option<i64>,
    /// Whether this very request made it.
    pub(super) is_new: bool,
    /// The holder's key, where the answer tells it.
    pub(super) first: Option<KeyValue>,
    /// The key right before ours, where the answer tells it.
    pub(super) before: Option<Mark>,
    /// The cluster and its revision at that moment.
    pub(super) header: Header,
}

impl View {
    /// Nobody is there but our key, which was made just now.
    fn alone(key: Vec<u8>, header: Header) -> Self {
        let own = Some(header.revision);
        let made = KeyValue { key, create_revision: header.revision, ..KeyValue::default() };
        View { own, is_new: true, first: Some(made), before: None, header }
    }

    /// Whether the lock is ours.
    pub(super) fn is_ours(&self, key: &[u8]) -> bool {
        self.own.is_some() && self.first.as_ref().is_some_and(|first| first.key == key)
    }
}

/// Makes our key and reads the queue. With `queue` false the key is made only if the lock is free, so that nothing is
/// left when it is not.
///
/// A free lock costs the server no more than the key itself. Otherwise the key is put behind the others; if it was there
/// already, putting it again changes neither its place nor its token.
pub(super) async fn join(
    client: &Client,
    lock: &[u8],
    put: PutRequest,
    queue: bool,
    patience: Duration,
) -> Result<View, Failure> {
    let key = put.key.clone();
    let free = Compare { range_end: end_of(lock), ..created_at(lock, 0) };
    let success = vec![Request::Put(put.clone()).into()];
    let mut failure = vec![range(own(&key)), range(first_of(lock))];
    if queue {
        failure.insert(0, Request::Put(put).into());
        failure.push(range(last_of(lock, 2)));
    }
    let answer = txn(client, TxnRequest { compare: vec![free], success, failure }, patience).await?;
    let header = answer.header.unwrap_or_default();
    if answer.succeeded {
        return Ok(View::alone(key, header));
    }
    let mut ranges = ranges_of(answer.responses);
    let own = ranges.next().and_then(|own| own.into_iter().next()).map(|own| own.create_revision);
    let first = ranges.next().and_then(|first| first.into_iter().next());
    // A key that was made just now is the last one, and the one before it the last but one.
    let is_new = queue && own == Some(header.revision);
    let before = ranges.next().filter(|_| is_new).and_then(|last| last.into_iter().nth(1)).map(mark);
    Ok(View { own, is_new, first, before, header })
}

/// Makes our key behind those of others, and finds the one right before it; who holds the lock is not asked. For who
/// knows that already and has never asked for this key before: `None` when it was there, and was left as it is but for its
/// value.
///
/// This is the one request of a wait that costs the server more the longer the queue is, so it reads it once.
pub(super) async fn line_up(
    client: &Client,
    lock: &[u8],
    put: PutRequest,
    patience: Duration,
) -> Result<Option<View>, Failure> {
    let key = put.key.clone();
    let success = vec![Request::Put(put).into(), range(last_of(lock, 2))];
    let answer = txn(client, TxnRequest { success, ..TxnRequest::default() }, patience).await?;
    Ok(lined_up(key, answer.header.unwrap_or_default(), answer.responses))
}

fn lined_up(key: Vec<u8>, header: Header, responses: Vec<ResponseOp>) -> Option<View> {
    let mut last = ranges_of(responses).next().unwrap_or_default().into_iter();
    // What was made just now is the last one of all.
    last.next().filter(|own| own.key == key && own.create_revision == header.revision)?;
    Some(match last.next() {
        None => View::alone(key, header),
        Some(before) => {
            View { own: Some(header.revision), is_new: true, first: None, before: Some(mark(before)), header }
        }
    })
}

/// Reads the queue anew, linearizably: is it our turn, and whom do we wait for if not.
pub(super) async fn look(client: &Client, lock: &[u8], key: &[u8], created: i64) -> Result<View, Failure> {
    let answer: RangeResponse = client.call(RANGE, first_of(lock), PATIENCE).await?;
    let header = answer.header.unwrap_or_default();
    let first = answer.kvs.into_iter().next();
    if first.as_ref().is_some_and(|first| first.key == key && first.create_revision == created) {
        return Ok(View { own: Some(created), is_new: false, first, before: None, header });
    }
    let before = RangeRequest { max_create_revision: created - 1, ..last_of(lock, 1) };
    let success = vec![range(own(key)), range(before), range(first_of(lock))];
    let answer = txn(client, TxnRequest { success, ..TxnRequest::default() }, PATIENCE).await?;
    let mut ranges = ranges_of(answer.responses).map(|kvs| kvs.into_iter().next());
    let own = ranges.next().flatten().map(|own| own.create_revision).filter(|revision| *revision == created);
    let before = ranges.next().flatten().map(mark);
    let first = ranges.next().flatten();
    Ok(View { own, is_new: false, first, before, header: answer.header.unwrap_or_default() })
}

/// Which of these keys are still there. Costs the server nothing however long the queue is.
pub(super) async fn glance(client: &Client, marks: [&Mark; 3]) -> Result<([bool; 3], Header), Failure> {
    let success = marks.iter().map(|mark| range(own(&mark.key))).collect();
    let answer = txn(client, TxnRequest { success, ..TxnRequest::default() }, PATIENCE).await?;
    let mut ranges = ranges_of(answer.responses);
    let found = marks.map(|mark| {
        let kvs = ranges.next().unwrap_or_default();
        kvs.first().is_some_and(|kv| kv.create_revision == mark.created)
    });
    Ok((found, answer.header.unwrap_or_default()))
}

/// Whether our key is there, made at `created`, and as of which revision.
pub(super) async fn is_there(client: &Client, key: &[u8], created: i64) -> Result<(bool, i64), Failure> {
    let answer: RangeResponse = client.call(RANGE, own(key), PATIENCE).await?;
    let there = answer.kvs.first().is_some_and(|own| own.create_revision == created);
    Ok((there, answer.header.unwrap_or_default().revision))
}

/// What became of a key that was to be deleted.
#[derive(Debug)]
pub(super) struct Left {
    /// Whether it was there, and was ours.
    pub(super) deleted: bool,
    /// The create revision of the key that was asked for in the same moment, if it is there.
    pub(super) next: Option<i64>,
    pub(super) header: Header,
}

/// Deletes our key if it is still the one that was made at `created`; 0: whenever it was made. Looks for the key `next` in
/// the same moment.
pub(super) async fn leave(client: &Client, key: &[u8], created: i64, next: Option<&[u8]>) -> Result<Left, Failure> {
    let answer = txn(client, leaving(key, created, next), PATIENCE).await?;
    let header = answer.header.unwrap_or_default();
    Ok(left(answer, header))
}

/// [Leaves](leave) the queue of `lock` and then [makes another key](line_up) in it, in one transaction. Either part does what
/// it does alone, whatever becomes of the other; only when the server refuses, nothing at all was done.
pub(super) async fn leave_and_line_up(
    client: &Client,
    lock: &[u8],
    leaver: (&[u8], i64),
    next: Option<&[u8]>,
    put: PutRequest,
) -> Result<(Left, Option<View>), Failure> {
    let key = put.key.clone();
    let leaving = Request::Txn(leaving(leaver.0, leaver.1, next));
    let success = vec![leaving.into(), Request::Put(put).into(), range(last_of(lock, 2))];
    let mut answer = txn(client, TxnRequest { success, ..TxnRequest::default() }, PATIENCE).await?;
    let header = answer.header.unwrap_or_default();
    let inner = match (!answer.responses.is_empty()).then(|| answer.responses.remove(0)) {
        Some(ResponseOp { response: Some(Response::Txn(inner)) }) => inner,
        _ => return Err(Failure::new(Fault::Unknown, "etcd sent an answer without its first part")),
    };
    Ok((left(inner, header), lined_up(key, header, answer.responses)))
}

fn left(answer: TxnResponse, header: Header) -> Left {
    let next = ranges_of(answer.responses).flatten().next().map(|next| next.create_revision);
    Left { deleted: answer.succeeded, next, header }
}

fn leaving(key: &[u8], created: i64, next: Option<&[u8]>) -> TxnRequest {
    let ours = match created {
        0 => Compare { result: CompareResult::Greater.into(), ..created_at(key, 0) },
        _ => created_at(key, created),
    };
    let delete = Request::DeleteRange(DeleteRangeRequest { key: key.to_vec() });
    let success = std::iter::once(delete.into()).chain(next.map(|next| range(own(next)))).collect();
    TxnRequest { compare: vec![ours], success, failure: Vec::new() }
}

/// Writes another value to a key that was made at `created`; its lease, its place and its token stay. Answers whether it
/// was there.
pub(super) async fn rewrite(client: &Client, key: &[u8], created: i64, value: Vec<u8>) -> Result<bool, Failure> {
    let put = PutRequest { key: key.to_vec(), value, ignore_lease: true, ..PutRequest::default() };
    let request = TxnRequest {
        compare: vec![created_at(key, created)],
        success: vec![Request::Put(put).into()],
        failure: Vec::new(),
    };
    Ok(txn(client, request, PATIENCE).await?.succeeded)
}

/// Whether the key that was made at `created` and deleted at `deleted` had been marked as broken by force. Whoever has lost
/// a lock waits for that, so it is asked once and not for long.
pub(super) async fn was_broken(client: &Client, key: &[u8], created: i64, deleted: i64) -> bool {
    const PATIENCE: Duration = Duration::from_millis(500);
    let request = RangeRequest { key: key.to_vec(), revision: deleted - 1, ..RangeRequest::default() };
    let answer: Result<RangeResponse, Failure> = client.call(RANGE, request, PATIENCE).await;
    let is_marked = |kv: &KeyValue| kv.create_revision == created && entry::is_broken(&kv.value);
    answer.is_ok_and(|answer| answer.kvs.first().is_some_and(is_marked))
}

/// Hangs our key on another lease; its place and its token stay. Answers whether it was there.
pub(super) async fn attach(client: &Client, key: &[u8], created: i64, lease: i64) -> Result<bool, Failure> {
    let put = PutRequest { key: key.to_vec(), lease, ignore_value: true, ..PutRequest::default() };
    let request = TxnRequest {
        compare: vec![created_at(key, created)],
        success: vec![Request::Put(put).into()],
        failure: Vec::new(),
    };
    Ok(txn(client, request, PATIENCE).await?.succeeded)
}

/// All keys that begin with `prefix`, in their order.
pub(super) async fn list(client: &Client, prefix: &[u8]) -> Result<Vec<KeyValue>, Failure> {
    const PAGE: i64 = 500;
    let (mut all, mut from, mut revision) = (Vec::new(), prefix.to_vec(), 0);
    // An empty key is not one; this is the first that can be.
    if from.is_empty() {
        from.push(0);
    }
    loop {
        let range_end = end_of(prefix);
        let page = RangeRequest { key: from, range_end, limit: PAGE, revision, ..RangeRequest::default() };
        let answer: RangeResponse = client.call(RANGE, page, PATIENCE).await?;
        // All pages show the same moment.
        revision = answer.header.unwrap_or_default().revision;
        let Some(last) = answer.kvs.last().filter(|_| answer.more) else {
            all.extend(answer.kvs);
            return Ok(all);
        };
        from = [last.key.as_slice(), b"\0"].concat();
        all.extend(answer.kvs);
    }
}

async fn txn(client: &Client, request: TxnRequest, patience: Duration) -> Result<TxnResponse, Failure> {
    let answer: TxnResponse = client.call(TXN, request, patience).await?;
    if answer.header.is_none() {
        return Err(Failure::new(Fault::Unknown, "etcd sent an answer without a header"));
    }
    Ok(answer)
}

fn ranges_of(responses: Vec<ResponseOp>) -> impl Iterator<Item = Vec<KeyValue>> {
    responses.into_iter().filter_map(|op| match op.response {
        Some(Response::Range(range)) => Some(range.kvs),
        _ => None,
    })
}

fn mark(kv: KeyValue) -> Mark {
    Mark { key: kv.key, created: kv.create_revision }
}

fn created_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        create_revision: Some(revision),
        range_end: Vec::new(),
    }
}

fn own(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), keys_only: true, ..RangeRequest::default() }
}

fn first_of(lock: &[u8]) -> RangeRequest {
    sorted(lock, SortOrder::Ascend, 1)
}

fn last_of(lock: &[u8], limit: i64) -> RangeRequest {
    RangeRequest { keys_only: true, ..sorted(lock, SortOrder::Descend, limit) }
}

fn sorted(lock: &[u8], order: SortOrder, limit: i64) -> RangeRequest {
    RangeRequest {
        key: lock.to_vec(),
        range_end: end_of(lock),
        limit,
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

fn range(range: RangeRequest) -> RequestOp {
    Request::Range(range).into()
}
