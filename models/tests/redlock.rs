//! The Redlock protocol as a model: every order of messages, pauses, losses, lapses and memory loss within small
//! bounds.
//!
//! The engine's protocol is sound. Other Redlock protocols, and this one without its quarantine, are not, and the
//! checker must find the violations.

use std::collections::BTreeSet;

use distlock_models::{TWICE, expect_broken, expect_sound};
use stateright::{Model, Property};

#[path = "redlock/healing.rs"]
mod healing;

use healing::{Healing, Said};

const NODES: usize = 3;
const QUORUM: usize = 2;
const CLIENTS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// A node votes only for ballots above all earlier ones.
    Ballots,
    /// A node counts its grants; the highest count of a majority is the token.
    Counters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amnesia {
    Never,
    /// A node loses its data once and continues normally.
    Unnoticed,
    /// A node loses its data once, does not vote until older leases have ended, and then requires ballots above any
    /// token that its clock has seen.
    Quarantined,
}

/// Where the release of a hold leaves a node's ballot as it is, because no request of the hold can come there later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeanRelease {
    /// On nodes whose vote the holder knows, if the hold was never renewed.
    WhereVoted,
    /// Also after a renewal.
    WhereRenewed,
    /// Also on nodes that the claim may not have reached yet.
    Everywhere,
}

