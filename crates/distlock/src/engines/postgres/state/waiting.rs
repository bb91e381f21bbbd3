//! The attempts of this process that wait for a lock, and the messages for them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::contract::{Attachment, Grant, Losses, Term};
use crate::types::clock::Moment;
use crate::types::event::LossReason;
use crate::types::sync::Mutex;
use crate::types::token::{AttemptId, FencingToken};

/// The waiting attempts of one engine.
pub(in crate::engines) struct Waiting {
    drift: f64,
    losses: Losses,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    places: BTreeMap<AttemptId, Place>,
    /// How often all attempts had to claim again, perhaps from another server with another clock.
    era: u64,
}

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
    server_us: i64,
}

/// A grant that came as a message.
#[derive(Debug, Clone, Copy)]
struct Handed {
    token: FencingToken,
    granted_us: i64,
    lease: Duration,
    slot: Option<u32>,
    received: Moment,
}

impl Waiting {
    pub(in crate::engines) fn new(attachment: &Attachment) -> Self {
        Waiting { drift: attachment.drift, losses: attachment.losses.clone(), table: Mutex::default() }
    }

    /// Keeps messages for `attempt` from now on. Called before its claim is sent: the grant may overtake the reply. A message
    /// from before says nothing that the claim does not find out.
    pub(in crate::engines) fn enlist(&self, attempt: AttemptId) {
        let mut table = self.table.lock();
        let era = table.era;
        let place = || Place { message: Arc::default(), era, claimed: None, handed: None };
        let place = table.places.entry(attempt).or_insert_with(place);
        place.era = era;
        place.message = Arc::default();
    }

    /// The claim of `attempt` that was sent at `sent` was answered busy at `server_us`.
    pub(in crate::engines) fn answered(&self, attempt: AttemptId, sent: Moment, server_us: i64) {
        let mut table = self.table.lock();
        let era = table.era;
        if let Some(place) = table.places.get_mut(&attempt).filter(|place| place.era == era) {
            place.claimed = Some(SentClaim { sent, server_us });
        }
    }

    pub(in crate::engines) fn forget(&self, attempt: AttemptId) {
        self.table.lock().places.remove(&attempt);
    }

    /// Returns what is notified when a message for `attempt` comes; `None` when it is not enlisted.
    pub(in crate::engines) fn message(&self, attempt: AttemptId) -> Option<Arc<Notify>> {
        self.table.lock().places.get(&attempt).map(|place| place.message.clone())
    }

    /// Returns whether a grant for `attempt` came as a message.
    pub(in crate::engines) fn is_handed(&self, attempt: AttemptId) -> bool {
        self.table.lock().places.get(&attempt).is_some_and(|place| place.handed.is_some())
    }

    /// Takes the grant that came as a message for `attempt`, if it can be believed. Its attempt waits no more.
    pub(in crate::engines) fn take_grant(&self, attempt: AttemptId) -> Option<Grant> {
        let mut table = self.table.lock();
        let Entry::Occupied(mut place) = table.places.entry(attempt) else { return None };
        let told = place.get_mut().handed.take().zip(place.get().claimed);
        let grant = told.and_then(|(handed, claimed)| handed.grant(claimed, self.drift));
        if grant.is_some() {
            place.remove();
        }
        grant
    }

    /// Wakes `attempt`, if it is one of ours.
    pub(in crate::engines) fn wake(&self, attempt: AttemptId) {
        if let Some(place) = self.table.lock().places.get(&attempt) {
            place.message.notify_one();
        }
    }

    /// Has all attempts claim again: after a reconnect it is unknown which messages were missed, and by which clock the
    /// last reply was.
    pub(in crate::engines) fn wake_all(&self) {
        let mut table = self.table.lock();
        table.era += 1;
        for place in table.places.values_mut() {
            place.claimed = None;
            // If the grant still stands, the claim finds it.
            place.handed = None;
            place.message.notify_one();
        }
    }

    /// Takes a message of our channel. One that is not understood is ignored: the waiter's slow poll stands behind it.
    pub(in crate::engines) fn hear(&self, text: &str, received: Moment) {
        let mut words = text.split(' ');
        let word = words.next();
        let Some(attempt) = words.next().and_then(|word| word.parse().ok()) else { return };
        match word {
            Some("grant") => {
                if let Some(handed) = read_grant(&mut words, received)
                    && let Some(place) = self.table.lock().places.get_mut(&attempt)
                {
                    place.handed = Some(handed);
                    place.message.notify_one();
                }
            }
            Some("retry") => self.wake(attempt),
            Some("lost") => self.losses.push(attempt, LossReason::Broken),
            Some("adopted") => self.losses.push(attempt, LossReason::Adopted),
            _ => {}
        }
    }
}

