//! A job that runs once per tick as a model: the lock, the notes beside it, clients that die at any step, requests that
//! arrive late, twice or never, and replies that are lost. With one node it is any engine with one server, with three it is
//! Redlock, where a note counts when a majority has stored it.
//!
//! That the lock has one holder at a time is judged elsewhere: here a claim is granted when a majority of the nodes is free,
//! and a node is free again only after its holder has died, has released it, or knows that its lease is over.

use std::collections::BTreeSet;

use distlock_models::{TWICE, expect_broken, expect_sound};
use stateright::{Model, Property};

const ONE_SUCCESS: &str = "one run succeeds";
const NONE_AFTER: &str = "nothing runs after a client was told that the tick is done";
const AT_MOST: &str = "no more runs start than allowed";
const IS_DONE: &str = "a tick that a client was told to be done is done on a majority";
const GOES_ON: &str = "a live client can always go on";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A node stores the note of a client that does not hold the lock there.
    NotesForAnyone,
    /// A run starts before its note is stored.
    RunsUncounted,
    /// The notes are read before the lock is claimed, and not again.
    NoLookUnderTheLock,
    /// A done note of a minority is believed as it is.
    NoConfirmation,
}

struct Once {
    flaw: Flaw,
    nodes: usize,
    clients: usize,
    /// How many runs a tick may have.
    most_runs: u8,
    crashes: u8,
    losses: u8,
    failures: u8,
    lost_replies: u8,
}

/// The note of the tick: how many runs were started, and which client's run succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Note {
    starts: u8,
    /// Whose run it is.
    run: Option<usize>,
    done: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Node {
    holder: Option<usize>,
    note: Note,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    /// Reads the notes, of some nodes so far.
    Looks(BTreeSet<(usize, Note)>),
    /// Writes a note, which some nodes have confirmed so far.
    Notes(Note, BTreeSet<usize>),
    Runs(Note),
    /// Its own run has succeeded, and it was told that this is noted.
    Succeeded,
    ToldDone,
    /// Failed, lost its lock, was told that no run is left, or died.
    Over,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    /// Its lease is over, by its own clock.
    lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    wire: BTreeSet<(usize, usize, Note)>,
    claims: u8,
    runs: u8,
    successes: u8,
    told: bool,
    ran_after: bool,
    crashes: u8,
    losses: u8,
    failures: u8,
    lost_replies: u8,
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    Look(usize),
    Claim(usize, Vec<usize>),
    Read(usize, usize),
    Decide(usize),
    Deliver { message: (usize, usize, Note), replies: bool },
    Drop((usize, usize, Note)),
    Resend(usize),
    Noted(usize),
    Succeed(usize),
    Fail(usize),
    Lose(usize),
    Crash(usize),
    Free(usize),
}

impl Once {
    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn send(&self, state: &mut State, client: usize, note: Note) {
        state.wire.extend((0..self.nodes).map(|node| (client, node, note)));
        state.clients[client].phase = Phase::Notes(note, BTreeSet::new());
    }

    /// What a client does that has read a majority.
    fn decide(&self, state: &mut State, client: usize) {
        let Phase::Looks(read) = state.clients[client].phase.clone() else { return };
        let notes: Vec<Note> = read.iter().map(|(_, note)| *note).collect();
        let done = notes.iter().filter(|note| note.done).max().copied();
        let is_confirmed = done.is_some_and(|done| notes.iter().filter(|note| **note == done).count() >= self.quorum());
        let starts = notes.iter().map(|note| note.starts).max().unwrap_or_default();
        match done {
            Some(_) if is_confirmed || self.flaw == Flaw::NoConfirmation => {
                (state.clients[client].phase, state.told) = (Phase::ToldDone, true);
            }
            Some(done) => self.send(state, client, done),
            None if starts >= self.most_runs => state.clients[client].phase = Phase::Over,
            None => {
                let note = Note { starts: starts + 1, run: Some(client), done: false };
                self.send(state, client, note);
                if self.flaw == Flaw::RunsUncounted {
                    self.run(state, client, note);
                }
            }
        }
    }

    fn run(&self, state: &mut State, client: usize, note: Note) {
        state.runs += 1;
        state.ran_after |= state.told;
        state.clients[client].phase = Phase::Runs(note);
    }

    fn deliver(&self, state: &mut State, (client, at, note): (usize, usize, Note), replies: bool) {
        let node = &mut state.nodes[at];
        let is_stored = node.note == note;
        let is_holder = node.holder == Some(client) || self.flaw == Flaw::NotesForAnyone;
        let may_replace = note.done || !node.note.done;
        if is_stored || is_holder && may_replace {
            node.note = note;
            if let (true, Phase::Notes(written, confirmed)) = (replies, &mut state.clients[client].phase)
                && *written == note
            {
                confirmed.insert(at);
            }
        }
    }

