//! Where a key stands in its queue: whether it holds the lock, and which keys it waits for if not.
//!
//! Every rule looks only at keys that were made before. Their number can only shrink, so a key that holds the lock holds
//! it until the key is gone.

use crate::engines::etcd::protocol::messages::KeyValue;
use crate::engines::etcd::protocol::names::Names;
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::protocol::value;
use crate::engines::shared::admission;
use crate::types::mode::{AskedMode, Mode};

/// Where a key stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) holds: bool,
    /// As long as all of these are there, the lock is not free for it.
    pub(crate) awaited: Vec<QueueKey>,
}

/// Returns how many keys at the head of a queue have to be read.
pub(crate) fn heads_of(mode: Mode) -> u32 {
    match mode {
        Mode::Slot { of } => of,
        _ => 1,
    }
}

/// Judges a key that was made at `created`. `heads` are the first keys of the queue, [as many as it takes](heads_of);
/// `last` those that were made last, the last one first: for readers all of them.
pub(crate) fn judge(lock: &[u8], mode: Mode, created: i64, heads: &[KeyValue], last: &[KeyValue]) -> Standing {
    let is_before = |kv: &&KeyValue| kv.create_revision < created;
    let before = last.iter().filter(is_before);
    if mode == Mode::Shared {
        let is_awaited = |kv: &&KeyValue| admission::waits_behind(mode, Names::mode(lock, &kv.key));
        let awaited: Vec<_> = before.filter(is_awaited).take(1).map(QueueKey::of).collect();
        return Standing { holds: awaited.is_empty(), awaited };
    }
    let room = admission::room(mode);
    let holds =
        heads.iter().filter(is_before).count() < room && !has_waiter(lock, mode, heads.iter().filter(is_before));
    // While the last `room` keys before this one are all there, the lock is full; or if there are fewer, one of them waits.
    let mut awaited: Vec<_> = if holds { Vec::new() } else { before.take(room).map(QueueKey::of).collect() };
    // The next one to have the lock may be of the same owner.
    if let (Mode::Reentrant, false, Some(head)) = (mode, holds, heads.first())
        && !awaited.contains(&QueueKey::of(head))
    {
        awaited.push(QueueKey::of(head));
    }
    Standing { holds, awaited }
}

/// Whether one of the first keys of a semaphore waits: as many keys as its own size are before it. A key behind it waits,
/// too, however large its size is.
pub(crate) fn has_waiter<'a>(lock: &[u8], mode: Mode, mut heads: impl Iterator<Item = &'a KeyValue>) -> bool {
    let waits = |(before, kv): (usize, &KeyValue)| admission::room(Names::mode(lock, &kv.key)) <= before;
    matches!(mode, Mode::Slot { .. }) && heads.by_ref().enumerate().any(waits)
}

/// Returns the slot of a semaphore that a key made at `created` takes. `heads` are the keys of its holders.
///
/// The lowest free slots are left to earlier keys that have none yet: a key that is slow to take its slot must not get one
/// that a later key had in the meantime, since the tokens of a slot rise.
pub(crate) fn free_slot(of: u32, created: i64, heads: &[KeyValue]) -> Option<u32> {
    let slot_of = |kv: &KeyValue| value::read(&kv.value).and_then(|value| value.slot);
    let slow = heads.iter().filter(|kv| kv.create_revision < created && slot_of(kv).is_none()).count();
    admission::lowest_free_slot(of, heads.iter().filter_map(slot_of), slow)
}

/// Returns the keys among `heads` that keep `slot` for our key: while all of them are as they were read, no later key takes
/// it. The end of one of them lets a later key take `slot`, and our key a lower one.
pub(crate) fn keepers_of(slot: u32, created: i64, heads: &[KeyValue]) -> impl Iterator<Item = &KeyValue> {
    heads.iter().filter(move |kv| match value::read(&kv.value).and_then(|value| value.slot) {
        Some(lower) => lower < slot,
        None => kv.create_revision < created,
    })
}