/// Reads `token granted_us lease_ms`, and the slot of a semaphore.
fn read_grant<'a>(words: &mut impl Iterator<Item = &'a str>, received: Moment) -> Option<Handed> {
    let token = words.next()?.parse().ok()?;
    let granted_us = words.next()?.parse().ok()?;
    let lease = Duration::from_millis(words.next()?.parse().ok()?);
    let slot = words.next().map(str::parse).transpose().ok()?;
    words.next().is_none().then_some(Handed { token, granted_us, lease, slot, received })
}

impl Handed {
    /// The lease began on the server's clock when it was handed over: on ours no later than the last claim plus what has
    /// passed on the server's clock since. Not when the message came: it may have been in a buffer while this process was
    /// stopped.
    ///
    /// `None` when it cannot have been so. A grant from before that claim, which was answered busy, is over by then; one
    /// that came before it was given is by a clock that was set. The attempt claims again, and finds what it has.
    fn grant(self, claimed: SentClaim, drift: f64) -> Option<Grant> {
        let passed = self.granted_us.checked_sub(claimed.server_us).filter(|passed| *passed > 0)?;
        let passed = Duration::from_micros(passed.unsigned_abs());
        let start = claimed.sent.after(passed.mul_f64(1.0 - drift));
        let term = Some(Term { start, ttl: self.lease });
        (start <= self.received).then_some(Grant { token: self.token, term, slot: self.slot })
    }
}

#[cfg(test)]
mod tests {
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
    async fn a_message_from_a_buffer_does_not_begin_a_lease_anew() {
        let (clock, hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        let sent = clock.now();
        waiting.enlist(attempt);
        waiting.answered(attempt, sent, 5_000_000);
        hand.jump(SECOND * 60);
        // Granted one second after the claim, read a minute after it.
        waiting.hear(&message(attempt, 6_000_000), clock.now());
        let term = waiting.take_grant(attempt).expect("a grant").term.expect("a lease");
        assert_eq!((term.ttl, term.start.since(sent)), (SECOND, Duration::from_millis(999)));
        assert!(waiting.message(attempt).is_none(), "it waits no more");
    }

    #[tokio::test]
    async fn a_grant_by_another_clock_or_from_before_the_last_claim_is_not_believed() {
        let (clock, hand) = Clock::manual();
        let (waiting, attempt) = (waiting(), AttemptId::random());
        waiting.enlist(attempt);
        waiting.answered(attempt, clock.now(), 5_000_000);
        hand.jump(SECOND);
        for granted_us in [4_000_000, 5_000_000, 3_600_000_000] {
            waiting.hear(&message(attempt, granted_us), clock.now());
            assert!(waiting.take_grant(attempt).is_none(), "{granted_us}");
        }
        waiting.wake_all();
        waiting.answered(attempt, clock.now(), 5_000_000);
        hand.jump(SECOND);
        waiting.hear(&message(attempt, 5_000_001), clock.now());
        assert!(waiting.take_grant(attempt).is_none(), "the reply is of an earlier era");
        waiting.enlist(attempt);
        waiting.answered(attempt, clock.now(), 6_000_000);
        hand.jump(SECOND);
        waiting.hear(&message(attempt, 6_000_001), clock.now());
        assert!(waiting.take_grant(attempt).is_some());
    }

    #[tokio::test]
    async fn a_message_from_before_a_claim_wakes_nobody_and_one_after_it_is_kept() {
        let (waiting, attempt) = (waiting(), AttemptId::random());
        let is_woken = async |waiting: &Waiting| {
            let message = waiting.message(attempt).expect("enlisted");
            tokio::time::timeout(Duration::ZERO, message.notified()).await.is_ok()
        };
        waiting.enlist(attempt);
        waiting.wake_all();
        waiting.enlist(attempt);
        assert!(!is_woken(&waiting).await, "the claim is the answer to it");
        waiting.hear(&format!("retry {attempt}"), Moment::from_nanos(1));
        assert!(is_woken(&waiting).await, "it came before the wait");
    }

    #[tokio::test]
    async fn fuzz_messages_of_strangers() {
        let attempt: AttemptId = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        distlock_testkit::fuzz("redis_message.txt", |input| {
            let (clock, _hand) = Clock::manual();
            let waiting = waiting();
            waiting.enlist(attempt);
            waiting.answered(attempt, clock.now(), 5_000_000);
            waiting.hear(&String::from_utf8_lossy(input), clock.now());
            if let Some(term) = waiting.take_grant(attempt).and_then(|grant| grant.term) {
                assert!(term.start <= clock.now(), "a lease that begins in the future");
            }
        });
    }
}
