//! The admission rules: which claim may enter a lock, in which mode.
//!
//! Pure functions over modes and owners: no I/O, no clock, no engine's types. An engine that knows all holders and
//! waiters of a lock calls [`admit`]; one that knows only a part of the queue applies the rules that [`admit`] is made
//! of.

use crate::types::mode::{AskedMode, Mode};
use crate::types::owner::OwnerId;
use crate::types::token::FencingToken;

/// A claim, as far as the rules look at it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub(crate) asked: AskedMode,
    pub(crate) owner: &'a OwnerId,
}

/// A holder of the lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupant<'a> {
    /// `None`: the holder is no client of the engine. No claim enters beside it, and no mode disagrees with it.
    pub(crate) claimant: Option<Claimant<'a>>,
    pub(crate) token: FencingToken,
    pub(crate) slot: Option<u32>,
}

/// How a claim enters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Admission {
    /// The semaphore's slot that it takes.
    pub(crate) slot: Option<u32>,
    /// The token of its owner's hold that it re-enters; `None`: it needs a new token.
    pub(crate) reentered: Option<FencingToken>,
}

/// Returns how `claim` enters the lock, or `None` when it has to wait. `inside` are the holders, the first one first;
/// `ahead` the waiters that came before the claim.
///
/// An owner that is inside re-enters past all waiters: they wait for that very owner, so it would wait for itself.
pub(crate) fn admit<'a>(
    claim: Claimant<'_>,
    inside: impl Iterator<Item = Occupant<'a>> + Clone,
    mut ahead: impl Iterator<Item = Mode>,
) -> Option<Admission> {
    if let Some(first) = inside.clone().next().filter(|first| reenters(claim, first)) {
        return Some(Admission { slot: None, reentered: Some(first.token) });
    }
    let mode = claim.asked.mode;
    if !has_room(claim.asked, inside.clone()) || ahead.any(|waiter| waits_behind(mode, waiter)) {
        return None;
    }
    let slot = match mode {
        Mode::Slot { of } => lowest_free_slot(of, inside.filter_map(|occupant| occupant.slot), 0),
        _ => None,
    };
    Some(Admission { slot, reentered: None })
}

/// Whether `claim` and the holder are re-entrant and of one owner.
fn reenters(claim: Claimant<'_>, holder: &Occupant<'_>) -> bool {
    holder
        .claimant
        .is_some_and(|held| [held.asked.mode, claim.asked.mode] == [Mode::Reentrant; 2] && held.owner == claim.owner)
}

/// Whether a claim, of an owner that does not hold the lock, may enter beside the holders.
fn has_room<'a>(asked: AskedMode, inside: impl Iterator<Item = Occupant<'a>>) -> bool {
    let room = room(asked.mode);
    let mut held = 0;
    for occupant in inside {
        held += 1;
        let is_alike = occupant.claimant.is_some_and(|claimant| may_be_beside(asked, claimant.asked));
        if !is_alike || held >= room {
            return false;
        }
    }
    true
}

/// Whether a claim may enter beside a holder at all, if there is room. The sizes of two semaphores may differ: each claim
/// counts the holders by its own.
pub(crate) fn may_be_beside(asked: AskedMode, holder: AskedMode) -> bool {
    match asked.mode {
        Mode::Slot { .. } => asked.agrees_with(holder),
        mode => mode == holder.mode,
    }
}

/// Returns how many claims in `mode`, each of another owner, may hold the lock at once.
pub(crate) fn room(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive | Mode::Reentrant => 1,
        Mode::Shared => usize::MAX,
        Mode::Slot { of } => of as usize,
    }
}

/// Whether a claim in `mode` excludes all other owners.
#[cfg(any(target_os = "linux", test))]
pub(crate) fn is_alone(mode: Mode) -> bool {
    matches!(mode, Mode::Exclusive | Mode::Reentrant)
}

/// Whether a claim in `mode` lets a waiter that came before it have the lock first. Only a reader passes a reader: a
/// run of readers enters together, and one behind a waiting writer waits, so that readers never starve a writer.
pub(crate) fn waits_behind(mode: Mode, ahead: Mode) -> bool {
    [mode, ahead] != [Mode::Shared; 2]
}

/// Returns the lowest of `of` slots that is not `taken`, after leaving the lowest `reserved` free ones to others.
pub(crate) fn lowest_free_slot(of: u32, taken: impl Iterator<Item = u32>, reserved: usize) -> Option<u32> {
    let taken: Vec<u32> = taken.collect();
    (0..of).filter(|slot| !taken.contains(slot)).nth(reserved)
}

