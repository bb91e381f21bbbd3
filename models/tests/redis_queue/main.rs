//! The queue of the Redis engine as a model: claim, release with direct handoff and push, cancel, heartbeat, first
//! lease, crash, frozen process, lost and late messages, failover, within small bounds. With `is_lean`, first claims and all
//! releases go to the lean scripts, which race with the full ones.
//!
//! Time is counted in ticks. A tick passes only when all due actions have happened, unless it is paid for from a
//! budget of stalls: then messages stay in flight, polls are missed, processes stand still. So the result about
//! waiting is bounded and holds for every order of events: with this number of faults, no live client still waits at
//! the horizon. For safety, the same runs show that no order of events within the bounds violates it.

mod client;
mod lean;

use distlock_models::{TWICE, expect_broken, expect_sound};
use stateright::{Model, Property};

use crate::client::{Answer, Client, Handed, Phase, Request};

/// Leases and intervals in ticks: of a claim, of a handoff, of a queue place, between a waiter's claims.
const LEASE: u8 = 2;
const FIRST_LEASE: u8 = 1;
const HEARTBEAT: u8 = 3;
const POLL: u8 = 1;
/// The clock of a tick in tokens: more than there are grants in a tick.
const TOKENS_PER_TICK: u8 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A lease that was handed over is counted from the receipt of the message.
    DeadlineFromReceipt,
    /// A message is believed although a later claim got the reply busy.
    BelievesOldMessages,
    /// A release ends the current hold without comparing its owner.
    ReleaseWithoutCompare,
    /// A cancel leaves the queue without checking whether the lock was just handed over.
    CancelKeepsTheLock,
    /// A queued waiter relies on messages alone.
    NoPoll,
    /// A lean claim takes a free lock although clients wait for it.
    LeanClaimPassesTheQueue,
    /// A lean release does not look for the mark that clients wait.
    LeanReleaseIgnoresTheMark,
    /// A lean release ends the current hold without comparing its owner.
    LeanReleaseWithoutCompare,
    /// A waiter takes its place without setting the mark.
    QueuesWithoutMark,
    /// Tokens follow the fence alone, and not the clock.
    TokensWithoutClock,
}

struct Queue {
    flaw: Flaw,
    /// Whether the lean scripts are used.
    is_lean: bool,
    /// How often each client tries.
    attempts: &'static [u8],
    /// The latest start of an attempt.
    latest_begin: u8,
    /// Holders renew once.
    renews: bool,
    budget: Budget,
    /// No live client waits any more at this time.
    horizon: u8,
}