    /// A majority has confirmed the note.
    fn noted(&self, state: &mut State, client: usize) {
        let Phase::Notes(note, _) = state.clients[client].phase.clone() else { return };
        match note {
            Note { done: false, .. } if state.clients[client].lost => state.clients[client].phase = Phase::Over,
            Note { done: false, .. } => self.run(state, client, note),
            Note { run, .. } => {
                state.told = true;
                if run == Some(client) {
                    state.successes += 1;
                    state.clients[client].phase = Phase::Succeeded;
                } else {
                    state.clients[client].phase = Phase::ToldDone;
                }
            }
        }
    }

    fn holds(phase: &Phase) -> bool {
        matches!(phase, Phase::Looks(_) | Phase::Notes(..) | Phase::Runs(_))
    }

    /// What a client can do that lives.
    fn steps(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        let Client { phase, lost } = &state.clients[client];
        match phase {
            Phase::Idle => {
                actions.push(Action::Look(client));
                let free: Vec<usize> = (0..self.nodes).filter(|at| state.nodes[*at].holder.is_none()).collect();
                if free.len() >= self.quorum() {
                    actions.push(Action::Claim(client, free.clone()));
                    if free.len() > self.quorum() {
                        actions.push(Action::Claim(client, free[..self.quorum()].to_vec()));
                        actions.push(Action::Claim(client, free[free.len() - self.quorum()..].to_vec()));
                    }
                }
            }
            Phase::Looks(read) => {
                let is_read = |at: &usize| read.iter().any(|(node, _)| node == at);
                actions.extend((0..self.nodes).filter(|at| !is_read(at)).map(|at| Action::Read(client, at)));
                if read.len() >= self.quorum() {
                    actions.push(Action::Decide(client));
                }
            }
            Phase::Notes(note, confirmed) => {
                if confirmed.len() >= self.quorum() {
                    actions.push(Action::Noted(client));
                } else if !lost && !state.wire.iter().any(|(of, _, sent)| *of == client && sent == note) {
                    actions.push(Action::Resend(client));
                }
            }
            Phase::Runs(_) if !lost => {
                actions.push(Action::Succeed(client));
                if state.failures < self.failures {
                    actions.push(Action::Fail(client));
                }
            }
            _ => {}
        }
    }
}

