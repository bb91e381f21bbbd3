//! The lean scripts, and the tests in which they race with the full ones.

use distlock_models::{expect_broken, expect_sound};

use super::{
    Budget, Flaw, HANDED_ON, Id, LEASE, NO_FAULTS, NOT_OVERTAKEN, NOT_ROBBED, PAIR, Queue, State, THREE, TOKENS_RISE,
};

impl Queue {
    /// Returns the token; `None` when the full script decides.
    pub(super) fn claim_lean(&self, state: &mut State, id: Id) -> Option<u8> {
        let passes = self.flaw == Flaw::LeanClaimPassesTheQueue;
        if state.server.lock.is_some() || !(passes || state.server.queue.is_empty()) {
            return None;
        }
        state.overtaken |= self.is_awaited(state, id);
        Some(self.set_lock(state, id, LEASE))
    }

    /// Returns false when the full script decides.
    pub(super) fn release_lean(&self, state: &mut State, id: Id) -> bool {
        let Some(lock) = state.server.lock else { return false };
        let is_ours = lock.holder == id || self.flaw == Flaw::LeanReleaseWithoutCompare;
        let is_awaited = lock.is_awaited && self.flaw != Flaw::LeanReleaseIgnoresTheMark;
        if !is_ours || is_awaited {
            return false;
        }
        state.robbed |= lock.holder != id;
        state.left_waiting |= self.is_awaited(state, id);
        state.server.lock = None;
        state.clients[id.client].given_up = id.attempt;
        true
    }

    /// Returns whether another client waits for the lock and lives.
    fn is_awaited(&self, state: &State, id: Id) -> bool {
        let lives = |other: Id| state.clients[other.client].lives() && other.client != id.client;
        state.server.queue.iter().any(|waiter| waiter.alive_until > state.now && lives(waiter.id))
    }
}

const LEAN_PAIR: Queue = Queue { is_lean: true, ..PAIR };
const LEAN_THREE: Queue = Queue { is_lean: true, ..THREE };
/// Three clients, the last of which may come when the lease of the first is over.
const NEWCOMER: Queue =
    Queue { latest_begin: 3, budget: Budget { crashes: 1, ..NO_FAULTS }, horizon: 11, ..LEAN_THREE };

#[test]
fn lean_requests_race_with_waiters_that_die_and_give_up() {
    expect_sound(LEAN_THREE);
}

#[test]
fn late_and_lost_lean_requests_are_safe() {
    expect_sound(LEAN_PAIR);
}

#[test]
fn lean_requests_of_a_second_attempt_are_safe() {
    expect_sound(Queue { attempts: &[2, 1], budget: Budget { stalls: 2, ..NO_FAULTS }, ..LEAN_PAIR });
}

#[test]
fn late_renewals_and_cancels_beside_lean_requests_are_safe() {
    let budget = Budget { stalls: 2, cancels: 1, ..NO_FAULTS };
    expect_sound(Queue { renews: true, budget, ..LEAN_PAIR });
}

#[test]
fn a_lean_claim_after_a_lease_ran_out_overtakes_no_waiter() {
    expect_sound(NEWCOMER);
}

#[test]
fn tokens_rise_over_a_failover_between_lean_requests() {
    expect_sound(Queue { budget: Budget { stalls: 1, failovers: 1, ..NO_FAULTS }, ..LEAN_PAIR });
}

#[test]
fn a_lean_claim_that_passes_the_queue_is_detected() {
    expect_broken(Queue { flaw: Flaw::LeanClaimPassesTheQueue, ..NEWCOMER }, &[NOT_OVERTAKEN]);
}

#[test]
fn a_lean_release_that_ignores_the_mark_is_detected() {
    expect_broken(Queue { flaw: Flaw::LeanReleaseIgnoresTheMark, ..LEAN_PAIR }, &[HANDED_ON]);
}

#[test]
fn a_lean_release_that_does_not_compare_is_detected() {
    expect_broken(Queue { flaw: Flaw::LeanReleaseWithoutCompare, ..LEAN_PAIR }, &[NOT_ROBBED]);
}

#[test]
fn a_place_in_the_queue_without_the_mark_is_detected() {
    expect_broken(Queue { flaw: Flaw::QueuesWithoutMark, ..LEAN_PAIR }, &[HANDED_ON]);
}

#[test]
fn tokens_without_the_clock_over_a_failover_are_detected() {
    let budget = Budget { failovers: 1, ..NO_FAULTS };
    expect_broken(Queue { flaw: Flaw::TokensWithoutClock, budget, ..LEAN_PAIR }, &[TOKENS_RISE]);
}
