//! The queue of the etcd engine as a model: keys in order of creation, leases that expire, a lease that etcd revokes
//! early, watches, the final check, and handover within one client.
//!
//! Messages may take any time and arrive in any order, because requests use several connections. The model checks
//! safety only, not progress: no step is ever forced.

use std::collections::BTreeSet;

use distlock_models::{TWICE, expect_broken, expect_sound};
use stateright::{Model, Property};

/// The client of each place. A place is one key name, used for one attempt after the other.
const CLIENT_OF: [usize; 3] = [0, 0, 1];
const CLIENTS: usize = 2;
/// The initial lease of each client, in ticks.
const LEASE: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A waiter takes the lock as soon as it sees the deletion of its predecessor's key.
    NoLook,
    /// The final check looks for a predecessor only, and not for the waiter's own key.
    NoFinalCheck,
    /// A release deletes the key by name, without comparing its create revision.
    ReleaseByName,
    /// The lease is counted from the receipt of the keepalive reply.
    DeadlineFromReceipt,
    /// The next waiter of the same client has the lock as soon as the release is sent.
    HandsOnAtOnce,
    /// A holder does not watch its own key.
    NoOwnWatch,
}

struct Etcd {
    flaw: Flaw,
    /// How often each place is used.
    attempts: [u8; CLIENT_OF.len()],
    /// How often each client renews its lease.
    keepalives: [u8; CLIENTS],
    /// How many leases etcd revokes before they expire.
    revocations: u8,
    /// How many releases are sent twice.
    repeats: u8,
    horizon: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    revision: u8,
    /// In order of creation.
    keys: Vec<Mark>,
    /// When each client's lease ends on the server; `None` after its end.
    leases: [Option<u8>; CLIENTS],
    /// The deadline of each client.
    deadlines: [u8; CLIENTS],
    places: [Place; CLIENT_OF.len()],
    wire: BTreeSet<Message>,
    keepalives: [u8; CLIENTS],
    revocations: u8,
    repeats: u8,
    /// The keys of revoked leases.
    revoked: BTreeSet<u8>,
    /// The highest token that a holder has had.
    highest: u8,
    fell: bool,
    robbed: bool,
}

