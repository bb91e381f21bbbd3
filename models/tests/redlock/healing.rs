//! Holders that restore a lock on nodes that lack it, while contenders come and go.

use distlock_models::{expect_broken, expect_sound};
use stateright::Property;

use crate::{Amnesia, CLIENTS, ENGINE, Message, Node, Phase, Protocol, QUORUM, Redlock, State};

const HEALS: &str = "the next renewal of a holder that has a majority heals every node";
pub(super) const STAYS_RELEASED: &str = "a hold released on a node is not restored there";
const KEEPS_LAST: &str = "a hold kept by a majority is the one granted last";
const STAYS_ENDED: &str = "a hold force-released on a majority is not kept by a majority again";
const NONE_HEALED: &str = "no node with a higher ballot is healed";

/// When a renewal restores a lock on a node that lacks it. A node that knows of no higher ballot always restores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Healing {
    /// In no other case.
    ByBallot,
    /// Also by the higher ballot that the node reported, if a majority has renewed the lock in that round, its holder
    /// has not begun to release it, that ballot is still the last one, and the hold was not force-released there.
    ByBar,
    /// As soon as the node has reported it: the holder may have no majority, or have released the lock.
    Unasked,
    /// Without comparing the last ballot.
    Blindly,
    /// By the bar, but a release does not raise a ballot that is higher than its own.
    PastReleases,
    /// By the bar, also where the hold was force-released.
    PastForce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Said {
    Renewed,
    /// The lock is missing, and this higher ballot is the last.
    Passed(u8),
}

pub(super) fn properties() -> Vec<Property<Redlock>> {
    vec![
        Property::<Redlock>::always(HEALS, |model, state| model.heals_all(state)),
        Property::<Redlock>::always(STAYS_RELEASED, |_, state| !state.revived),
        Property::<Redlock>::always(KEEPS_LAST, |model, state| model.keeps_last(state)),
        Property::<Redlock>::always(STAYS_ENDED, |_, state| {
            let is_ended = state.nodes.iter().filter(|node| node.forced).count() >= QUORUM;
            !is_ended || state.forced.is_none_or(|ballot| state.keepers(0, ballot) < QUORUM)
        }),
        Property::<Redlock>::always(NONE_HEALED, |model, state| !model.looks_for_healing || !state.healed),
    ]
}

impl Redlock {
    pub(super) fn set_again(&self, state: &mut State, client: usize, ballot: u8, node: usize) {
        let is_held = state.is_holding(client, ballot);
        let it = &mut state.nodes[node];
        it.lock = Some((client, ballot));
        it.ballot = it.ballot.max(ballot);
        // A quarantine must wait for this lease, as if the node had voted for it.
        it.voted[client] |= is_held;
        state.revived |= it.released[client] >= ballot;
    }

    /// A node's reply to a renewal. A reply to a former holder is lost.
    pub(super) fn say(&self, state: &mut State, client: usize, ballot: u8, node: usize) {
        let is_held = state.is_holding(client, ballot);
        let it = &mut state.nodes[node];
        let said = match it.lock {
            Some(lock) if lock == (client, ballot) => Some(Said::Renewed),
            None => Some(Said::Passed(it.ballot)),
            Some(_) => None,
        };
        if let (Some(Said::Passed(bar)), Healing::Unasked) = (said, self.healing) {
            it.pending.insert(Message::Heal { client, ballot, bar });
        } else if is_held {
            it.said[client] = said;
        }
    }

    /// Returns whether the next renewal of a holder restores its lock on a node, if nothing comes in between.
    pub(super) fn heals(&self, state: &State, client: usize, ballot: u8, node: usize) -> bool {
        let mut state = state.clone();
        self.deliver(&mut state, node, Message::Renew { client, ballot });
        if let Some(Said::Passed(bar)) = state.nodes[node].said[client]
            && self.healing != Healing::ByBallot
        {
            self.deliver(&mut state, node, Message::Heal { client, ballot, bar });
        }
        state.nodes[node].lock == Some((client, ballot))
    }

