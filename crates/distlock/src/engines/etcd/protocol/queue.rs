//! The queue of a lock on the server: its keys in the order in which they were made; the first is the holder's.

use std::time::Duration;

use crate::engines::etcd::error::Failure;
use crate::engines::etcd::protocol::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, Header, KeyValue, PutRequest, RangeRequest,
    RangeResponse, Request, RequestOp, Response, ResponseOp, SortOrder, SortTarget, TxnRequest,
};
use crate::engines::etcd::protocol::methods::RANGE;
use crate::engines::etcd::protocol::names::end_of;
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::protocol::standing;
use crate::engines::etcd::protocol::value::{self, Value};
use crate::engines::etcd::wire::batcher::{Batcher, Write};
use crate::engines::etcd::wire::client::{Client, REQUEST_WAIT};
use crate::types::mode::{AskedMode, Mode};

/// How often it is tried again to enter beside others when the queue has changed in between.
const ROUNDS: usize = 32;
/// How long a holder that has lost its lock waits for the reason.
const REASON_WAIT: Duration = Duration::from_millis(500);
/// How many keys a transaction compares before it takes a slot: etcd allows for 128 operations.
const MOST_KEEPERS: usize = 120;
/// No limit: whatever was made up to now.
const LAST_IN_JOIN: i64 = 0;

/// A key to be made.
#[derive(Debug, Clone)]
pub(crate) struct KeyRequest {
    pub(crate) lock: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) asked: AskedMode,
    pub(crate) lease: i64,
    pub(crate) value: Value,
}

impl KeyRequest {
    pub(crate) fn put(&self, slot: Option<u32>) -> PutRequest {
        let value = self.value.to_value_with(slot);
        PutRequest { key: self.key.clone(), value, lease: self.lease, ..PutRequest::default() }
    }

    /// The slot of the first key of a semaphore.
    fn first_slot(&self) -> Option<u32> {
        matches!(self.asked.mode, Mode::Slot { .. }).then_some(0)
    }
}

/// How the queue looked when it was read.
#[derive(Debug)]
pub(crate) struct QueueView {
    /// The create revision of our own key; `None` when it is not there.
    pub(crate) own: Option<i64>,
    /// Whether this very request made it.
    pub(crate) is_new: bool,
    /// Whether the lock is ours.
    pub(crate) holds: bool,
    /// The slot that our key has.
    pub(crate) slot: Option<u32>,
    /// The first keys, where the reply shows them: that of the holder, or of a semaphore's holders.
    pub(crate) heads: Vec<KeyValue>,
    /// The keys whose end we wait for, where the reply shows them.
    pub(crate) before: Vec<QueueKey>,
    /// The cluster and its revision at that moment.
    pub(crate) header: Header,
}

impl QueueView {
    /// Our key was made just now, and the lock is ours.
    fn entered(key: Vec<u8>, slot: Option<u32>, header: Header) -> Self {
        let own = Some(header.revision);
        let heads = vec![KeyValue { key, create_revision: header.revision, ..KeyValue::default() }];
        QueueView { own, is_new: true, holds: true, slot, heads, before: Vec::new(), header }
    }

    /// Judges a reply with our own key, the first keys of the queue and its last ones.
    fn judged(lock: &[u8], mode: Mode, header: Header, mut ranges: impl Iterator<Item = Vec<KeyValue>>) -> Self {
        let own = ranges.next().and_then(|own| own.into_iter().next());
        let heads = ranges.next().unwrap_or_default();
        let last = ranges.next().unwrap_or_default();
        let created = own.as_ref().map(|own| own.create_revision);
        let standing = standing::judge(lock, mode, created.unwrap_or(i64::MAX), &heads, &last);
        let own_head = own.and_then(|own| heads.iter().find(|head| head.key == own.key));
        let slot = own_head.and_then(|own| value::read(&own.value)?.slot);
        let holds = created.is_some() && standing.holds;
        QueueView { own: created, is_new: false, holds, slot, heads, before: standing.awaited, header }
    }