impl Model for Once {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: vec![Node::default(); self.nodes],
            clients: vec![Client::default(); self.clients],
            wire: BTreeSet::new(),
            claims: 0,
            runs: 0,
            successes: 0,
            told: false,
            ran_after: false,
            crashes: 0,
            losses: 0,
            failures: 0,
            lost_replies: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for client in 0..self.clients {
            self.steps(state, client, actions);
            let phase = &state.clients[client].phase;
            if Once::holds(phase) {
                if state.crashes < self.crashes {
                    actions.push(Action::Crash(client));
                }
                if state.losses < self.losses && !state.clients[client].lost {
                    actions.push(Action::Lose(client));
                }
            }
        }
        for message in &state.wire {
            actions.push(Action::Deliver { message: *message, replies: true });
            if state.lost_replies < self.lost_replies {
                actions.push(Action::Deliver { message: *message, replies: false });
                actions.push(Action::Drop(*message));
            }
        }
        for (at, node) in state.nodes.iter().enumerate() {
            let is_over = |client: &Client| client.lost || !Once::holds(&client.phase);
            if node.holder.is_some_and(|holder| is_over(&state.clients[holder])) {
                actions.push(Action::Free(at));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            // Without the lock: a tick that is done is told at once.
            Action::Look(client) => {
                let notes: Vec<Note> = next.nodes.iter().map(|node| node.note).collect();
                let is_done =
                    |note: &&Note| note.done && notes.iter().filter(|same| same == note).count() >= self.quorum();
                notes.iter().find(is_done)?;
                (next.clients[client].phase, next.told) = (Phase::ToldDone, true);
            }
            Action::Claim(client, nodes) => {
                nodes.iter().for_each(|at| next.nodes[*at].holder = Some(client));
                next.claims += 1;
                next.clients[client].phase = Phase::Looks(BTreeSet::new());
                if self.flaw == Flaw::NoLookUnderTheLock {
                    // It knows what it has read before: that nothing was started.
                    let note = Note { starts: 1, run: Some(client), done: false };
                    self.send(&mut next, client, note);
                }
            }
            Action::Read(client, at) => {
                let note = next.nodes[at].note;
                let Phase::Looks(read) = &mut next.clients[client].phase else { return None };
                read.insert((at, note));
            }
            Action::Decide(client) => self.decide(&mut next, client),
            Action::Deliver { message, replies } => {
                next.wire.remove(&message);
                next.lost_replies += u8::from(!replies);
                self.deliver(&mut next, message, replies);
            }
            Action::Drop(message) => {
                next.wire.remove(&message);
                next.lost_replies += 1;
            }
            Action::Resend(client) => {
                let Phase::Notes(note, confirmed) = next.clients[client].phase.clone() else { return None };
                next.wire.extend((0..self.nodes).filter(|at| !confirmed.contains(at)).map(|at| (client, at, note)));
                // To nodes that refuse it, it is sent for ever: a client whose lease is over gives up.
                (next != *state).then_some(())?;
            }
            Action::Noted(client) => self.noted(&mut next, client),
            Action::Succeed(client) => {
                let Phase::Runs(note) = next.clients[client].phase else { return None };
                self.send(&mut next, client, Note { done: true, ..note });
            }
            Action::Fail(client) => {
                next.failures += 1;
                next.clients[client].phase = Phase::Over;
            }
            Action::Lose(client) => (next.losses, next.clients[client].lost) = (next.losses + 1, true),
            Action::Crash(client) => (next.crashes, next.clients[client].phase) = (next.crashes + 1, Phase::Over),
            Action::Free(at) => next.nodes[at].holder = None,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_SUCCESS, |_, state: &State| state.successes <= 1),
            Property::always(NONE_AFTER, |_, state: &State| !state.ran_after),
            Property::always(AT_MOST, |model: &Once, state: &State| state.runs <= model.most_runs),
            Property::always(IS_DONE, |model: &Once, state: &State| {
                !state.told || state.nodes.iter().filter(|node| node.note.done).count() >= model.quorum()
            }),
            // A process that neither died nor failed nor lost its lock learns in the end that the tick is done, if it may be run.
            Property::always(GOES_ON, |model: &Once, state: &State| {
                let waits =
                    |client: &Client| !client.lost && (client.phase == Phase::Idle || Once::holds(&client.phase));
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !state.clients.iter().any(waits)
                    || actions.into_iter().any(|action| model.next_state(state, action).is_some())
            }),
            Property::sometimes(TWICE, |_, state: &State| state.claims >= 2),
        ]
    }
}

const ONE_SERVER: Once = Once {
    flaw: Flaw::None,
    nodes: 1,
    clients: 3,
    most_runs: u8::MAX,
    crashes: 2,
    losses: 1,
    failures: 1,
    lost_replies: 2,
};
const THREE_NODES: Once =
    Once { nodes: 3, clients: 2, crashes: 1, losses: 0, failures: 0, lost_replies: 1, ..ONE_SERVER };
const THREE_NODES_AND_A_LOSS: Once = Once { crashes: 0, losses: 1, ..THREE_NODES };

#[test]
fn a_tick_on_one_server_succeeds_once_whoever_dies() {
    expect_sound(ONE_SERVER);
}

#[test]
fn a_tick_on_a_majority_succeeds_once_whoever_dies() {
    expect_sound(THREE_NODES);
}

#[test]
fn a_tick_on_a_majority_succeeds_once_whoever_loses_its_lock() {
    expect_sound(THREE_NODES_AND_A_LOSS);
}

#[test]
fn at_most_one_run_starts_where_one_is_allowed() {
    expect_sound(Once { most_runs: 1, ..ONE_SERVER });
    expect_sound(Once { most_runs: 1, ..THREE_NODES });
}

#[test]
fn a_note_of_a_client_without_the_lock_is_detected() {
    expect_broken(Once { flaw: Flaw::NotesForAnyone, ..ONE_SERVER }, &[ONE_SUCCESS]);
}

#[test]
fn a_run_that_is_not_counted_is_detected() {
    expect_broken(Once { flaw: Flaw::RunsUncounted, most_runs: 1, ..ONE_SERVER }, &[AT_MOST]);
}

#[test]
fn a_look_before_the_lock_alone_is_detected() {
    expect_broken(Once { flaw: Flaw::NoLookUnderTheLock, most_runs: 1, ..ONE_SERVER }, &[AT_MOST]);
}

#[test]
fn a_note_of_a_minority_that_is_believed_is_detected() {
    expect_broken(Once { flaw: Flaw::NoConfirmation, ..THREE_NODES }, &[IS_DONE]);
}
