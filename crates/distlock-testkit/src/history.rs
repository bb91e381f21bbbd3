//! Judges a recorded history: which client believed to hold a lock when, with which token, and which writes a resource
//! accepted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use distlock::{Mode, Moment};

/// One hold, as its holder saw it on the machine's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The lock.
    pub key: String,
    /// The holder: one number for each owner.
    pub client: u32,
    /// The mode, which decides which other holds may overlap.
    pub mode: Mode,
    /// The slot, if it is a permit of a semaphore.
    pub slot: Option<u32>,
    /// When the client sent its request.
    pub asked: Moment,
    /// When the client was known to be in the queue; `None` if it never was, or if this was not observed.
    pub queued: Option<Moment>,
    /// When the client received the grant.
    pub granted: Moment,
    /// The fencing token.
    pub token: u64,
    /// When the client stopped believing in its hold: it began to unlock, its deadline passed, or it learned of the
    /// loss.
    pub end: Moment,
}

/// A write to the protected resource, in order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Write {
    key: String,
    token: u64,
    accepted: bool,
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two grants have the same token.
    TokenRepeated(Box<[Hold; 2]>),
    /// A grant that was received before the other was requested has the higher token.
    TokenFell(Box<[Hold; 2]>),
    /// Two clients with conflicting modes believed to hold the lock at the same moment.
    TwoHolders(Box<[Hold; 2]>),
    /// A later waiter was granted the lock first.
    Overtaken(Box<[Hold; 2]>),
    /// The resource accepted a token lower than an earlier one.
    StaleWrite {
        /// The lock.
        key: String,
        /// The token accepted before.
        after: u64,
        /// The lower one.
        token: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#?}")
    }
}

/// A recorded history, in any order.
#[derive(Debug, Default)]
pub struct History {
    seen: Mutex<Seen>,
    /// Whether the permits of a semaphore may be of several sizes.
    sizes_differ: bool,
}

#[derive(Debug, Default)]
struct Seen {
    holds: Vec<Hold>,
    writes: Vec<Write>,
}

impl History {
    /// Returns a history of semaphores that all requests [resize](distlock::Semaphore::or_resize).
    #[must_use]
    pub fn of_several_sizes() -> History {
        History { sizes_differ: true, ..History::default() }
    }

    /// Records a hold that has ended.
    pub fn hold(&self, hold: Hold) {
        self.seen().holds.push(hold);
    }

    /// Records that a write with `token` reached the resource and was accepted or refused.
    pub fn write(&self, key: &str, token: u64, accepted: bool) {
        self.seen().writes.push(Write { key: key.into(), token, accepted });
    }

    /// Returns the number of holds.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.seen().holds.len()
    }

    /// Checks every rule for every lock.
    ///
    /// # Errors
    /// The first broken rule, with the two holds that break it.
    pub fn check(&self) -> Result<(), Violation> {
        let seen = self.seen();
        let mut by_key: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &seen.holds {
            by_key.entry(&hold.key).or_default().push(hold);
        }
        for holds in by_key.values_mut() {
            check_beside(holds, self.sizes_differ)?;
            // A re-entry has the token of the first entry, and bypasses the queue.
            let mut firsts = first_entries(holds);
            check_tokens(&mut firsts)?;
            check_order(&mut firsts)?;
        }
        check_writes(&seen.writes)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pair(a: &Hold, b: &Hold) -> Box<[Hold; 2]> {
    Box::new([a.clone(), b.clone()])
}

/// Tokens are unique, and a grant that was received before another was requested has the lower token.
fn check_tokens(holds: &mut [&Hold]) -> Result<(), Violation> {
    holds.sort_by_key(|hold| hold.token);
    if let Some(same) = holds.windows(2).find(|two| two[0].token == two[1].token) {
        return Err(Violation::TokenRepeated(pair(same[0], same[1])));
    }
    // Walks down from the highest token. A hold must not have been requested after a higher token was received, so
    // comparing with the earliest receipt of a higher token is enough.
    let mut earliest: Option<&Hold> = None;
    for hold in holds.iter().rev() {
        if let Some(later) = earliest.filter(|later| later.granted < hold.asked) {
            return Err(Violation::TokenFell(pair(later, hold)));
        }
        if earliest.is_none_or(|known| hold.granted < known.granted) {
            earliest = Some(hold);
        }
    }
    Ok(())
}

/// Returns the first entry of each owner's re-entries.
fn first_entries<'a>(holds: &mut [&'a Hold]) -> Vec<&'a Hold> {
    holds.sort_by_key(|hold| (hold.token, hold.granted));
    let mut firsts: Vec<&Hold> = Vec::new();
    for hold in holds.iter() {
        let enters_again = |first: &&Hold| {
            [first.mode, hold.mode] == [Mode::Reentrant; 2] && (first.token, first.client) == (hold.token, hold.client)
        };
        if !firsts.last().is_some_and(enters_again) {
            firsts.push(hold);
        }
    }
    firsts
}