    /// Returns a mode of a key before ours that does not go with ours.
    pub(crate) fn disagreement(&self, lock: &[u8], asked: AskedMode) -> Option<Mode> {
        let own = self.own.unwrap_or(i64::MAX);
        let heads = self.heads.iter().filter(|head| head.create_revision < own).map(|head| head.key.as_slice());
        standing::disagreement(lock, asked, heads.chain(self.before.iter().map(|mark| mark.key.as_slice())))
    }
}

/// Makes our key and reads the queue. With `queue` false the key is made only if the lock is free for it, so that
/// nothing is left when it is not.
///
/// A free lock costs the server no more than the key itself. Otherwise the key is put behind the others, unless it is
/// there already.
pub(crate) async fn join(
    client: &Client,
    batcher: &Batcher,
    wanted: &KeyRequest,
    queue: bool,
) -> Result<QueueView, Failure> {
    let KeyRequest { lock, key, asked: AskedMode { mode, .. }, .. } = wanted;
    let success = vec![Request::Put(wanted.put(wanted.first_slot())).into()];
    let mut failure = sights(lock, key, *mode, LAST_IN_JOIN);
    if queue {
        let put = vec![Request::Put(wanted.put(None)).into()];
        let make = TxnRequest { compare: vec![created_at(key, 0)], success: put, failure: Vec::new() };
        failure.insert(0, Request::Txn(make).into());
    }
    let request = TxnRequest { compare: vec![is_free(lock)], success, failure };
    let answer = batcher.write(Write::Join { lock: lock.clone(), with_release: false }, request).await?;
    let header = answer.header.unwrap_or_default();
    if answer.succeeded {
        return Ok(QueueView::entered(key.clone(), wanted.first_slot(), header));
    }
    let is_new = matches!(answer.responses.first().and_then(|op| op.response.as_ref()),
        Some(Response::Txn(make)) if make.succeeded);
    let mut view = QueueView::judged(lock, *mode, header, ranges_of(answer.responses));
    view.is_new = is_new;
    if !view.is_new && view.own.is_some() {
        // Only of a key that was made just now is it known that those before it are among the last.
        view.before.clear();
    }
    if !queue && view.own.is_none() {
        return enter(client, wanted, view).await;
    }
    Ok(view)
}

/// Makes our key if the lock is free; otherwise nothing, and `None`. The shortest request, for a lock that most likely
/// is free: what [`join`] does where it is not is a third of that one's cost.
pub(crate) async fn enter_free(batcher: &Batcher, wanted: &KeyRequest) -> Result<Option<QueueView>, Failure> {
    let KeyRequest { lock, key, .. } = wanted;
    let success = vec![Request::Put(wanted.put(None)).into()];
    let request = TxnRequest { compare: vec![is_free(lock)], success, failure: Vec::new() };
    let answer = batcher.write(Write::Join { lock: lock.clone(), with_release: false }, request).await?;
    let header = answer.header.unwrap_or_default();
    Ok(answer.succeeded.then(|| QueueView::entered(key.clone(), None, header)))
}

/// Makes our key if the lock is free for it beside those who have it, as `view` shows them and they still are.
async fn enter(client: &Client, wanted: &KeyRequest, mut view: QueueView) -> Result<QueueView, Failure> {
    let KeyRequest { lock, key, asked: AskedMode { mode, .. }, .. } = wanted;
    // Each further round means that another client wrote to the queue in between.
    for _ in 0..ROUNDS {
        let is_free = match mode {
            Mode::Shared => view.before.is_empty(),
            Mode::Slot { of } => {
                view.heads.len() < *of as usize && !standing::has_waiter(lock, *mode, view.heads.iter())
            }
            Mode::Exclusive | Mode::Reentrant => false,
        };
        if !is_free || view.own.is_some() || view.disagreement(lock, wanted.asked).is_some() {
            return Ok(view);
        }
        let slot = match mode {
            Mode::Slot { of } => standing::free_slot(*of, i64::MAX, &view.heads),
            _ => None,
        };
        let request = TxnRequest {
            compare: slot_is_kept(lock, slot, i64::MAX, &view),
            success: vec![Request::Put(wanted.put(slot)).into()],
            failure: sights(lock, key, *mode, LAST_IN_JOIN),
        };
        let answer = client.txn(request).await?;
        let header = answer.header.unwrap_or_default();
        if answer.succeeded {
            return Ok(QueueView::entered(key.clone(), slot, header));
        }
        view = QueueView::judged(lock, *mode, header, ranges_of(answer.responses));
    }
    Ok(view)
}