/// Returns a mode among `keys` that disagrees with a claim.
pub(crate) fn disagreement<'a>(
    lock: &[u8],
    asked: AskedMode,
    keys: impl IntoIterator<Item = &'a [u8]>,
) -> Option<Mode> {
    admission::disagreement(asked, keys.into_iter().map(|key| Names::asked(lock, key)))
}

/// Returns how many keys at the head of a whole queue hold the lock.
pub(crate) fn holders(lock: &[u8], queue: &[KeyValue]) -> usize {
    let Some(first) = queue.first().map(|first| Names::asked(lock, &first.key)) else { return 0 };
    let holds = |(before, kv): &(usize, &KeyValue)| {
        let asked = Names::asked(lock, &kv.key);
        admission::may_be_beside(asked, first) && *before < admission::room(asked.mode)
    };
    queue.iter().enumerate().take_while(holds).count()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::contract::Claim;
    use crate::engines::etcd::protocol::value::Value;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    const LOCK: &[u8] = b"a/";

    fn key(created: i64, mode: Mode) -> KeyValue {
        let key = Names::place(LOCK, 7, u32::try_from(created).unwrap(), mode.into());
        KeyValue { key, create_revision: created, ..KeyValue::default() }
    }

    fn with_slot(created: i64, slot: Option<u32>) -> KeyValue {
        let owner = OwnerId::new("o").unwrap();
        let record = Record::new(owner, Process::current(), None, SystemTime::UNIX_EPOCH);
        let claim = Claim::new(Key::new("a").unwrap(), Duration::from_secs(2), true, Arc::new(record));
        KeyValue { value: Value::new(&claim, 7).with_slot(slot).to_value(), ..key(created, Mode::Slot { of: 3 }) }
    }

    fn judge_all(mode: Mode, created: i64, queue: &[KeyValue]) -> (bool, Vec<i64>) {
        let heads = &queue[..queue.len().min(heads_of(mode) as usize)];
        let last: Vec<_> = queue.iter().rev().cloned().collect();
        let Standing { holds, awaited } = judge(LOCK, mode, created, heads, &last);
        (holds, awaited.into_iter().map(|mark| mark.created).collect())
    }

    #[test]
    fn a_writer_waits_for_the_one_before_and_a_reader_for_the_last_writer() {
        let (r, w) = (Mode::Shared, Mode::Exclusive);
        let queue = [key(1, r), key(2, r), key(3, w), key(4, r), key(5, r), key(6, w)];
        let expected = [(true, vec![]), (true, vec![]), (false, vec![2])];
        let expected = expected.into_iter().chain([(false, vec![3]), (false, vec![3]), (false, vec![5])]);
        for (kv, expected) in queue.iter().zip(expected) {
            let mode = Names::mode(LOCK, &kv.key);
            assert_eq!(judge_all(mode, kv.create_revision, &queue), expected, "{}", kv.create_revision);
        }
        assert_eq!(holders(LOCK, &queue), 2);
        assert_eq!(holders(LOCK, &queue[2..]), 1);
        let stranger = KeyValue { key: b"a/694d".to_vec(), create_revision: 1, ..KeyValue::default() };
        assert_eq!(judge_all(r, 2, &[stranger, key(2, r)]), (false, vec![1]), "Go's client shares nothing");
    }

    #[test]
    fn an_entry_also_waits_for_the_holder() {
        let queue = [key(1, Mode::Exclusive), key(2, Mode::Reentrant), key(3, Mode::Reentrant)];
        assert_eq!(judge_all(Mode::Reentrant, 3, &queue), (false, vec![2, 1]));
        assert_eq!(judge_all(Mode::Reentrant, 2, &queue), (false, vec![1]));
        assert_eq!(judge_all(Mode::Reentrant, 2, &queue[1..]), (true, vec![]));
    }

    #[test]
    fn a_permit_waits_for_the_last_ones_before() {
        let mode = Mode::Slot { of: 2 };
        let queue: Vec<_> = (1..=5).map(|created| key(created, mode)).collect();
        assert_eq!(judge_all(mode, 2, &queue), (true, vec![]));
        assert_eq!(judge_all(mode, 3, &queue), (false, vec![2, 1]));
        assert_eq!(judge_all(mode, 5, &queue), (false, vec![4, 3]));
        assert_eq!(holders(LOCK, &queue), 2);
    }

    fn resized(created: i64, of: u32) -> KeyValue {
        let asked = AskedMode { mode: Mode::Slot { of }, resizes: true };
        let key = Names::place(LOCK, 7, u32::try_from(created).unwrap(), asked);
        KeyValue { key, create_revision: created, ..KeyValue::default() }
    }

    #[test]
    fn each_permit_of_a_resized_semaphore_counts_by_its_own_size() {
        let sizes =
            |sizes: &[u32]| sizes.iter().zip(1..).map(|(of, created)| resized(created, *of)).collect::<Vec<_>>();
        let judged = |queue: &[KeyValue], at: usize| {
            judge_all(Names::mode(LOCK, &queue[at].key), queue[at].create_revision, queue)
        };
        let grown = sizes(&[3, 3, 3, 4, 4]);
        assert_eq!(judged(&grown, 3), (true, vec![]), "three are before it");
        assert_eq!(judged(&grown, 4), (false, vec![4, 3, 2, 1]));
        assert_eq!(holders(LOCK, &grown), 4);
        let shrunk = sizes(&[4, 4, 4, 3, 3]);
        assert_eq!(judged(&shrunk, 3), (false, vec![3, 2, 1]), "it waits until two are left");
        assert_eq!(judged(&shrunk[1..], 2), (true, vec![]));
        let large_behind = sizes(&[4, 4, 4, 3, 9]);
        assert_eq!(judged(&large_behind, 4), (false, vec![4, 3, 2, 1]), "it does not pass the one that waits");
        assert_eq!(judged(&large_behind[1..], 3), (true, vec![]));
        assert_eq!(holders(LOCK, &large_behind), 3);
    }

    #[test]
    fn the_lowest_slot_is_left_to_who_came_before() {
        assert_eq!(free_slot(3, 9, &[with_slot(1, Some(1))]), Some(0));
        assert_eq!(free_slot(3, 9, &[with_slot(1, Some(1)), with_slot(2, None)]), Some(2));
        assert_eq!(free_slot(3, 2, &[with_slot(1, Some(0)), with_slot(2, None), with_slot(3, Some(2))]), Some(1));
        assert_eq!(free_slot(1, 9, &[with_slot(1, Some(0))]), None);
        let heads = [with_slot(1, Some(0)), with_slot(2, None), with_slot(3, None), with_slot(4, Some(2))];
        let keepers: Vec<_> = keepers_of(1, 3, &heads).map(|kv| kv.create_revision).collect();
        assert_eq!(keepers, [1, 2], "a slot that is higher, and a key that came later, keep nothing");
    }

    #[test]
    fn a_semaphore_and_a_lock_disagree() {
        let keys = [key(1, Mode::Slot { of: 3 })];
        let keys = || keys.iter().map(|kv| kv.key.as_slice());
        assert_eq!(disagreement(LOCK, Mode::Slot { of: 3 }.into(), keys()), None);
        assert_eq!(disagreement(LOCK, Mode::Exclusive.into(), keys()), Some(Mode::Slot { of: 3 }));
        let resizes = AskedMode { mode: Mode::Slot { of: 4 }, resizes: true };
        assert_eq!(disagreement(LOCK, resizes, keys()), Some(Mode::Slot { of: 3 }), "the holder does not resize");
        let keys = [resized(1, 3), resized(2, 5)];
        let keys = || keys.iter().map(|kv| kv.key.as_slice());
        assert_eq!(disagreement(LOCK, resizes, keys()), None);
        assert_eq!(disagreement(LOCK, resizes.mode.into(), keys()), Some(Mode::Slot { of: 3 }));
    }
}