    /// A holder with a majority can restore its lock on every node.
    pub(super) fn heals_all(&self, state: &State) -> bool {
        state.clients.iter().enumerate().all(|(client, it)| {
            let Phase::Holding { ballot, .. } = it.phase else { return true };
            let is_lacking = |node: &Node| node.lock.is_none() && !node.forced;
            let mut lacking = state.nodes.iter().enumerate().filter(|(_, node)| is_lacking(node));
            state.keepers(client, ballot) < QUORUM || lacking.all(|(node, _)| self.heals(state, client, ballot, node))
        })
    }

    /// A granted hold that a majority keeps is the one granted last: a renewal by a majority proves that.
    pub(super) fn keeps_last(&self, state: &State) -> bool {
        let is_stale = |client: usize, ballot: &u8| {
            state.keepers(client, *ballot) >= QUORUM && state.granted.last().is_some_and(|last| last > ballot)
        };
        // Counters have no ballots; and after a data loss only the holder's deadline counts.
        let is_exempt = self.protocol == Protocol::Counters || state.forgotten > 0;
        is_exempt || (0..CLIENTS).all(|client| !state.granted.iter().any(|ballot| is_stale(client, ballot)))
    }

    pub(super) fn force(&self, state: &mut State, node: usize) {
        if let (None, Phase::Holding { ballot, .. }) = (state.forced, &state.clients[0].phase) {
            state.forced = Some(*ballot);
        }
        let Some(ballot) = state.forced else { return };
        state.nodes[node].forced = true;
        self.end_hold(&mut state.nodes[node], 0, ballot);
    }

    /// The end of a hold reaches a node.
    pub(super) fn end_hold(&self, node: &mut Node, client: usize, ballot: u8) {
        if node.ballot <= ballot {
            node.ballot = ballot + 1;
        } else if self.healing != Healing::PastReleases {
            node.ballot += 1;
        }
        if node.lock == Some((client, ballot)) {
            node.lock = None;
        }
    }
}

/// One client that renews, and a contender that comes and goes.
const CONTENDED: Redlock = Redlock { attempts: [1, 1], renews: [true, false], ..ENGINE };

#[test]
fn healing_past_two_contenders_is_safe() {
    expect_sound(Redlock { attempts: [1, 2], is_held: true, clocks: [&[1], &[2]], ..CONTENDED });
}

#[test]
fn healing_after_a_data_loss_is_safe() {
    expect_sound(Redlock { amnesia: Amnesia::Quarantined, ..CONTENDED });
}

#[test]
fn a_hold_force_released_during_healing_stays_ended() {
    expect_sound(Redlock { forces: true, ..CONTENDED });
}

#[test]
fn nodes_are_healed_after_a_data_loss_and_past_contenders() {
    expect_broken(Redlock { looks_for_healing: true, ..CONTENDED }, &[NONE_HEALED]);
    let forgetful = Redlock { amnesia: Amnesia::Quarantined, looks_for_healing: true, ..CONTENDED };
    expect_broken(forgetful, &[NONE_HEALED]);
}

#[test]
fn nodes_that_heal_only_below_their_last_ballot_are_detected() {
    expect_broken(Redlock { healing: Healing::ByBallot, ..CONTENDED }, &[HEALS]);
}

#[test]
fn healing_without_a_majority_or_after_the_release_is_detected() {
    expect_broken(Redlock { healing: Healing::Unasked, ..CONTENDED }, &[STAYS_RELEASED, KEEPS_LAST]);
}

#[test]
fn healing_past_any_later_ballot_is_detected() {
    expect_broken(Redlock { healing: Healing::Blindly, ..CONTENDED }, &[STAYS_RELEASED]);
}

#[test]
fn a_release_that_does_not_raise_higher_ballots_is_detected() {
    expect_broken(Redlock { healing: Healing::PastReleases, ..CONTENDED }, &[STAYS_RELEASED]);
}

#[test]
fn healing_a_force_released_hold_is_detected() {
    expect_broken(Redlock { healing: Healing::PastForce, forces: true, ..CONTENDED }, &[STAYS_ENDED]);
}