/// Takes a slot of a semaphore for our key, which `view` shows among the holders. Without a slot after that the queue
/// has changed since: read it again.
pub(crate) async fn take_slot(
    client: &Client,
    wanted: &KeyRequest,
    of: u32,
    view: &mut QueueView,
) -> Result<(), Failure> {
    let Some(created) = view.own else { return Ok(()) };
    let Some(slot) = standing::free_slot(of, created, &view.heads) else { return Ok(()) };
    let mut compare = slot_is_kept(&wanted.lock, Some(slot), created, view);
    compare.push(created_at(&wanted.key, created));
    let request =
        TxnRequest { compare, success: vec![Request::Put(wanted.put(Some(slot))).into()], failure: Vec::new() };
    let answer = client.txn(request).await?;
    if answer.succeeded {
        view.slot = Some(slot);
        view.header = answer.header.unwrap_or_default();
    }
    Ok(())
}

/// Makes our key behind those of others, and finds the one right before it; the holder is not asked for. For a caller
/// knows that already, wants the lock for itself, and has never asked for this key before: `None` when it was there,
/// and was left as it is. A request that comes late finds it made by the one after it, and perhaps taken over.
///
/// This is the one request of a wait that costs the server more the longer the queue is, so it reads it once.
pub(crate) async fn line_up(
    batcher: &Batcher,
    lock: &[u8],
    put: PutRequest,
    with_release: bool,
) -> Result<Option<QueueView>, Failure> {
    let key = put.key.clone();
    let success = vec![Request::Put(put).into(), range(last_of(lock, 2))];
    let request = TxnRequest { compare: vec![created_at(&key, 0)], success, failure: Vec::new() };
    let answer = batcher.write(Write::Join { lock: lock.to_vec(), with_release }, request).await?;
    Ok(lined_up(key, answer.header.unwrap_or_default(), answer.responses))
}

fn lined_up(key: Vec<u8>, header: Header, responses: Vec<ResponseOp>) -> Option<QueueView> {
    let mut last = ranges_of(responses).next().unwrap_or_default().into_iter();
    // A key that was made just now is the last one of all.
    last.next().filter(|own| own.key == key && own.create_revision == header.revision)?;
    Some(match last.next() {
        None => QueueView::entered(key, None, header),
        Some(before) => {
            let before = vec![QueueKey::of(&before)];
            let own = Some(header.revision);
            QueueView { own, is_new: true, holds: false, slot: None, heads: Vec::new(), before, header }
        }
    })
}

/// Reads the queue anew, linearizably: is it our turn, and whom do we wait for if not.
pub(crate) async fn look(
    client: &Client,
    lock: &[u8],
    mode: Mode,
    key: &[u8],
    created: i64,
) -> Result<QueueView, Failure> {
    if mode == Mode::Exclusive {
        // The first key needs no more than that.
        let answer: RangeResponse = client.call(RANGE, first_of(lock, 1), REQUEST_WAIT).await?;
        let header = answer.header.unwrap_or_default();
        if answer.kvs.first().is_some_and(|first| first.key == key && first.create_revision == created) {
            let before = Vec::new();
            return Ok(QueueView {
                own: Some(created),
                is_new: false,
                holds: true,
                slot: None,
                heads: answer.kvs,
                before,
                header,
            });
        }
    }
    let success = sights(lock, key, mode, created.saturating_sub(1));
    let answer = client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
    let mut view = QueueView::judged(lock, mode, answer.header.unwrap_or_default(), ranges_of(answer.responses));
    if view.own != Some(created) {
        // A later key of the same name is another one.
        view.own = None;
        view.holds = false;
    }
    Ok(view)
}