/// Holds overlap only where both modes allow it.
fn check_beside(holds: &mut [&Hold], sizes_differ: bool) -> Result<(), Violation> {
    holds.sort_by_key(|hold| (hold.granted, hold.end));
    let mut inside: Vec<&Hold> = Vec::new();
    // A hold whose end came before its grant was received, as in a process that stood still, was never believed in.
    for hold in holds.iter().filter(|hold| hold.granted < hold.end) {
        inside.retain(|before| hold.granted < before.end);
        if let Some(before) = inside.iter().find(|before| !may_be_beside(before, hold, sizes_differ)) {
            return Err(Violation::TwoHolders(pair(before, hold)));
        }
        inside.push(hold);
        if let Some([before, crowded]) = crowd(&mut inside) {
            return Err(Violation::TwoHolders(pair(before, crowded)));
        }
    }
    Ok(())
}

/// Returns a hold beside which there was no room for another, with that other one. Holders with lower tokens were there
/// when a hold was granted: fewer than its mode allows.
fn crowd<'a>(inside: &mut [&'a Hold]) -> Option<[&'a Hold; 2]> {
    inside.sort_by_key(|hold| hold.token);
    let crowded = inside.iter().enumerate().find(|(earlier, hold)| *earlier >= hold.mode.most_holders());
    crowded.map(|(earlier, hold)| [inside[earlier - 1], hold])
}

fn may_be_beside(a: &Hold, b: &Hold, sizes_differ: bool) -> bool {
    match (a.mode, b.mode) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Reentrant, Mode::Reentrant) => a.client == b.client,
        (Mode::Slot { of }, Mode::Slot { of: others }) => (of == others || sizes_differ) && a.slot != b.slot,
        _ => false,
    }
}

/// A client that was in the queue before another sent its request is granted the lock first.
fn check_order(holds: &mut [&Hold]) -> Result<(), Violation> {
    holds.sort_by_key(|hold| hold.token);
    // The earliest queue entry among the holds granted later.
    let mut first_queued: Option<&Hold> = None;
    for hold in holds.iter().rev() {
        if let Some(waiter) = first_queued.filter(|waiter| waiter.queued < Some(hold.asked)) {
            return Err(Violation::Overtaken(pair(waiter, hold)));
        }
        if hold.queued.is_some() && first_queued.is_none_or(|known| hold.queued < known.queued) {
            first_queued = Some(hold);
        }
    }
    Ok(())
}

