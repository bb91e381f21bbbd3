//! The attempts of this process that wait for a lock, and the messages that tell them: of engines whose releases hand the
//! lock over in a message.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::contract::{Attachment, Grant, Losses, Term};
use crate::types::clock::Moment;
use crate::types::event::LossReason;
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::token::{AttemptId, FencingToken};

/// The waiting attempts of one engine.
#[derive(Debug)]
pub(crate) struct Waiting {
    drift: f64,
    losses: Losses,
    table: Mutex<BTreeMap<AttemptId, Place>>,
    /// How many there are: where locks are free there are none, and then nothing is locked.
    count: AtomicUsize,
    /// The waiters whose messages were taken and that are not woken yet.
    told: Mutex<Vec<Arc<Notify>>>,
    /// How often all attempts had to claim again, perhaps from another server with another clock.
    era: AtomicU64,
}

#[derive(Debug)]
struct Place {
    message: Arc<Notify>,
    /// The era of the last claim.
    era: u64,
    /// The last claim that was answered.
    claimed: Option<SentClaim>,
    handed: Option<Handed>,
}

/// A claim as both clocks saw it.
#[derive(Debug, Clone, Copy)]
struct SentClaim {
    sent: Moment,
    server_us: u64,
}

/// A grant that came as a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handed {
    token: FencingToken,
    granted_us: u64,
    lease: Duration,
    slot: Option<u32>,
    received: Moment,
}

impl Waiting {
    pub(crate) fn new(attachment: &Attachment) -> Self {
        let Attachment { drift, losses, .. } = attachment.clone();
        Waiting {
            drift,
            losses,
            table: Mutex::default(),
            count: AtomicUsize::new(0),
            told: Mutex::default(),
            era: AtomicU64::new(0),
        }
    }

    /// Keeps messages for `attempt` from now on. Called before its claim is sent: the grant may overtake the reply.
    pub(crate) fn enlist(&self, attempt: AttemptId) {
        let place = || Place { message: Arc::new(Notify::new()), era: 0, claimed: None, handed: None };
        let mut table = self.table();
        table.entry(attempt).or_insert_with(place).era = self.era.load(Ordering::Acquire);
        self.count.store(table.len(), Ordering::Release);
    }

    /// Like [`enlist`](Waiting::enlist), for a claim that finds out all that messages from before have said: they wake no one.
    pub(crate) fn enlist_anew(&self, attempt: AttemptId) {
        self.enlist(attempt);
        if let Some(place) = self.table().get_mut(&attempt) {
            place.message = Arc::default();
        }
    }

    /// The claim of `attempt` that was sent at `sent` was answered busy at `server_us`.
    pub(crate) fn answered(&self, attempt: AttemptId, sent: Moment, server_us: u64) {
        let era = self.era.load(Ordering::Acquire);
        if let Some(place) = self.table().get_mut(&attempt).filter(|place| place.era == era) {
            place.claimed = Some(SentClaim { sent, server_us });
        }
    }

    pub(crate) fn forget(&self, attempt: AttemptId) {
        if !self.is_empty() {
            let mut table = self.table();
            table.remove(&attempt);
            self.count.store(table.len(), Ordering::Release);
        }
    }

    pub(crate) fn is_enlisted(&self, attempt: AttemptId) -> bool {
        !self.is_empty() && self.table().contains_key(&attempt)
    }

    /// Returns whether no attempt waits. An attempt that asks knows whether it does.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns what is notified when a message for `attempt` comes; `None` when it is not enlisted.
    fn message(&self, attempt: AttemptId) -> Option<Arc<Notify>> {
        self.table().get(&attempt).map(|place| place.message.clone())
    }

    /// Returns whether a grant for `attempt` came as a message.
    fn is_handed(&self, attempt: AttemptId) -> bool {
        self.table().get(&attempt).is_some_and(|place| place.handed.is_some())
    }