/// What has to be read to judge our key: itself, the heads, and the last ones up to those made at `until`.
fn sights(lock: &[u8], key: &[u8], mode: Mode, until: i64) -> Vec<RequestOp> {
    // In a join our own key is among the last.
    let own_too = i64::from(until == LAST_IN_JOIN);
    let heads = i64::from(standing::heads_of(mode));
    let limit = match mode {
        Mode::Shared => 0,
        _ => heads + own_too,
    };
    let last = RangeRequest { max_create_revision: until, ..last_of(lock, limit) };
    vec![range(own(key)), range(first_of(lock, heads)), range(last)]
}

/// Which of these keys are still there. Costs the server nothing however long the queue is.
pub(crate) async fn are_there(client: &Client, keys: &[&QueueKey]) -> Result<(bool, Header), Failure> {
    let success = keys.iter().map(|mark| range(own(&mark.key))).collect();
    let answer = client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
    let mut ranges = ranges_of(answer.responses);
    let are_there = keys.iter().all(|mark| {
        let kvs = ranges.next().unwrap_or_default();
        kvs.first().is_some_and(|kv| kv.create_revision == mark.created)
    });
    Ok((are_there, answer.header.unwrap_or_default()))
}

/// One key with its value, if it is there, and as of which revision.
pub(crate) async fn read(client: &Client, key: &[u8]) -> Result<(Option<KeyValue>, i64), Failure> {
    let answer: RangeResponse = client.call(RANGE, whole(key), REQUEST_WAIT).await?;
    Ok((answer.kvs.into_iter().next(), answer.header.unwrap_or_default().revision))
}

/// The first key of a queue, with its value.
pub(crate) async fn head(client: &Client, lock: &[u8]) -> Result<(Option<KeyValue>, Header), Failure> {
    let answer: RangeResponse = client.call(RANGE, first_of(lock, 1), REQUEST_WAIT).await?;
    Ok((answer.kvs.into_iter().next(), answer.header.unwrap_or_default()))
}

/// Hangs a key on another client's lease, with its value; its place and its token stay. Returns the revision; `None`
/// when it is not as it was read any more.
pub(crate) async fn take_over(
    client: &Client,
    read: &KeyValue,
    value: Vec<u8>,
    lease: i64,
) -> Result<Option<i64>, Failure> {
    let put = PutRequest { key: read.key.clone(), value, lease, ..PutRequest::default() };
    let request = TxnRequest {
        compare: vec![created_at(&read.key, read.create_revision), unchanged(read)],
        success: vec![Request::Put(put).into()],
        failure: Vec::new(),
    };
    let answer = client.txn(request).await?;
    Ok(answer.succeeded.then(|| answer.header.unwrap_or_default().revision))
}

/// What became of a key that was to be deleted.
#[derive(Debug)]
pub(crate) struct Deletion {
    /// Whether it was there, and was ours.
    pub(crate) deleted: bool,
    /// The key that was asked for in the same moment, if it is there.
    pub(crate) next: Option<QueueKey>,
    pub(crate) header: Header,
}

/// A key to be deleted, if it is still that one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyToDelete<'a> {
    pub(crate) lock: &'a [u8],
    pub(crate) key: &'a [u8],
    /// When it was made; 0: whenever that was.
    pub(crate) created: i64,
    /// The lease that it hangs on: a hold that another attempt took over hangs on another one. `None`: any.
    pub(crate) lease: Option<i64>,
    /// Only if it was not written since it was made: the head of an owner stays for its entries.
    pub(crate) if_new: bool,
}

/// What a deletion reads in the same moment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Read<'a> {
    Nothing,
    /// That key.
    Key(&'a [u8]),
    /// The first key that is left in the queue. The longer the queue, the more that costs the server.
    First,
}

/// Deletes a key, and reads another one in the same moment.
pub(crate) async fn delete(batcher: &Batcher, target: KeyToDelete<'_>, next: Read<'_>) -> Result<Deletion, Failure> {
    let KeyToDelete { lock, key, created, lease, if_new } = target;
    let ours = match created {
        0 => exists(key),
        _ => created_at(key, created),
    };
    let delete = Request::DeleteRange(DeleteRangeRequest { key: key.to_vec() });
    let next = match next {
        Read::Nothing => None,
        Read::Key(next) => Some(own(next)),
        Read::First => Some(RangeRequest { keys_only: true, ..first_of(lock, 1) }),
    };
    let request = TxnRequest {
        compare: [Some(ours), lease.map(|lease| hangs_on(key, lease)), if_new.then(|| is_new(key))]
            .into_iter()
            .flatten()
            .collect(),
        success: std::iter::once(delete.into()).chain(next.map(range)).collect(),
        failure: Vec::new(),
    };
    let answer = batcher.write(Write::Leave { lock: lock.to_vec(), key: key.to_vec() }, request).await?;
    let next = ranges_of(answer.responses).flatten().next().map(|next| QueueKey::of(&next));
    Ok(Deletion { deleted: answer.succeeded, next, header: answer.header.unwrap_or_default() })
}