/// The tokens that a resource accepts never fall.
fn check_writes(writes: &[Write]) -> Result<(), Violation> {
    let mut highest: HashMap<&str, u64> = HashMap::new();
    for Write { key, token, .. } in writes.iter().filter(|write| write.accepted) {
        let after = highest.entry(key).or_default();
        if *token < *after {
            return Err(Violation::StaleWrite { key: key.clone(), after: *after, token: *token });
        }
        *after = *token;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(asked: u64, granted: u64, end: u64, token: u64) -> Hold {
        let [asked, granted, end] = [asked, granted, end].map(Moment::from_nanos);
        Hold { key: "k".into(), client: 0, mode: Mode::Exclusive, slot: None, asked, queued: None, granted, token, end }
    }

    fn queued(at: u64, hold: Hold) -> Hold {
        Hold { queued: Some(Moment::from_nanos(at)), ..hold }
    }

    fn verdict(holds: impl IntoIterator<Item = Hold>) -> Result<(), Violation> {
        let history = History::default();
        holds.into_iter().for_each(|hold| history.hold(hold));
        history.check()
    }

    #[test]
    fn consecutive_holds_are_clean() {
        let clean = [hold(1, 2, 3, 1), queued(3, hold(2, 4, 5, 2)), hold(4, 6, 7, 9)];
        assert_eq!(verdict(clean), Ok(()));
    }

    #[test]
    fn a_repeated_token_is_found() {
        let found = verdict([hold(1, 2, 3, 7), hold(4, 5, 6, 8), hold(7, 8, 9, 7)]);
        assert!(matches!(found, Err(Violation::TokenRepeated(_))), "{found:?}");
    }

    #[test]
    fn a_fallen_token_is_found_unless_the_holds_overlapped() {
        let found = verdict([hold(1, 2, 3, 8), hold(4, 5, 6, 7)]);
        assert!(matches!(found, Err(Violation::TokenFell(_))), "{found:?}");
        // The second was requested before the first was received: either order is right.
        assert_eq!(verdict([hold(1, 3, 4, 8), hold(2, 5, 6, 7)]), Ok(()));
    }

    #[test]
    fn two_holders_at_one_moment_are_found() {
        let found = verdict([hold(1, 2, 9, 1), hold(1, 8, 12, 2)]);
        assert!(matches!(found, Err(Violation::TwoHolders(_))), "{found:?}");
    }

    #[test]
    fn a_hold_that_ended_before_its_grant_arrived_overlaps_none() {
        let over = |granted| [hold(1, granted, 5, 1), hold(1, 6, 9, 2)];
        assert_eq!(verdict(over(7)), Ok(()));
        assert_eq!(verdict(over(5)), Ok(()));
        let found = verdict([hold(1, 7, 8, 1), hold(1, 6, 9, 2)]);
        assert!(matches!(found, Err(Violation::TwoHolders(_))), "{found:?}");
    }

    #[test]
    fn only_shared_holds_may_overlap() {
        let as_mode = |mode, hold| Hold { mode, ..hold };
        let shared = |hold| as_mode(Mode::Shared, hold);
        assert_eq!(verdict([shared(hold(1, 2, 9, 1)), shared(hold(1, 3, 8, 2)), hold(3, 9, 10, 3)]), Ok(()));
        let found = verdict([shared(hold(1, 2, 9, 1)), shared(hold(1, 3, 4, 2)), hold(3, 8, 10, 3)]);
        assert!(matches!(found, Err(Violation::TwoHolders(_))), "{found:?}");

        let slot = |slot, hold| Hold { slot: Some(slot), ..as_mode(Mode::Slot { of: 2 }, hold) };
        assert_eq!(verdict([slot(0, hold(1, 2, 9, 1)), slot(1, hold(1, 3, 8, 2)), slot(0, hold(3, 9, 10, 3))]), Ok(()));
        let crowd = verdict([0, 1, 2].map(|number| slot(number, hold(1, 2, 9, u64::from(number)))));
        assert!(matches!(crowd, Err(Violation::TwoHolders(_))), "{crowd:?}");
        let found = verdict([slot(0, hold(1, 2, 9, 1)), slot(0, hold(1, 3, 8, 2))]);
        assert!(matches!(found, Err(Violation::TwoHolders(_))), "{found:?}");
    }

    #[test]
    fn an_owner_may_reenter_with_its_token_past_the_queue() {
        let entry = |client, hold| Hold { mode: Mode::Reentrant, client, ..hold };
        let waiter = queued(3, hold(2, 9, 10, 2));
        assert_eq!(verdict([entry(1, hold(1, 2, 7, 1)), entry(1, hold(4, 5, 8, 1)), waiter]), Ok(()));
        let found = verdict([entry(1, hold(1, 2, 7, 1)), entry(2, hold(4, 5, 8, 1))]);
        assert!(matches!(found, Err(Violation::TwoHolders(_))), "{found:?}");
        let found = verdict([entry(1, hold(1, 2, 3, 1)), entry(2, hold(4, 5, 8, 1))]);
        assert!(matches!(found, Err(Violation::TokenRepeated(_))), "{found:?}");
    }

    #[test]
    fn locks_are_judged_separately() {
        let other = Hold { key: "other".into(), ..hold(1, 3, 8, 1) };
        assert_eq!(verdict([hold(1, 2, 9, 1), other]), Ok(()));
    }

    #[test]
    fn an_overtaken_waiter_is_found() {
        let found = verdict([queued(2, hold(1, 9, 10, 2)), queued(4, hold(3, 5, 6, 1))]);
        assert!(matches!(found, Err(Violation::Overtaken(_))), "{found:?}");
        assert_eq!(
            verdict([queued(4, hold(1, 9, 10, 2)), queued(4, hold(3, 5, 6, 1))]),
            Ok(()),
            "the queue time is unknown"
        );
    }

    #[test]
    fn an_accepted_stale_write_is_found() {
        let history = History::default();
        history.write("k", 2, true);
        history.write("k", 1, false);
        history.write("other", 1, true);
        assert_eq!(history.check(), Ok(()));
        history.write("k", 1, true);
        assert_eq!(history.check(), Err(Violation::StaleWrite { key: "k".into(), after: 2, token: 1 }));
    }
}