/// The number of allowed faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    /// Ticks that pass before all due actions have happened.
    stalls: u8,
    /// Lost messages.
    losses: u8,
    /// Processes that end, or are frozen for ever.
    crashes: u8,
    /// Waits that are given up.
    cancels: u8,
    /// Promotions of a replica that has nothing yet, not even the fence.
    failovers: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    server: Server,
    clients: Vec<Client>,
    left: Budget,
    /// The highest token that a holder has had.
    highest: u8,
    /// A later holder had a lower token.
    fell: bool,
    /// A client's release ended the hold of another client.
    robbed: bool,
    /// A later grant had a lower token.
    granted_lower: bool,
    /// A client that did not wait was granted the lock before one that did.
    overtaken: bool,
    /// A release freed the lock although a client waited.
    left_waiting: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Server {
    lock: Option<Lock>,
    queue: Vec<Waiter>,
    /// The client that was granted the lock last while others waited.
    handed: Option<usize>,
    fence: u8,
    /// The token of the last grant, of this server or the one before it.
    last_token: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lock {
    holder: Id,
    token: u8,
    ends: u8,
    /// The mark that clients wait.
    is_awaited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Waiter {
    id: Id,
    alive_until: u8,
}

/// One attempt of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Id {
    client: usize,
    attempt: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Begin {
        client: usize,
    },
    Poll {
        client: usize,
    },
    Cancel {
        client: usize,
    },
    Renew {
        client: usize,
    },
    /// Releases a valid hold, or one whose deadline has passed: the keeper ends what may be left of it.
    Release {
        client: usize,
    },
    Serve {
        client: usize,
    },
    Receive {
        client: usize,
        answer: Answer,
    },
    LoseRequest {
        client: usize,
    },
    LoseAnswer {
        client: usize,
        answer: Answer,
    },
    Crash {
        client: usize,
        is_connected: bool,
    },
    /// A promotion takes a tick. All connections break, and what was in them is lost.
    Failover,
    Tick,
}

impl Queue {
    fn serve(&self, state: &mut State, client: usize) {
        match state.clients[client].requests.remove(0) {
            Request::Claim { attempt, sent } => {
                let answer = match self.claim(state, Id { client, attempt }) {
                    Some(token) => Answer::Granted { attempt, sent, token },
                    None => Answer::Busy { attempt, sent, at: state.now },
                };
                state.clients[client].tell(answer);
            }
            Request::Renew { attempt, sent } => {
                let now = state.now;
                let lock = state.server.lock.as_mut().filter(|lock| lock.holder == Id { client, attempt });
                let answer = match lock {
                    Some(lock) => {
                        lock.ends = lock.ends.max(now + LEASE);
                        Answer::Renewed { attempt, sent }
                    }
                    None => Answer::NotOurs { attempt },
                };
                state.clients[client].tell(answer);
            }
            Request::Release { attempt, is_cancel } => self.release(state, Id { client, attempt }, is_cancel),
            Request::LeanClaim { attempt, sent } => {
                let answer = match self.claim_lean(state, Id { client, attempt }) {
                    Some(token) => Answer::Granted { attempt, sent, token },
                    None => Answer::OddClaim { attempt, sent },
                };
                state.clients[client].tell(answer);
            }
            Request::LeanRelease { attempt, is_cancel } => {
                if !self.release_lean(state, Id { client, attempt }) {
                    state.clients[client].tell(Answer::OddRelease { attempt, is_cancel });
                }
            }
        }
    }

    /// Returns the token, or queues the client.
    fn claim(&self, state: &mut State, id: Id) -> Option<u8> {
        let now = state.now;
        if let Some(lock) = state.server.lock.as_mut().filter(|lock| lock.holder == id) {
            // A repeated claim, or the waiter's first news of a handoff.
            lock.ends = lock.ends.max(now + LEASE);
            return Some(lock.token);
        }
        if state.server.lock.is_none() {
            self.drop_silent(state, id.client);
            if self.pass_on(state, Some(id)) != Passed::Handed {
                state.server.queue.retain(|waiter| waiter.id != id);
                state.server.handed = (!state.server.queue.is_empty()).then_some(id.client);
                return Some(self.set_lock(state, id, LEASE));
            }
        }
        let alive_until = now + HEARTBEAT;
        match state.server.queue.iter_mut().find(|waiter| waiter.id == id) {
            Some(waiter) => waiter.alive_until = alive_until,
            None => state.server.queue.push(Waiter { id, alive_until }),
        }
        if let Some(lock) = state.server.lock.as_mut().filter(|_| self.flaw != Flaw::QueuesWithoutMark) {
            lock.is_awaited = true;
        }
        None
    }

    /// Removes the queue places of the process that let the lock expire, unless it is the asker.
    fn drop_silent(&self, state: &mut State, asker: usize) {
        let Some(silent) = state.server.handed.filter(|silent| *silent != asker) else { return };
        let of_it: Vec<Id> = state.server.queue.iter().map(|it| it.id).filter(|id| id.client == silent).collect();
        state.server.queue.retain(|waiter| waiter.id.client != silent);
        of_it.iter().for_each(|id| state.clients[silent].tell(Answer::Retry { attempt: id.attempt }));
    }

    fn set_lock(&self, state: &mut State, holder: Id, lease: u8) -> u8 {
        let clock = if self.flaw == Flaw::TokensWithoutClock { 0 } else { state.now * TOKENS_PER_TICK };
        let token = clock.max(state.server.fence + 1);
        state.granted_lower |= token <= state.server.last_token;
        (state.server.fence, state.server.last_token) = (token, token);
        let is_awaited = !state.server.queue.is_empty();
        state.server.lock = Some(Lock { holder, token, ends: state.now + lease, is_awaited });
        token
    }

    /// Grants the lock, which must be free or the caller's, to the first live waiter.
    fn pass_on(&self, state: &mut State, me: Option<Id>) -> Passed {
        while let Some(first) = state.server.queue.first().copied() {
            if Some(first.id) == me {
                return Passed::Mine;
            }
            state.server.queue.remove(0);
            let is_alive = first.alive_until > state.now;
            if is_alive && state.clients[first.id.client].hears() {
                let token = self.set_lock(state, first.id, FIRST_LEASE);
                let at = state.now;
                state.clients[first.id.client].tell(Answer::Handed { attempt: first.id.attempt, token, at });
                state.server.handed = (!state.server.queue.is_empty()).then_some(first.id.client);
                return Passed::Handed;
            }
        }
        Passed::Nobody
    }

    fn release(&self, state: &mut State, id: Id, is_cancel: bool) {
        let holder = state.server.lock.map(|lock| lock.holder);
        let compares = self.flaw != Flaw::ReleaseWithoutCompare;
        let is_ours = holder == Some(id) && !(is_cancel && self.flaw == Flaw::CancelKeepsTheLock);
        let place = state.server.queue.iter().position(|waiter| waiter.id == id);
        state.server.queue.retain(|waiter| waiter.id != id);
        if is_ours || holder.is_some() && !compares {
            state.robbed |= holder != Some(id);
            self.give_away(state);
        } else if place == Some(0) && holder.is_none() {
            // The client was at the head, so the next waiter is now.
            self.give_away(state);
        }
        state.clients[id.client].given_up = id.attempt;
    }

    fn give_away(&self, state: &mut State) {
        if self.pass_on(state, None) == Passed::Nobody {
            state.server.lock = None;
            state.server.handed = None;
        }
    }

    fn receive(&self, state: &mut State, client: usize, answer: Answer) {
        let now = state.now;
        let it = &mut state.clients[client];
        it.inbox.remove(&answer);
        match answer {
            // The client no longer awaits the reply to an earlier claim.
            Answer::Granted { attempt, sent, token } if it.awaits(attempt, sent) => {
                it.answered = true;
                self.accept(state, client, sent + LEASE, token);
            }
            Answer::Busy { attempt, sent, at } if it.awaits(attempt, sent) => {
                (it.answered, it.asked) = (true, Some((sent, at)));
                if let Some(handed) = it.handed.take() {
                    self.believe(state, client, handed);
                }
            }
            Answer::Handed { attempt, token, at } if it.phase == Phase::Waiting && it.attempt == attempt => {
                let handed = Handed { token, granted: at, received: now };
                if it.answered {
                    self.believe(state, client, handed);
                } else {
                    it.handed = Some(handed);
                }
            }
            Answer::Retry { attempt } if it.attempt == attempt => it.must_claim(now),
            Answer::OddClaim { attempt, sent } if it.awaits(attempt, sent) => it.must_claim(now),
            Answer::OddRelease { attempt, is_cancel } => it.requests.push(Request::Release { attempt, is_cancel }),
            Answer::Renewed { attempt, sent } if it.attempt == attempt => {
                if let Phase::Holding { deadline, .. } = &mut it.phase
                    && now < *deadline
                {
                    *deadline = (*deadline).max(sent + LEASE);
                }
            }
            Answer::NotOurs { attempt } if it.attempt == attempt && it.is_valid(now) => it.phase = Phase::Idle,
            _ => {}
        }
    }

    /// Computes the deadline of a grant that came as a message, on the client's clock.
    fn believe(&self, state: &mut State, client: usize, handed: Handed) {
        let it = &mut state.clients[client];
        let believes = |at| handed.granted >= at || self.flaw == Flaw::BelievesOldMessages;
        let Some((sent, at)) = it.asked.filter(|(_, at)| believes(*at)) else { return it.must_claim(state.now) };
        let start = match self.flaw {
            Flaw::DeadlineFromReceipt => handed.received,
            _ => handed.received.min(sent + handed.granted.saturating_sub(at)),
        };
        self.accept(state, client, start + FIRST_LEASE, handed.token);
    }

    fn accept(&self, state: &mut State, client: usize, deadline: u8, token: u8) {
        let it = &mut state.clients[client];
        if state.now >= deadline {
            // Too late: another claim renews it.
            return it.must_claim(state.now);
        }
        it.phase = Phase::Holding { deadline, renewed: false };
        state.fell |= token <= state.highest;
        state.highest = state.highest.max(token);
    }

    /// Gives up a wait or a hold.
    fn leave(&self, state: &mut State, client: usize, is_cancel: bool) {
        let it = &mut state.clients[client];
        it.phase = Phase::Idle;
        let attempt = it.attempt;
        it.requests.push(match self.is_lean {
            true => Request::LeanRelease { attempt, is_cancel },
            false => Request::Release { attempt, is_cancel },
        });
    }

    fn tick(&self, state: &mut State) {
        if self.someone_is_due(state) {
            state.left.stalls -= 1;
        }
        state.now += 1;
        state.server.lock = state.server.lock.filter(|lock| lock.ends > state.now);
    }

    fn fail_over(&self, state: &mut State) {
        state.left.failovers -= 1;
        state.now += 1;
        state.server = Server { last_token: state.server.last_token, ..Server::default() };
        let now = state.now;
        for client in state.clients.iter_mut().filter(|client| client.lives()) {
            client.requests.clear();
            if client.phase == Phase::Waiting {
                client.must_claim(now);
            }
        }
    }

    fn someone_is_due(&self, state: &State) -> bool {
        // Messages of a dead client arrive too, sooner or later.
        state.clients.iter().any(|client| client.lives() && client.is_due(state.now, self.flaw))
    }

    fn client_actions(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        let (it, left) = (&state.clients[client], &state.left);
        match it.phase {
            Phase::Idle => {
                if it.attempt < self.attempts[client] && state.now <= self.latest_begin {
                    actions.push(Action::Begin { client });
                }
            }
            Phase::Waiting => {
                if it.is_to_poll(state.now, self.flaw) {
                    actions.push(Action::Poll { client });
                }
                if left.cancels > 0 {
                    actions.push(Action::Cancel { client });
                }
            }
            Phase::Holding { renewed, .. } => {
                actions.push(Action::Release { client });
                if self.renews && !renewed && it.is_valid(state.now) {
                    actions.push(Action::Renew { client });
                }
            }
            Phase::Dead { .. } => {}
        }
        if it.lives() && left.crashes > 0 && it.attempt > 0 {
            actions.extend([true, false].map(|is_connected| Action::Crash { client, is_connected }));
        }
        if !it.requests.is_empty() {
            actions.push(Action::Serve { client });
        }
        actions.extend(it.inbox.iter().map(|answer| Action::Receive { client, answer: *answer }));
        if left.losses > 0 {
            if !it.requests.is_empty() {
                actions.push(Action::LoseRequest { client });
            }
            actions.extend(it.inbox.iter().map(|answer| Action::LoseAnswer { client, answer: *answer }));
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Passed {
    Handed,
    Mine,
    Nobody,
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            server: Server::default(),
            clients: vec![Client::default(); self.attempts.len()],
            left: self.budget,
            highest: 0,
            fell: false,
            robbed: false,
            granted_lower: false,
            overtaken: false,
            left_waiting: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        (0..state.clients.len()).for_each(|client| self.client_actions(state, client, actions));
        let is_busy = state.clients.iter().any(|it| matches!(it.phase, Phase::Waiting | Phase::Holding { .. }));
        let is_open = state.now < self.latest_begin || is_busy;
        if is_open && state.now < self.horizon && (state.left.stalls > 0 || !self.someone_is_due(state)) {
            actions.push(Action::Tick);
        }
        if is_open && state.now < self.horizon && state.left.failovers > 0 {
            actions.push(Action::Failover);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = state.now;
        match action {
            Action::Begin { client } => {
                let it = &mut state.clients[client];
                it.attempt += 1;
                it.phase = Phase::Waiting;
                it.claim_first(now, self.is_lean);
            }
            Action::Poll { client } => state.clients[client].claim(now),
            Action::Cancel { client } => {
                state.left.cancels -= 1;
                self.leave(&mut state, client, true);
            }
            Action::Renew { client } => {
                let it = &mut state.clients[client];
                let Phase::Holding { renewed, .. } = &mut it.phase else { return None };
                *renewed = true;
                it.requests.push(Request::Renew { attempt: it.attempt, sent: now });
            }
            Action::Release { client } => self.leave(&mut state, client, false),
            Action::Serve { client } => self.serve(&mut state, client),
            Action::Receive { client, answer } => self.receive(&mut state, client, answer),
            Action::LoseRequest { client } => {
                state.left.losses -= 1;
                state.clients[client].requests.remove(0);
            }
            Action::LoseAnswer { client, answer } => {
                state.left.losses -= 1;
                state.clients[client].inbox.remove(&answer);
            }
            Action::Crash { client, is_connected } => {
                state.left.crashes -= 1;
                let it = &mut state.clients[client];
                it.phase = Phase::Dead { is_connected };
                it.inbox.clear();
            }
            Action::Failover => self.fail_over(&mut state),
            Action::Tick => self.tick(&mut state),
        }
        state.clients.iter_mut().filter(|it| it.phase != Phase::Waiting).for_each(Client::forget);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // A server that has forgotten a lock grants it again, which only the tokens tell apart.
            Property::<Self>::always(ONE_HOLDER, |model, state| {
                let is_forgotten = state.left.failovers < model.budget.failovers;
                is_forgotten || state.clients.iter().filter(|client| client.is_valid(state.now)).count() <= 1
            }),
            Property::<Self>::always(TOKENS_RISE, |model, state| {
                let is_forgotten = state.left.failovers < model.budget.failovers;
                !state.granted_lower && (is_forgotten || !state.fell)
            }),
            Property::<Self>::always(NOT_OVERTAKEN, |_, state| !state.overtaken),
            Property::<Self>::always(HANDED_ON, |_, state| !state.left_waiting),
            Property::<Self>::always(NOT_ROBBED, |_, state| !state.robbed),
            Property::<Self>::always(FREE_AT_ONCE, |_, state| {
                let holder = state.server.lock.map(|lock| lock.holder);
                holder.is_none_or(|id| state.clients[id.client].given_up < id.attempt)
            }),
            Property::<Self>::always(SERVED, |model, state| {
                state.now < model.horizon || state.clients.iter().all(|client| client.phase != Phase::Waiting)
            }),
            Property::<Self>::sometimes(TWICE, |_, state| state.highest >= 2),
        ]
    }
}

const ONE_HOLDER: &str = "one holder at a time";
const TOKENS_RISE: &str = "tokens rise";
const NOT_OVERTAKEN: &str = "no newcomer is granted before a live waiter";
const HANDED_ON: &str = "a release hands the lock on while a client waits";
const NOT_ROBBED: &str = "a release never ends the hold of another client";
const FREE_AT_ONCE: &str = "a cancelled attempt never keeps the lock";
const SERVED: &str = "every live waiter is granted before the horizon";

const NO_FAULTS: Budget = Budget { stalls: 0, losses: 0, crashes: 0, cancels: 0, failovers: 0 };
/// Two clients on a bad network.
const PAIR: Queue = Queue {
    flaw: Flaw::None,
    is_lean: false,
    attempts: &[1, 1],
    latest_begin: 1,
    renews: false,
    budget: Budget { stalls: 2, losses: 1, ..NO_FAULTS },
    horizon: 10,
};
/// Three clients: one dies and one gives up.
const THREE: Queue = Queue {
    flaw: Flaw::None,
    is_lean: false,
    attempts: &[1, 1, 1],
    latest_begin: 0,
    renews: false,
    budget: Budget { crashes: 1, cancels: 1, ..NO_FAULTS },
    horizon: 9,
};

#[test]
fn clients_are_served_when_one_dies_and_one_gives_up() {
    expect_sound(THREE);
}

#[test]
fn late_and_lost_messages_are_safe() {
    expect_sound(PAIR);
}

#[test]
fn late_messages_of_an_earlier_attempt_are_safe() {
    expect_sound(Queue { attempts: &[2, 1], budget: Budget { stalls: 2, ..NO_FAULTS }, ..PAIR });
}

#[test]
fn late_renewals_and_cancels_are_safe() {
    let budget = Budget { stalls: 2, cancels: 1, ..NO_FAULTS };
    expect_sound(Queue { renews: true, budget, ..PAIR });
}

#[test]
fn a_crash_on_a_bad_network_is_safe() {
    expect_sound(Queue { budget: Budget { stalls: 1, losses: 1, crashes: 1, ..NO_FAULTS }, ..PAIR });
}

#[test]
fn a_deadline_from_the_receipt_of_the_message_is_detected() {
    expect_broken(Queue { flaw: Flaw::DeadlineFromReceipt, ..PAIR }, &[ONE_HOLDER]);
}

#[test]
fn belief_in_a_message_older_than_the_last_reply_is_detected() {
    expect_broken(Queue { flaw: Flaw::BelievesOldMessages, ..PAIR }, &[ONE_HOLDER]);
}

#[test]
fn a_release_that_does_not_compare_is_detected() {
    expect_broken(Queue { flaw: Flaw::ReleaseWithoutCompare, ..PAIR }, &[NOT_ROBBED]);
}

#[test]
fn a_cancel_that_keeps_a_handed_over_lock_is_detected() {
    expect_broken(Queue { flaw: Flaw::CancelKeepsTheLock, ..THREE }, &[FREE_AT_ONCE]);
}

#[test]
fn a_lost_message_without_a_poll_behind_it_is_detected() {
    expect_broken(Queue { flaw: Flaw::NoPoll, ..PAIR }, &[SERVED]);
}