struct Redlock {
    protocol: Protocol,
    lean_release: LeanRelease,
    amnesia: Amnesia,
    /// How often nodes lose their data.
    forgets: u8,
    /// How often each client tries.
    attempts: [u8; CLIENTS],
    /// The possible values of each client's clock; ballots that nodes report may exceed them.
    clocks: [&'static [u8]; CLIENTS],
    /// Which holders renew, once, and restore the lock on a node that lacks it.
    renews: [bool; CLIENTS],
    healing: Healing,
    /// The first client already holds the lock, on a bare majority or on all nodes.
    is_held: bool,
    /// An operator force-releases the hold of the first client, node by node.
    forces: bool,
    /// Looks for a restored node, to show that restoring happens.
    looks_for_healing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// Sorted: nodes are interchangeable.
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    granted: BTreeSet<u8>,
    /// Two grants had the same token.
    repeated: bool,
    /// A grant that completed before another began has the higher token.
    fell: bool,
    forgotten: u8,
    /// A lock was restored on a node that had already executed its release.
    revived: bool,
    /// A lock was restored on a node whose last ballot was higher.
    healed: bool,
    /// The ballot of the force-released hold.
    forced: Option<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    /// The last ballot, or the counter.
    ballot: u8,
    lock: Option<(usize, u8)>,
    quarantined: bool,
    /// Messages to it.
    pending: BTreeSet<Message>,
    /// The clients that have its vote for their current ballot.
    voted: [bool; CLIENTS],
    /// Its reply to the renewal of each client.
    said: [Option<Said>; CLIENTS],
    /// The last hold of each client that was released here.
    released: [u8; CLIENTS],
    /// Whether the hold was force-released here.
    forced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Claim {
        client: usize,
        ballot: u8,
    },
    Renew {
        client: usize,
        ballot: u8,
    },
    /// Requests to restore the lock by the higher ballot that the node reported.
    Heal {
        client: usize,
        ballot: u8,
        bar: u8,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    attempts: u8,
    /// The highest token granted when its attempt began.
    floor: u8,
    /// The highest ballot it has seen.
    seen: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    /// With the highest number that came with a vote.
    Claiming {
        ballot: u8,
        highest: u8,
    },
    Holding {
        ballot: u8,
        renewed: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Begin {
        client: usize,
        clock: u8,
    },
    Deliver {
        node: usize,
        message: Message,
    },
    Accept {
        client: usize,
    },
    /// Cancels a claim or releases a hold. The release reaches only the nodes of `reached`: a later one has the effect
    /// of an expired lease, and raises a ballot, which only takes votes away.
    Release {
        client: usize,
        reached: u8,
    },
    Renew {
        client: usize,
    },
    /// The holder has a majority and knows that the node lacks its lock.
    Heal {
        client: usize,
        node: usize,
    },
    /// The forced release reaches a node.
    Force {
        node: usize,
    },
    /// The client dies, or its deadline passes: it stops believing and sends nothing.
    Lapse {
        client: usize,
    },
    /// A lease ends on a node, never before its holder's deadline: this is the assumption about the clocks' rates.
    Expire {
        node: usize,
    },
    Forget {
        node: usize,
    },
    /// Every claim and every lease that the node voted for before its data loss has ended.
    Return {
        node: usize,
    },
}

impl State {
    /// Returns whether the client relies on this ballot. A grant that comes when too little of the lease is left is
    /// refused, so that no lease ends between a vote and the deadline.
    fn counts_on(&self, client: usize, ballot: u8) -> bool {
        match self.clients[client].phase {
            Phase::Idle => false,
            Phase::Claiming { ballot: own, .. } | Phase::Holding { ballot: own, .. } => own == ballot,
        }
    }

    fn holders(&self) -> usize {
        self.clients.iter().filter(|client| matches!(client.phase, Phase::Holding { .. })).count()
    }

    fn send(&mut self, message: Message) {
        for node in &mut self.nodes {
            node.pending.insert(message);
        }
    }

    fn end(&mut self, client: usize) {
        self.clients[client].phase = Phase::Idle;
        self.nodes.iter_mut().for_each(|node| (node.voted[client], node.said[client]) = (false, None));
    }

    fn is_holding(&self, client: usize, ballot: u8) -> bool {
        matches!(self.clients[client].phase, Phase::Holding { ballot: own, .. } if own == ballot)
    }

    fn keepers(&self, client: usize, ballot: u8) -> usize {
        self.nodes.iter().filter(|node| node.lock == Some((client, ballot))).count()
    }

    fn renewals(&self, client: usize) -> usize {
        self.nodes.iter().filter(|node| node.said[client] == Some(Said::Renewed)).count()
    }
}

impl Redlock {
    fn deliver(&self, state: &mut State, node: usize, message: Message) {
        state.nodes[node].pending.remove(&message);
        match message {
            Message::Claim { client, ballot } => self.vote(state, client, ballot, node),
            Message::Renew { client, ballot } => {
                let it = &mut state.nodes[node];
                if it.lock.is_none() && it.ballot <= ballot {
                    self.set_again(state, client, ballot, node);
                }
                self.say(state, client, ballot, node);
            }
            Message::Heal { client, ballot, bar } => {
                let it = &state.nodes[node];
                let is_last = it.ballot == bar || self.healing == Healing::Blindly;
                let is_ended = it.forced && state.forced == Some(ballot) && self.healing != Healing::PastForce;
                if it.lock.is_none() && is_last && !is_ended {
                    state.healed |= it.ballot > ballot;
                    self.set_again(state, client, ballot, node);
                }
            }
        }
    }

    fn vote(&self, state: &mut State, client: usize, ballot: u8, node: usize) {
        let it = &mut state.nodes[node];
        let is_mine = it.lock.is_some_and(|(holder, held)| holder == client && held == ballot);
        let is_free = it.lock.is_none() && !it.quarantined;
        let votes = match self.protocol {
            Protocol::Ballots => is_free && it.ballot < ballot || is_mine && it.ballot == ballot,
            Protocol::Counters => is_free,
        };
        if votes {
            state.revived |= it.released[client] >= ballot && self.protocol == Protocol::Ballots;
            it.lock = Some((client, ballot));
            it.ballot = if self.protocol == Protocol::Ballots { ballot } else { it.ballot + 1 };
        }
        let told = it.ballot;
        let asker = &mut state.clients[client];
        // A reply to a client that has given up is lost.
        if let Phase::Claiming { ballot: asked, highest } = &mut asker.phase
            && *asked == ballot
        {
            if votes {
                it.voted[client] = true;
                *highest = (*highest).max(told);
            } else if self.protocol == Protocol::Ballots {
                asker.seen = asker.seen.max(told);
            }
        }
    }

    fn begin(&self, state: &mut State, client: usize, clock: u8) {
        let floor = state.granted.last().copied().unwrap_or(0);
        let it = &mut state.clients[client];
        it.attempts += 1;
        it.floor = floor;
        // Counters have no ballots: the number only distinguishes attempts.
        let ballot = if self.protocol == Protocol::Ballots { clock.max(it.seen + 1) } else { it.attempts };
        it.seen = it.seen.max(ballot);
        it.phase = Phase::Claiming { ballot, highest: 0 };
        state.send(Message::Claim { client, ballot });
    }

    fn accept(&self, state: &mut State, client: usize) {
        let Phase::Claiming { ballot, highest } = state.clients[client].phase else { return };
        let token = if self.protocol == Protocol::Ballots { ballot } else { highest };
        state.repeated |= !state.granted.insert(token);
        state.fell |= token <= state.clients[client].floor;
        state.clients[client].phase = Phase::Holding { ballot, renewed: false };
    }

    fn release(&self, state: &mut State, client: usize, reached: u8) {
        let (ballot, was_granted, was_renewed) = match state.clients[client].phase {
            Phase::Idle => return,
            Phase::Claiming { ballot, .. } => (ballot, false, false),
            Phase::Holding { ballot, renewed } => (ballot, true, renewed),
        };
        let voted = state.nodes.each_ref().map(|node| node.voted[client]);
        state.end(client);
        for (at, node) in state.nodes.iter_mut().enumerate().filter(|(at, _)| reached & (1 << at) != 0) {
            if was_granted && self.protocol == Protocol::Ballots {
                node.released[client] = ballot;
                let is_lean = match self.lean_release {
                    LeanRelease::WhereVoted => voted[at] && !was_renewed,
                    LeanRelease::WhereRenewed => voted[at],
                    LeanRelease::Everywhere => !was_renewed,
                };
                let keeps = node.lock == Some((client, ballot));
                match is_lean && (keeps || self.lean_release == LeanRelease::Everywhere) {
                    true if keeps => node.lock = None,
                    true => {}
                    false => self.end_hold(node, client, ballot),
                }
                continue;
            }
            if self.protocol == Protocol::Ballots && node.ballot <= ballot {
                node.ballot = ballot + 1;
            }
            if node.lock == Some((client, ballot)) {
                node.lock = None;
            }
        }
    }

    fn client_actions(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        let it = &state.clients[client];
        match it.phase {
            Phase::Idle => {
                let clocks = if self.protocol == Protocol::Ballots { self.clocks[client] } else { &[1] };
                if it.attempts < self.attempts[client] {
                    actions.extend(clocks.iter().map(|clock| Action::Begin { client, clock: *clock }));
                }
                return;
            }
            Phase::Claiming { .. } => {
                if state.nodes.iter().filter(|node| node.voted[client]).count() >= QUORUM {
                    actions.push(Action::Accept { client });
                }
            }
            Phase::Holding { renewed, .. } => {
                if !renewed && self.renews[client] {
                    actions.push(Action::Renew { client });
                }
                let asks = ![Healing::ByBallot, Healing::Unasked].contains(&self.healing);
                if asks && state.renewals(client) >= QUORUM {
                    let lacks = |node: &Node| matches!(node.said[client], Some(Said::Passed(_)));
                    let lacking = state.nodes.iter().enumerate().filter(|(_, node)| lacks(node));
                    actions.extend(lacking.map(|(node, _)| Action::Heal { client, node }));
                }
                actions.push(Action::Lapse { client });
            }
        }
        // One node or all nodes: the cases in between follow from expired leases.
        actions.extend([0b001, 0b010, 0b100, 0b111].map(|reached| Action::Release { client, reached }));
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let start = State {
            nodes: Default::default(),
            clients: Default::default(),
            granted: BTreeSet::new(),
            repeated: false,
            fell: false,
            forgotten: 0,
            revived: false,
            healed: false,
            forced: None,
        };
        if !self.is_held {
            return vec![start];
        }
        let held = [QUORUM, NODES].map(|votes| {
            let mut state = start.clone();
            self.begin(&mut state, 0, 1);
            let message = Message::Claim { client: 0, ballot: 1 };
            (0..votes).for_each(|node| self.deliver(&mut state, node, message));
            self.accept(&mut state, 0);
            state.nodes.sort_unstable();
            state
        });
        held.to_vec()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        (0..CLIENTS).for_each(|client| self.client_actions(state, client, actions));
        for (node, it) in state.nodes.iter().enumerate() {
            actions.extend(it.pending.iter().map(|message| Action::Deliver { node, message: *message }));
            if it.lock.is_some_and(|(client, ballot)| !state.counts_on(client, ballot)) {
                actions.push(Action::Expire { node });
            }
            let is_forced = state.forced.is_some() || matches!(state.clients[0].phase, Phase::Holding { .. });
            if self.forces && is_forced && !it.forced {
                actions.push(Action::Force { node });
            }
            if self.amnesia != Amnesia::Never && state.forgotten < self.forgets {
                actions.push(Action::Forget { node });
            }
            if it.quarantined && it.voted == [false; CLIENTS] {
                actions.push(Action::Return { node });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin { client, clock } => self.begin(&mut state, client, clock),
            Action::Deliver { node, message } => self.deliver(&mut state, node, message),
            Action::Accept { client } => self.accept(&mut state, client),
            Action::Release { client, reached } => self.release(&mut state, client, reached),
            Action::Renew { client } => {
                let Phase::Holding { ballot, renewed } = &mut state.clients[client].phase else { return None };
                *renewed = true;
                let ballot = *ballot;
                state.send(Message::Renew { client, ballot });
            }
            Action::Heal { client, node } => {
                let Phase::Holding { ballot, .. } = state.clients[client].phase else { return None };
                let it = &mut state.nodes[node];
                let Some(Said::Passed(bar)) = it.said[client].take() else { return None };
                it.pending.insert(Message::Heal { client, ballot, bar });
            }
            Action::Force { node } => self.force(&mut state, node),
            Action::Lapse { client } => state.end(client),
            Action::Expire { node } => state.nodes[node].lock = None,
            Action::Forget { node } => {
                let it = &mut state.nodes[node];
                (it.ballot, it.lock, it.quarantined) = (0, None, self.amnesia == Amnesia::Quarantined);
                it.released = [0; CLIENTS];
                // The holder asks over the connection on which it got the ballot, and a restart closes that
                // connection. A flush does not: if ballots then start again and reach the same number, a released lock
                // exists for another lease.
                it.pending.retain(|message| !matches!(message, Message::Heal { .. }));
                it.said = [None; CLIENTS];
                state.forgotten += 1;
            }
            Action::Return { node } => {
                // Its clock is later than every token so far: this is the only assumption about clocks here.
                let latest = state.granted.last().copied().unwrap_or(0);
                let it = &mut state.nodes[node];
                it.quarantined = false;
                it.ballot = it.ballot.max(latest);
            }
        }
        state.nodes.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = healing::properties();
        properties.extend([
            Property::<Self>::always("no two grants share a token", |_, state| !state.repeated),
            Property::<Self>::always("tokens rise", |_, state| !state.fell),
            Property::<Self>::always("one holder at a time", |_, state| state.holders() <= 1),
            Property::<Self>::sometimes(TWICE, |_, state| state.granted.len() >= 2),
        ]);
        properties
    }
}

const ENGINE: Redlock = Redlock {
    protocol: Protocol::Ballots,
    lean_release: LeanRelease::WhereVoted,
    amnesia: Amnesia::Never,
    forgets: 1,
    attempts: [2, 1],
    clocks: [&[1, 2], &[1, 2]],
    renews: [false, false],
    healing: Healing::ByBar,
    is_held: false,
    forces: false,
    looks_for_healing: false,
};
#[test]
fn the_ballots_of_the_engine_are_sound() {
    expect_sound(ENGINE);
}

#[test]
fn late_healing_renewals_are_safe() {
    expect_sound(Redlock { attempts: [1, 1], renews: [true, true], ..ENGINE });
}

#[test]
fn a_data_loss_with_quarantine_is_safe() {
    expect_sound(Redlock { amnesia: Amnesia::Quarantined, attempts: [1, 1], ..ENGINE });
}

#[test]
fn a_data_loss_without_quarantine_is_detected() {
    let forgetful = Redlock { amnesia: Amnesia::Unnoticed, attempts: [1, 1], ..ENGINE };
    expect_broken(forgetful, &["one holder at a time", "tokens rise"]);
}

#[test]
fn tokens_from_node_counters_are_detected() {
    expect_broken(Redlock { protocol: Protocol::Counters, ..ENGINE }, &["tokens rise"]);
}

#[test]
fn a_release_without_a_tombstone_after_a_renewal_is_detected() {
    let forgetful =
        Redlock { lean_release: LeanRelease::WhereRenewed, attempts: [1, 1], renews: [true, false], ..ENGINE };
    expect_broken(forgetful, &[healing::STAYS_RELEASED]);
}

#[test]
fn a_release_without_a_tombstone_before_its_claim_is_detected() {
    expect_broken(Redlock { lean_release: LeanRelease::Everywhere, ..ENGINE }, &[healing::STAYS_RELEASED]);
}