    /// Takes the grant that came as a message for `attempt`, if it can be believed. Its attempt waits no more.
    fn take_grant(&self, attempt: AttemptId) -> Option<Grant> {
        let mut table = self.table();
        let MapEntry::Occupied(mut place) = table.entry(attempt) else { return None };
        let told = place.get_mut().handed.take().zip(place.get().claimed);
        let grant = told.and_then(|(handed, claimed)| handed.grant(claimed, self.drift));
        if grant.is_some() {
            place.remove();
            self.count.store(table.len(), Ordering::Release);
        }
        grant
    }

    /// Returns when there is a message for `attempt`, with the grant if it was one that can be believed.
    pub(crate) async fn notified(&self, attempt: AttemptId) -> Option<Grant> {
        self.message(attempt)?.notified().await;
        self.take_grant(attempt)
    }

    /// Returns when `attempt`, whose last claim failed, was given the lock all the same.
    pub(crate) async fn overhear(&self, attempt: AttemptId) {
        self.enlist(attempt);
        let _enlisted = Enlisted(self, attempt);
        let Some(message) = self.message(attempt) else { return };
        while !self.is_handed(attempt) {
            message.notified().await;
        }
    }

    /// `attempt` claims again, if it is one of ours.
    pub(crate) fn wake(&self, attempt: AttemptId) {
        if let Some(place) = self.table().get(&attempt) {
            place.message.notify_one();
        }
    }

    /// All attempts claim again: after a reconnect it is unknown which messages were missed, and by which clock the last
    /// reply was.
    pub(crate) fn wake_all(&self) {
        let mut table = self.table();
        self.told.lock().clear();
        self.era.fetch_add(1, Ordering::AcqRel);
        for place in table.values_mut() {
            place.claimed = None;
            // If the grant still stands, the claim finds it.
            place.handed = None;
            place.message.notify_one();
        }
    }

    /// Takes a message of our channel, and wakes its waiter. One that is not understood is ignored: the waiter's slow poll
    /// stands behind it.
    pub(crate) fn hear(&self, message: &[u8], received: Moment) {
        self.take_message(message, received);
        self.wake_told();
    }

    /// Takes a message of our channel. Its waiter is woken by the next [`wake_told`](Waiting::wake_told).
    pub(crate) fn take_message(&self, message: &[u8], received: Moment) {
        let Ok(text) = std::str::from_utf8(message) else { return };
        let mut words = text.split(' ');
        let lost = |word: Option<&str>, reason| {
            if let Some(attempt) = word.and_then(|word| word.parse().ok()) {
                self.losses.push(attempt, reason);
            }
        };
        match words.next() {
            Some("grant") => {
                if let Some((attempt, handed)) = read_grant(&mut words, received)
                    && let Some(place) = self.table().get_mut(&attempt)
                {
                    place.handed = Some(handed);
                    self.told.lock().push(place.message.clone());
                }
            }
            Some("retry") => {
                let table = self.table();
                let told = words.filter_map(|word| table.get(&word.parse().ok()?));
                self.told.lock().extend(told.map(|place| place.message.clone()));
            }
            Some("lost") => lost(words.next(), LossReason::Broken),
            Some("adopted") => lost(words.next(), LossReason::Adopted),
            _ => {}
        }
    }

    /// Wakes the waiters whose messages were taken.
    pub(crate) fn wake_told(&self) {
        let told = std::mem::take(&mut *self.told.lock());
        told.iter().for_each(|message| message.notify_one());
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<AttemptId, Place>> {
        self.table.lock()
    }
}

/// An attempt that is forgotten when this is dropped.
struct Enlisted<'a>(&'a Waiting, AttemptId);

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

/// `attempt token granted_us lease_ms`, and the slot of a semaphore.
fn read_grant<'a>(words: &mut impl Iterator<Item = &'a str>, received: Moment) -> Option<(AttemptId, Handed)> {
    let attempt = words.next()?.parse().ok()?;
    let token = words.next()?.parse().ok()?;
    let granted_us = words.next()?.parse().ok()?;
    let lease = Duration::from_millis(words.next()?.parse().ok()?);
    let slot = words.next().map(str::parse).transpose().ok()?;
    words.next().is_none().then_some((attempt, Handed { token, granted_us, lease, slot, received }))
}