/// A key: its place, and its create revision, which is the fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Mark {
    place: usize,
    created: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Place {
    attempt: u8,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Joining,
    /// Waits for the deletion of the key `before`; `None` while it reads the queue.
    Waiting {
        created: u8,
        before: Option<u8>,
    },
    /// `stolen`: its key was deleted after the server had shown it to be the first, which no client can prevent.
    Holding {
        created: u8,
        stolen: bool,
    },
    Leaving {
        created: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Join {
        place: usize,
    },
    Joined {
        own: Mark,
        before: Option<u8>,
    },
    Refused {
        place: usize,
    },
    Look {
        own: Mark,
    },
    Looked {
        own: Mark,
        is_there: bool,
        before: Option<u8>,
    },
    Leave {
        own: Mark,
        next: Option<Mark>,
        is_repeat: bool,
    },
    /// With the key right behind, if it exists.
    Left {
        own: Mark,
        is_deleted: bool,
        next: Option<Mark>,
    },
    KeepAlive {
        client: usize,
        sent: u8,
    },
    KeptAlive {
        client: usize,
        sent: u8,
    },
    LeaseGone {
        client: usize,
    },
    /// An event of a watch.
    Deleted {
        to: usize,
        created: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Join {
        place: usize,
    },
    /// Gives up a wait or a hold.
    Leave {
        place: usize,
    },
    LeaveAgain {
        place: usize,
    },
    KeepAlive {
        client: usize,
    },
    Deliver(Message),
    Revoke {
        client: usize,
    },
    Tick,
}

impl State {
    fn has(&self, created: u8) -> bool {
        self.keys.iter().any(|key| key.created == created)
    }

    /// Returns the key right before this one.
    fn before(&self, created: u8) -> Option<u8> {
        self.keys.iter().rev().map(|key| key.created).find(|other| *other < created)
    }

    fn believes(&self, place: usize) -> bool {
        matches!(self.places[place].phase, Phase::Holding { .. }) && self.now < self.deadlines[CLIENT_OF[place]]
    }

    /// Deletes keys; their watchers receive the event at some time.
    fn delete(&mut self, is_to_go: impl Fn(&Mark) -> bool) {
        let gone: Vec<u8> = self.keys.iter().filter(|key| is_to_go(key)).map(|key| key.created).collect();
        self.keys.retain(|key| !is_to_go(key));
        for (to, place) in self.places.iter().enumerate() {
            let watched = match place.phase {
                Phase::Waiting { created, before } => [Some(created), before],
                Phase::Holding { created, .. } => [Some(created), None],
                _ => [None, None],
            };
            let told = watched.into_iter().flatten().filter(|created| gone.contains(created));
            self.wire.extend(told.map(|created| Message::Deleted { to, created }));
        }
    }

    fn end_lease(&mut self, client: usize) {
        self.leases[client] = None;
        self.delete(|key| CLIENT_OF[key.place] == client);
    }

    /// Waits for the deletion of `before`. A watch that starts too late to see it reads the queue once.
    fn wait(&mut self, own: Mark, before: Option<u8>) {
        self.places[own.place].phase = Phase::Waiting { created: own.created, before };
        let watched = [before, Some(own.created)].into_iter().flatten();
        let missed: Vec<_> = watched.filter(|created| !self.has(*created)).collect();
        self.wire.extend(missed.into_iter().map(|created| Message::Deleted { to: own.place, created }));
    }

    /// Takes the lock, as `proven` by the server or as the client believes.
    fn grant(&mut self, own: Mark, proven: bool) {
        if self.now >= self.deadlines[CLIENT_OF[own.place]] {
            self.places[own.place].phase = Phase::Idle;
            return;
        }
        let stolen = proven && self.revoked.contains(&own.created);
        self.places[own.place].phase = Phase::Holding { created: own.created, stolen };
        if !self.has(own.created) {
            self.wire.insert(Message::Deleted { to: own.place, created: own.created });
        }
        if !stolen {
            self.fell |= own.created <= self.highest;
            self.highest = self.highest.max(own.created);
        }
    }
}

impl Etcd {
    fn deliver(&self, state: &mut State, message: Message) {
        state.wire.remove(&message);
        match message {
            Message::Join { place } => self.join(state, place),
            Message::Joined { own, before: None } => state.grant(own, true),
            Message::Joined { own, before } => state.wait(own, before),
            Message::Refused { place } => state.places[place].phase = Phase::Idle,
            Message::Look { own } => {
                let (is_there, before) = (state.has(own.created), state.before(own.created));
                state.wire.insert(Message::Looked { own, is_there, before });
            }
            Message::Looked { own, is_there, before } => self.looked(state, own, is_there, before),
            Message::Leave { own, next, .. } => self.leave(state, own, next),
            Message::Left { own, is_deleted, next } => self.left(state, own, is_deleted, next),
            Message::KeepAlive { client, sent } => {
                let answer = match &mut state.leases[client] {
                    Some(ends) => {
                        *ends = state.now + LEASE;
                        Message::KeptAlive { client, sent }
                    }
                    None => Message::LeaseGone { client },
                };
                state.wire.insert(answer);
            }
            Message::KeptAlive { client, sent } => {
                let start = if self.flaw == Flaw::DeadlineFromReceipt { state.now } else { sent };
                // A hold whose deadline has passed stays lost.
                if state.now < state.deadlines[client] {
                    state.deadlines[client] = state.deadlines[client].max(start + LEASE);
                }
            }
            Message::LeaseGone { client } => state.deadlines[client] = 0,
            Message::Deleted { to, created } => self.saw_deletion(state, to, created),
        }
    }

    fn join(&self, state: &mut State, place: usize) {
        if state.leases[CLIENT_OF[place]].is_none() {
            state.wire.insert(Message::Refused { place });
            return;
        }
        state.revision += 1;
        let own = Mark { place, created: state.revision };
        let before = state.before(own.created);
        state.keys.push(own);
        state.wire.insert(Message::Joined { own, before });
    }

    fn looked(&self, state: &mut State, own: Mark, is_there: bool, before: Option<u8>) {
        if state.places[own.place].phase != (Phase::Waiting { created: own.created, before: None }) {
            return;
        }
        match before {
            None if is_there => state.grant(own, true),
            None if self.flaw == Flaw::NoFinalCheck => state.grant(own, false),
            Some(_) if is_there => state.wait(own, before),
            _ => state.places[own.place].phase = Phase::Idle,
        }
    }

    fn leave(&self, state: &mut State, own: Mark, next: Option<Mark>) {
        let by_name = self.flaw == Flaw::ReleaseByName;
        let is_meant = |key: &Mark| *key == own || by_name && key.place == own.place;
        let is_deleted = state.keys.iter().any(is_meant);
        state.robbed |= state.keys.iter().any(|key| is_meant(key) && *key != own);
        state.delete(is_meant);
        let next = next.filter(|next| state.has(next.created));
        state.wire.insert(Message::Left { own, is_deleted, next });
    }

    fn left(&self, state: &mut State, own: Mark, is_deleted: bool, next: Option<Mark>) {
        let place = &mut state.places[own.place];
        if place.phase == (Phase::Leaving { created: own.created }) {
            place.phase = Phase::Idle;
        }
        // The reply shows the old key gone and the next key present, at one revision.
        if let Some(next) = next.filter(|_| is_deleted)
            && matches!(state.places[next.place].phase, Phase::Waiting { created, .. } if created == next.created)
        {
            state.grant(next, true);
        }
    }

    fn saw_deletion(&self, state: &mut State, to: usize, gone: u8) {
        match state.places[to].phase {
            // Its own key: the wait or the hold has ended.
            Phase::Waiting { created, .. } if created == gone && self.flaw != Flaw::NoFinalCheck => {
                state.places[to].phase = Phase::Idle;
            }
            Phase::Holding { created, .. } if created == gone && self.flaw != Flaw::NoOwnWatch => {
                state.places[to].phase = Phase::Idle;
            }
            Phase::Waiting { created, before: Some(before) } if before == gone => {
                let own = Mark { place: to, created };
                if self.flaw == Flaw::NoLook {
                    return state.grant(own, false);
                }
                state.places[to].phase = Phase::Waiting { created, before: None };
                state.wire.insert(Message::Look { own });
            }
            _ => {}
        }
    }

    fn begin_to_leave(&self, state: &mut State, place: usize) {
        let (created, was_held) = match state.places[place].phase {
            Phase::Waiting { created, .. } => (created, false),
            Phase::Holding { created, .. } => (created, true),
            _ => return,
        };
        let next = (0..state.places.len()).filter(|next| CLIENT_OF[*next] == CLIENT_OF[place]).find_map(|next| {
            match state.places[next].phase {
                Phase::Waiting { created: own, before } if before == Some(created) => {
                    Some(Mark { place: next, created: own })
                }
                _ => None,
            }
        });
        // Only a holder is known to have had no predecessor.
        let next = next.filter(|_| was_held);
        state.places[place].phase = Phase::Leaving { created };
        state.wire.insert(Message::Leave { own: Mark { place, created }, next, is_repeat: false });
        if let Some(next) = next.filter(|_| self.flaw == Flaw::HandsOnAtOnce) {
            state.grant(next, false);
        }
    }
}

impl Model for Etcd {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            revision: 0,
            keys: Vec::new(),
            leases: [Some(LEASE); CLIENTS],
            deadlines: [LEASE; CLIENTS],
            places: Default::default(),
            wire: BTreeSet::new(),
            keepalives: self.keepalives,
            revocations: self.revocations,
            repeats: self.repeats,
            revoked: BTreeSet::new(),
            highest: 0,
            fell: false,
            robbed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (place, it) in state.places.iter().enumerate() {
            let is_open = state.now < state.deadlines[CLIENT_OF[place]];
            match it.phase {
                Phase::Idle if it.attempt < self.attempts[place] && is_open => actions.push(Action::Join { place }),
                Phase::Waiting { .. } | Phase::Holding { .. } => actions.push(Action::Leave { place }),
                Phase::Leaving { .. } if state.repeats > 0 => actions.push(Action::LeaveAgain { place }),
                _ => {}
            }
        }
        for client in 0..CLIENTS {
            if state.keepalives[client] > 0 && state.now < state.deadlines[client] {
                actions.push(Action::KeepAlive { client });
            }
            if state.revocations > 0 && state.leases[client].is_some() {
                actions.push(Action::Revoke { client });
            }
        }
        actions.extend(state.wire.iter().map(|message| Action::Deliver(*message)));
        if state.now < self.horizon {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Join { place } => {
                state.places[place].attempt += 1;
                state.places[place].phase = Phase::Joining;
                state.wire.insert(Message::Join { place });
            }
            Action::Leave { place } => self.begin_to_leave(&mut state, place),
            Action::LeaveAgain { place } => {
                let Phase::Leaving { created } = state.places[place].phase else { return None };
                state.repeats -= 1;
                state.wire.insert(Message::Leave { own: Mark { place, created }, next: None, is_repeat: true });
            }
            Action::KeepAlive { client } => {
                state.keepalives[client] -= 1;
                state.wire.insert(Message::KeepAlive { client, sent: state.now });
            }
            Action::Deliver(message) => self.deliver(&mut state, message),
            Action::Revoke { client } => {
                state.revocations -= 1;
                for key in state.keys.clone().into_iter().filter(|key| CLIENT_OF[key.place] == client) {
                    state.revoked.insert(key.created);
                    if let Phase::Holding { created, stolen } = &mut state.places[key.place].phase {
                        *stolen |= *created == key.created;
                    }
                }
                state.end_lease(client);
            }
            Action::Tick => {
                state.now += 1;
                for client in 0..CLIENTS {
                    if state.leases[client].is_some_and(|ends| ends <= state.now) {
                        state.end_lease(client);
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(ONE_HOLDER, |_, state| {
                let is_stolen = |place: usize| matches!(state.places[place].phase, Phase::Holding { stolen: true, .. });
                (0..CLIENT_OF.len()).filter(|place| state.believes(*place) && !is_stolen(*place)).count() <= 1
            }),
            Property::<Self>::always(TOKENS_RISE, |_, state| !state.fell),
            Property::<Self>::always(NOT_ROBBED, |_, state| !state.robbed),
            Property::<Self>::always(TOLD, |_, state| {
                let lacks_key = |place: usize| matches!(state.places[place].phase, Phase::Holding { created, .. } if !state.has(created));
                !state.wire.is_empty() || !(0..CLIENT_OF.len()).any(|place| state.believes(place) && lacks_key(place))
            }),
            Property::<Self>::sometimes(TWICE, |_, state| state.highest >= 2),
        ]
    }
}

const ONE_HOLDER: &str = "one holder at a time, except for one whose lease etcd revoked";
const TOKENS_RISE: &str = "tokens rise";
const NOT_ROBBED: &str = "a release never deletes the key of another attempt";
const TOLD: &str = "a holder that lost its key learns of it";
/// Two attempts of one client and one of another, whose leases expire.
const ENGINE: Etcd =
    Etcd { flaw: Flaw::None, attempts: [1; 3], keepalives: [0; 2], revocations: 0, repeats: 0, horizon: 2 };
const KEPT_ALIVE: Etcd = Etcd { attempts: [1, 0, 1], keepalives: [1, 1], horizon: 3, ..ENGINE };
const REVOKED: Etcd = Etcd { revocations: 1, horizon: 0, ..ENGINE };
const REPEATED: Etcd = Etcd { attempts: [2, 0, 1], repeats: 1, horizon: 1, ..ENGINE };

#[test]
fn expiring_leases_are_safe() {
    expect_sound(ENGINE);
}

#[test]
fn late_keepalives_are_safe() {
    expect_sound(KEPT_ALIVE);
}

#[test]
fn a_revoked_lease_affects_only_its_holder() {
    expect_sound(REVOKED);
}

#[test]
fn a_duplicate_release_is_safe() {
    expect_sound(REPEATED);
}

#[test]
fn taking_the_lock_at_the_predecessors_deletion_is_detected() {
    expect_broken(Etcd { flaw: Flaw::NoLook, ..ENGINE }, &[ONE_HOLDER]);
}

#[test]
fn a_final_check_without_the_own_key_is_detected() {
    expect_broken(Etcd { flaw: Flaw::NoFinalCheck, ..REVOKED }, &[ONE_HOLDER]);
}

#[test]
fn a_release_by_name_is_detected() {
    expect_broken(Etcd { flaw: Flaw::ReleaseByName, ..REPEATED }, &[NOT_ROBBED]);
}

#[test]
fn a_deadline_from_the_receipt_of_the_keepalive_is_detected() {
    expect_broken(Etcd { flaw: Flaw::DeadlineFromReceipt, ..KEPT_ALIVE }, &[ONE_HOLDER]);
}

#[test]
fn handing_over_before_the_reply_is_detected() {
    expect_broken(Etcd { flaw: Flaw::HandsOnAtOnce, ..REVOKED }, &[ONE_HOLDER]);
}

#[test]
fn a_holder_that_does_not_watch_its_key_is_detected() {
    expect_broken(Etcd { flaw: Flaw::NoOwnWatch, ..REVOKED }, &[TOLD]);
}