/// Returns the mode of the first of `others` with which a claim cannot meet on one lock. The caller's error is
/// [`Mode::disagrees`].
pub(crate) fn disagreement(asked: AskedMode, others: impl IntoIterator<Item = AskedMode>) -> Option<Mode> {
    others.into_iter().find(|other| !asked.agrees_with(*other)).map(|other| other.mode)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const W: Mode = Mode::Exclusive;
    const R: Mode = Mode::Shared;
    const RE: Mode = Mode::Reentrant;
    const S2: Mode = Mode::Slot { of: 2 };

    /// Admits a claim of the owner `us`. A holder is its mode, its owner and its slot; its token is its place from 1
    /// on.
    fn decide(mode: Mode, inside: &[(Option<Mode>, &str, Option<u32>)], ahead: &[Mode]) -> Option<Admission> {
        let owners: Vec<OwnerId> = inside.iter().map(|(_, owner, _)| OwnerId::new(owner).unwrap()).collect();
        let occupants = inside.iter().zip(&owners).zip(1..).map(|((&(mode, _, slot), owner), token)| Occupant {
            claimant: mode.map(|mode| Claimant { asked: mode.into(), owner }),
            token: FencingToken::new(token),
            slot,
        });
        let us = OwnerId::new("us").unwrap();
        admit(Claimant { asked: mode.into(), owner: &us }, occupants, ahead.iter().copied())
    }

    fn may_enter(mode: Mode, inside: &[Mode], ahead: &[Mode]) -> bool {
        let inside: Vec<_> = inside.iter().map(|mode| (Some(*mode), "other", None)).collect();
        decide(mode, &inside, ahead).is_some()
    }

    #[test]
    fn a_free_lock_is_open_to_every_mode() {
        for mode in [W, R, RE, S2] {
            assert!(may_enter(mode, &[], &[]), "{mode}");
        }
    }

    #[test]
    fn only_readers_share_and_permits_of_one_semaphore_up_to_their_number() {
        let cases: [(Mode, &[Mode], bool); 14] = [
            (W, &[W], false),
            (W, &[R], false),
            (W, &[RE], false),
            (R, &[W], false),
            (R, &[RE], false),
            (R, &[R], true),
            (R, &[R, R, R], true),
            (R, &[R, W], false),
            (RE, &[W], false),
            (RE, &[R], false),
            (RE, &[RE], false),
            (S2, &[S2], true),
            (S2, &[S2, S2], false),
            (S2, &[Mode::Slot { of: 3 }], false),
        ];
        for (mode, inside, expected) in cases {
            assert_eq!(may_enter(mode, inside, &[]), expected, "{mode} beside {inside:?}");
        }
    }

    #[test]
    fn a_reader_behind_a_waiting_writer_waits_and_a_run_of_readers_enters_together() {
        let cases: [(Mode, &[Mode], &[Mode], bool); 9] = [
            (R, &[R], &[W], false),
            (R, &[R], &[R, W], false),
            (R, &[R], &[RE], false),
            (R, &[], &[R, R], true),
            (R, &[R], &[R], true),
            (W, &[], &[R], false),
            (W, &[], &[W], false),
            (RE, &[], &[RE], false),
            (S2, &[S2], &[S2], false),
        ];
        for (mode, inside, ahead, expected) in cases {
            assert_eq!(may_enter(mode, inside, ahead), expected, "{mode} beside {inside:?} behind {ahead:?}");
        }
    }

    #[test]
    fn the_owner_inside_re_enters_with_its_token_past_all_waiters_and_no_other_does() {
        let again = Some(Admission { slot: None, reentered: Some(FencingToken::new(1)) });
        assert_eq!(decide(RE, &[(Some(RE), "us", None)], &[]), again);
        assert_eq!(decide(RE, &[(Some(RE), "us", None), (Some(RE), "us", None)], &[W, RE]), again);
        assert_eq!(decide(RE, &[(Some(RE), "other", None)], &[]), None);
        assert_eq!(decide(RE, &[(Some(W), "us", None)], &[]), None, "the holder is not re-entrant");
        assert_eq!(decide(W, &[(Some(RE), "us", None)], &[]), None, "the claim is not re-entrant");
        assert_eq!(decide(RE, &[], &[]), Some(Admission { slot: None, reentered: None }), "nothing to re-enter");
    }

    #[test]
    fn a_permit_takes_the_lowest_free_slot() {
        let mode = Mode::Slot { of: 3 };
        let cases: [(&[u32], Option<u32>); 5] =
            [(&[], Some(0)), (&[0], Some(1)), (&[1], Some(0)), (&[2, 0], Some(1)), (&[0, 1, 2], None)];
        for (taken, expected) in cases {
            let inside: Vec<_> = taken.iter().map(|slot| (Some(mode), "other", Some(*slot))).collect();
            assert_eq!(decide(mode, &inside, &[]).and_then(|entry| entry.slot), expected, "{taken:?}");
        }
        assert_eq!(decide(R, &[(Some(R), "other", None)], &[]).unwrap().slot, None);
    }

    /// A semaphore whose claims resize it: the sizes and slots of its holders.
    fn resized(of: u32, inside: &[(u32, u32)], ahead: &[Mode]) -> Option<u32> {
        let owner = OwnerId::new("o").unwrap();
        let asked = |of| AskedMode { mode: Mode::Slot { of }, resizes: true };
        let occupants = inside.iter().zip(1..).map(|(&(of, slot), token)| Occupant {
            claimant: Some(Claimant { asked: asked(of), owner: &owner }),
            token: FencingToken::new(token),
            slot: Some(slot),
        });
        admit(Claimant { asked: asked(of), owner: &owner }, occupants, ahead.iter().copied())?.slot
    }

    #[test]
    fn each_permit_counts_the_holders_by_its_own_size() {
        assert_eq!(resized(3, &[(3, 0), (3, 1), (3, 2)], &[]), None);
        assert_eq!(resized(4, &[(3, 0), (3, 1), (3, 2)], &[]), Some(3), "it grows beside the old ones");
        assert_eq!(resized(4, &[(3, 0), (3, 1), (3, 2), (4, 3)], &[]), None);
        assert_eq!(resized(3, &[(3, 1), (3, 2), (4, 3)], &[]), None, "three are inside");
        assert_eq!(resized(3, &[(3, 2), (4, 3)], &[]), Some(0));
        assert_eq!(resized(4, &[], &[Mode::Slot { of: 3 }]), None, "it never passes a waiter");
    }

    /// Claims of three sizes come and go at random; the rules alone decide who is inside.
    #[test]
    fn whatever_the_order_of_sizes_no_more_are_inside_than_the_largest_and_all_are_served_in_order() {
        let mut dice = distlock_testkit::Dice::new(34);
        for _ in 0..200 {
            let (mut inside, mut queue, mut served) = (Vec::<(u32, u32)>::new(), VecDeque::new(), 0);
            for number in 0..60_u32 {
                queue.push_back((number, 1 + dice.below(5) as u32));
                if dice.percent(50) && !inside.is_empty() {
                    inside.swap_remove(dice.below(inside.len()));
                }
                while let Some(&(number, of)) = queue.front()
                    && let Some(slot) = resized(of, &inside, &[])
                {
                    assert_eq!(number, served, "in the order of the queue");
                    assert!((inside.len() as u32) < of, "fewer than {of} were inside: {inside:?}");
                    assert!(slot < of && inside.iter().all(|(_, taken)| *taken != slot), "{slot} beside {inside:?}");
                    inside.push((of, slot));
                    queue.pop_front();
                    served += 1;
                }
                let waits = queue.front().is_none_or(|(_, of)| inside.len() >= *of as usize);
                assert!(waits, "the first waits only while its own number is inside: {inside:?}, {queue:?}");
            }
        }
    }

    #[test]
    fn reserved_slots_are_left_to_those_who_came_before() {
        assert_eq!(lowest_free_slot(3, [1].into_iter(), 1), Some(2));
        assert_eq!(lowest_free_slot(3, [1].into_iter(), 2), None);
    }

    #[test]
    fn beside_a_holder_that_is_no_client_no_claim_enters() {
        for mode in [W, R, RE, S2] {
            assert_eq!(decide(mode, &[(None, "us", None)], &[]), None, "{mode}");
        }
    }

    #[test]
    fn a_semaphore_disagrees_with_all_but_itself() {
        let disagreement =
            |mode: Mode, others: &[Mode]| super::disagreement(mode.into(), others.iter().copied().map(AskedMode::from));
        assert_eq!(disagreement(S2, &[S2, S2]), None);
        assert_eq!(disagreement(S2, &[S2, R]), Some(R));
        assert_eq!(disagreement(W, &[R, S2]), Some(S2));
        assert_eq!(disagreement(S2, &[Mode::Slot { of: 3 }]), Some(Mode::Slot { of: 3 }));
        assert_eq!(disagreement(R, &[W, R, RE]), None);
    }

    #[test]
    fn writers_and_owners_have_the_lock_alone() {
        assert_eq!([W, RE, R, S2].map(is_alone), [true, true, false, false]);
        assert_eq!([W, RE, R, S2].map(room), [1, 1, usize::MAX, 2]);
    }
}