/// Writes another value to a key, if it hangs on `lease`; its lease, its place and its token stay. Returns whether it
/// was there.
pub(crate) async fn rewrite(
    client: &Client,
    mark: &QueueKey,
    lease: Option<i64>,
    value: Vec<u8>,
) -> Result<bool, Failure> {
    let QueueKey { key, created } = mark;
    let put = PutRequest { key: key.clone(), value, ignore_lease: true, ..PutRequest::default() };
    let made = created_at(key, *created);
    let request = TxnRequest {
        compare: std::iter::once(made).chain(lease.map(|lease| hangs_on(key, lease))).collect(),
        success: vec![Request::Put(put).into()],
        failure: Vec::new(),
    };
    Ok(client.txn(request).await?.succeeded)
}

/// Whether the key that was made at `created` and deleted at `deleted` had been marked as broken by force. A holder
/// that has lost a lock waits for that, so it is asked once and not for long.
pub(crate) async fn was_broken(client: &Client, key: &[u8], created: i64, deleted: i64) -> bool {
    let request = RangeRequest { key: key.to_vec(), revision: deleted.saturating_sub(1), ..RangeRequest::default() };
    let answer: Result<RangeResponse, Failure> = client.call(RANGE, request, REASON_WAIT).await;
    let is_marked = |kv: &KeyValue| kv.create_revision == created && value::is_broken(&kv.value);
    answer.is_ok_and(|answer| answer.kvs.first().is_some_and(is_marked))
}

/// Hangs our key on another lease than `from`; its place and its token stay. Returns what it hangs on now: on a third
/// one if an earlier request that was not answered has moved it. `None` when it is not there.
pub(crate) async fn attach(client: &Client, mark: &QueueKey, from: i64, lease: i64) -> Result<Option<i64>, Failure> {
    let QueueKey { key, created } = mark;
    let put = PutRequest { key: key.clone(), lease, ignore_value: true, ..PutRequest::default() };
    let request = TxnRequest {
        compare: vec![created_at(key, *created), hangs_on(key, from)],
        success: vec![Request::Put(put).into()],
        failure: vec![range(whole(key))],
    };
    let answer = client.txn(request).await?;
    if answer.succeeded {
        return Ok(Some(lease));
    }
    let found = ranges_of(answer.responses).flatten().find(|kv| kv.create_revision == *created);
    Ok(found.map(|kv| kv.lease))
}

/// Deletes a key that a late request made: it was made after `created`, hangs on `lease`, and no client
/// has written it since.
pub(crate) async fn delete_late(client: &Client, key: &[u8], created: i64, lease: i64) -> Result<(), Failure> {
    let is_later = Compare { result: CompareResult::Greater.into(), ..created_at(key, created) };
    let delete = DeleteRangeRequest { key: key.to_vec() };
    let request = TxnRequest {
        compare: vec![is_later, hangs_on(key, lease), is_new(key)],
        success: vec![Request::DeleteRange(delete).into()],
        failure: Vec::new(),
    };
    client.txn(request).await.map(drop)
}

pub(crate) fn ranges_of(responses: Vec<ResponseOp>) -> impl Iterator<Item = Vec<KeyValue>> {
    responses.into_iter().filter_map(|op| match op.response {
        Some(Response::Range(range)) => Some(range.kvs),
        _ => None,
    })
}

pub(crate) fn created_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        create_revision: Some(revision),
        ..Compare::default()
    }
}

/// The queue of the lock is empty.
pub(crate) fn is_free(lock: &[u8]) -> Compare {
    Compare { range_end: end_of(lock), ..created_at(lock, 0) }
}