impl Handed {
    /// The lease began on the server's clock when it was handed over: on ours no later than the last claim plus what has
    /// passed on the server's clock since. Not when the message came: it may have lain in a buffer while this process was
    /// stopped.
    ///
    /// Nothing when it cannot have been so: a grant from before that claim, which was answered busy, is over by then; and
    /// one that came before it was given is by a clock that was set. The attempt claims again, and finds what it has.
    fn grant(self, claimed: SentClaim, drift: f64) -> Option<Grant> {
        let passed =
            Duration::from_micros(self.granted_us.checked_sub(claimed.server_us).filter(|passed| *passed > 0)?);
        let start = claimed.sent.after(passed.mul_f64(1.0 - drift));
        let term = Some(Term { start, ttl: self.lease });
        (start <= self.received).then_some(Grant { token: self.token, term, slot: self.slot })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::types::clock::Clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn waiting() -> Waiting {
        Waiting::new(&Attachment::standalone(&tokio::runtime::Handle::current()))
    }

    fn message(attempt: AttemptId, granted_us: u64) -> String {
        format!("grant {attempt} 42 {granted_us} 1000")
    }

    #[tokio::test]
    async fn a_message_that_lay_in_a_buffer_does_not_begin_a_lease_anew() {
        let (clock, hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        let sent = clock.now();
        waiting.enlist(attempt);
        waiting.answered(attempt, sent, 5_000_000);
        hand.jump(SECOND * 60);
        // Granted one second after the claim, read a minute after it.
        waiting.hear(message(attempt, 6_000_000).as_bytes(), clock.now());
        let grant = waiting.notified(attempt).await.expect("a grant");
        let term = grant.term.expect("a lease");
        assert_eq!(term.ttl, SECOND);
        assert_eq!(term.start.since(sent), Duration::from_millis(999));
        assert!(waiting.is_empty());
    }

    #[tokio::test]
    async fn a_grant_from_before_a_claim_that_was_answered_busy_is_over() {
        let (clock, hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        waiting.enlist(attempt);
        waiting.answered(attempt, clock.now(), 5_000_000);
        // Stopped: the grant lies in a buffer until it is over. Going on, the claim is quicker than the message.
        hand.jump(SECOND * 3);
        waiting.enlist(attempt);
        waiting.answered(attempt, clock.now(), 8_000_000);
        hand.jump(Duration::from_millis(1));
        waiting.hear(message(attempt, 6_000_000).as_bytes(), clock.now());
        assert!(waiting.notified(attempt).await.is_none(), "claims again");
        waiting.hear(message(attempt, 8_000_500).as_bytes(), clock.now());
        assert!(waiting.notified(attempt).await.is_some(), "the next one is good");
    }

    #[tokio::test]
    async fn a_grant_by_a_clock_that_was_set_is_not_believed() {
        let (clock, hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        waiting.enlist(attempt);
        waiting.answered(attempt, clock.now(), 5_000_000);
        hand.jump(SECOND);
        waiting.hear(message(attempt, 3_600_000_000).as_bytes(), clock.now());
        assert!(waiting.notified(attempt).await.is_none(), "it would begin in the future");
    }

    #[tokio::test]
    async fn a_message_before_the_wait_is_not_lost_and_one_for_nobody_is_nothing() {
        let (clock, hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        waiting.hear(message(attempt, 1).as_bytes(), clock.now());
        assert!(waiting.notified(attempt).await.is_none(), "the attempt waits no more: claim again");
        waiting.enlist(attempt);
        let sent = clock.now();
        hand.jump(SECOND);
        waiting.hear(message(attempt, 7).as_bytes(), clock.now());
        waiting.answered(attempt, sent, 5);
        assert_eq!(waiting.notified(attempt).await.expect("a grant").token, FencingToken::new(42));
    }

    #[tokio::test]
    async fn an_answer_by_the_clock_of_an_earlier_server_counts_for_no_grant() {
        let (clock, hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        waiting.enlist(attempt);
        waiting.wake_all();
        waiting.answered(attempt, clock.now(), 5_000_000);
        hand.jump(SECOND);
        waiting.hear(message(attempt, 6_000_000).as_bytes(), clock.now());
        assert!(waiting.notified(attempt).await.is_none(), "claims again");
        waiting.enlist(attempt);
        waiting.answered(attempt, clock.now(), 5_000_000);
        hand.jump(SECOND);
        waiting.hear(message(attempt, 6_000_000).as_bytes(), clock.now());
        assert!(waiting.notified(attempt).await.is_some());
    }

    #[tokio::test]
    async fn who_only_overhears_is_told_of_a_grant_and_of_nothing_else() {
        let (clock, _hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        {
            let mut overheard = std::pin::pin!(waiting.overhear(attempt));
            assert!(timeout(Duration::ZERO, overheard.as_mut()).await.is_err());
            waiting.hear(format!("retry {attempt}").as_bytes(), clock.now());
            waiting.wake_all();
            assert!(timeout(Duration::ZERO, overheard.as_mut()).await.is_err(), "that is what its pause is for");
            waiting.hear(message(attempt, 1).as_bytes(), clock.now());
            overheard.await;
        }
        assert!(timeout(Duration::ZERO, waiting.overhear(attempt)).await.is_err(), "told once");
        assert!(waiting.is_empty(), "nobody listens any more");
    }

    #[tokio::test]
    async fn a_message_from_before_a_claim_that_finds_out_wakes_no_one_and_one_after_it_is_kept() {
        let (waiting, attempt) = (waiting(), AttemptId::random());
        waiting.enlist_anew(attempt);
        waiting.wake_all();
        waiting.enlist_anew(attempt);
        assert!(timeout(Duration::ZERO, waiting.notified(attempt)).await.is_err(), "the claim is the answer to it");
        waiting.hear(format!("retry {attempt}").as_bytes(), Moment::from_nanos(1));
        assert!(timeout(Duration::ZERO, waiting.notified(attempt)).await.is_ok(), "it came before the wait");
    }

    #[tokio::test]
    async fn what_is_not_understood_is_ignored() {
        let (clock, _hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        waiting.enlist(attempt);
        let garbage = [
            "".into(),
            "grant".into(),
            format!("grant {attempt} 42 1"),
            format!("grant {attempt} 42 1 1000 x"),
            format!("grant {attempt} -1 1 1000"),
            format!("grant {attempt} 42 1 1000 2 x"),
            "adopted".into(),
            "retry x".into(),
            "lost".into(),
        ];
        for message in garbage {
            waiting.hear(message.as_bytes(), clock.now());
        }
        waiting.hear(b"\xff\xff", clock.now());
        waiting.hear(format!("retry {} {attempt}", AttemptId::random()).as_bytes(), clock.now());
        assert!(waiting.notified(attempt).await.is_none(), "told to claim again");
    }

    #[test]
    fn fuzz_messages_of_strangers() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let attempt: AttemptId = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        distlock_testkit::fuzz("redis_message.txt", |input| {
            runtime.block_on(async {
                let (clock, _hand) = Clock::manual();
                let waiting = waiting();
                waiting.enlist(attempt);
                waiting.answered(attempt, clock.now(), 5_000_000);
                waiting.hear(input, clock.now());
                waiting.wake(attempt);
                if let Some(term) = waiting.notified(attempt).await.and_then(|grant| grant.term) {
                    assert!(term.start <= clock.now(), "a lease that begins in the future");
                    let _ = crate::types::clock::deadline(term.start, term.ttl, waiting.drift);
                }
            });
        });
    }
}