pub(crate) fn exists(key: &[u8]) -> Compare {
    Compare { result: CompareResult::Greater.into(), ..created_at(key, 0) }
}

/// The key was not written again since it was made.
fn is_new(key: &[u8]) -> Compare {
    Compare { target: CompareTarget::Version.into(), create_revision: None, version: Some(1), ..created_at(key, 0) }
}

/// The key hangs on that lease: no other attempt has taken it over.
pub(crate) fn hangs_on(key: &[u8], lease: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Lease.into(),
        key: key.to_vec(),
        lease: Some(lease),
        ..Compare::default()
    }
}

/// The key was not written, made or deleted since it was read.
pub(crate) fn unchanged(read: &KeyValue) -> Compare {
    Compare {
        target: CompareTarget::Mod.into(),
        create_revision: None,
        mod_revision: Some(read.mod_revision),
        ..created_at(&read.key, 0)
    }
}

/// The queue is as `view` shows it, as far as that matters for taking `slot`. That no key was written since is not enough:
/// a later key may have taken the slot and left again.
fn slot_is_kept(lock: &[u8], slot: Option<u32>, created: i64, view: &QueueView) -> Vec<Compare> {
    let keepers = slot.into_iter().flat_map(|slot| standing::keepers_of(slot, created, &view.heads));
    let kept = keepers.take(MOST_KEEPERS).map(unchanged);
    kept.chain([unchanged_since(lock, view.header.revision)]).collect()
}

/// No key of the lock was made or written after `revision`. Some may have gone.
fn unchanged_since(lock: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Less.into(),
        target: CompareTarget::Mod.into(),
        key: lock.to_vec(),
        mod_revision: Some(revision.saturating_add(1)),
        range_end: end_of(lock),
        ..Compare::default()
    }
}

/// Asks whether a key is there and when it was made. Its lease is not to be read from the reply: etcd 3.7 leaves it out
/// where only keys are asked for.
pub(crate) fn own(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), keys_only: true, ..RangeRequest::default() }
}

/// Asks for a key with everything that belongs to it, its lease too.
pub(crate) fn whole(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

pub(crate) fn first_of(lock: &[u8], limit: i64) -> RangeRequest {
    sorted(lock, SortOrder::Ascend, limit)
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

pub(crate) fn range(range: RangeRequest) -> RequestOp {
    Request::Range(range).into()
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::engines::etcd::protocol::messages::TxnResponse;
    use crate::engines::etcd::protocol::pages;

    const LOCK: &[u8] = b"locks/a/";
    const KEY: &[u8] = b"locks/a/2a-1";

    #[test]
    fn fuzz_answers_to_transactions_and_ranges() {
        distlock_testkit::fuzz("etcd_answer.txt", |input| {
            if let Ok(answer) = TxnResponse::decode(input) {
                distlock_testkit::assert_in_proportion(input, &answer);
                let header = answer.header.unwrap_or_default();
                if let Some(view) = lined_up(KEY.to_vec(), header, answer.responses.clone()) {
                    assert!(view.holds == view.before.is_empty() && view.own == Some(header.revision));
                }
                for mode in [Mode::Exclusive, Mode::Shared, Mode::Reentrant, Mode::Slot { of: 3 }] {
                    let view = QueueView::judged(LOCK, mode, header, ranges_of(answer.responses.clone()));
                    assert!(!view.holds || view.own.is_some(), "who holds it has a key");
                    let _ = view.disagreement(LOCK, mode.into());
                    let slot = standing::free_slot(3, view.own.unwrap_or(i64::MAX), &view.heads);
                    assert!(slot.is_none_or(|slot| slot < 3));
                    sights(LOCK, KEY, mode, view.own.unwrap_or_default());
                }
            }
            if let Ok(answer) = RangeResponse::decode(input) {
                distlock_testkit::assert_in_proportion(input, &answer);
                assert!(standing::holders(LOCK, &answer.kvs) <= answer.kvs.len());
                let next = pages::next_page(KEY, &answer);
                assert!(next.is_err() || next.is_ok_and(|next| next.is_none_or(|next| *next > *KEY)), "it goes on");
            }
        });
    }
}
