//! The queue of the etcd engine as a model: keys in the order in which they were made, leases that run out, a lease that
//! etcd revokes though it should not, watches, the final look, and the handoff within one client.
//!
//! The server and the network are modelled. What a client knows and decides is not: it is the engine's own
//! [`AttemptState`], which is told of each event and returns what to do. A flaw is a client that asks it the wrong thing.
//!
//! A message may take any time and arrive in any order: requests go by several connections. Only safety is judged here,
//! not waiting: nothing obliges a client to do anything.

use std::collections::BTreeSet;
use std::time::Duration;

use distlock::Moment;
use distlock::backend::Term;
use distlock::backend::etcd::model::{
    AfterDeletion, AttemptState, Granted, LeaseGone, LeaseHandle, QueueKey, SawDeletion,
};
use distlock_models::{TWICE, expect_broken, expect_sound};
use stateright::{Model, Property};

/// Which client each place belongs to. A place is one key name, used for one attempt after the other.
const CLIENT_OF: [usize; 3] = [0, 0, 1];
const CLIENTS: usize = 2;
/// The lease of each client, in ticks, from the beginning on.
const LEASE: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Whoever sees the key before its own deleted has the lock.
    NoLook,
    /// The last look is for a key before ours, not for our own.
    NoFinalCheck,
    /// A release deletes the key of its name, whenever that was made.
    ReleaseByName,
    /// The lease is counted from when the answer to the keepalive came.
    DeadlineFromReceipt,
    /// The next one of the same client has the lock as soon as the release is sent.
    HandsOnAtOnce,
    /// A release hands over to a waiter of the same client, although another waiter is before that one.
    HandsPastOthers,
    /// A holder does not watch its own key.
    NoOwnWatch,
}

struct Etcd {
    flaw: Flaw,
    /// How often each place is used.
    attempts: [u8; CLIENT_OF.len()],
    /// How often each client renews its lease.
    keepalives: [u8; CLIENTS],
    /// How many leases etcd revokes before they have run out.
    revocations: u8,
    /// How many releases are sent twice.
    repeats: u8,
    horizon: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    revision: u8,
    /// In the order in which they were made.
    keys: Vec<Mark>,
    /// When each client's lease ends on the server; `None` when it has.
    leases: [Option<u8>; CLIENTS],
    /// Until when each client counts on it.
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

/// A key: whose place it is, and the revision that made it, which is the fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Mark {
    place: usize,
    created: u8,
}

/// A client's lease, by the number of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lease(usize);

impl LeaseHandle for Lease {
    fn id(&self) -> i64 {
        i64::try_from(self.0).expect("few clients")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Place {
    /// How many attempts were made here.
    attempts: u8,
    /// The attempt of now, as the engine knows it.
    state: Option<AttemptState<Lease>>,
    /// The key of its hold was taken away after the server had shown it to be the first, which no client can prevent.
    stolen: bool,
}

impl Place {
    /// The create revision of its key, once it is known; 0 otherwise.
    fn created(&self) -> u8 {
        self.state.as_ref().map_or(0, |state| u8::try_from(state.created()).expect("few revisions"))
    }

    fn is_held(&self) -> bool {
        self.state.as_ref().is_some_and(AttemptState::is_held)
    }

    fn is_leaving(&self) -> bool {
        self.state.as_ref().is_some_and(AttemptState::is_leaving)
    }

    /// The keys that it waits for, if it waits with a key of its own.
    fn waits_for(&self) -> Option<Vec<QueueKey>> {
        self.state.as_ref()?.wait().map(|wait| wait.before)
    }

    fn forget(&mut self) {
        self.state = None;
        self.stolen = false;
    }

    /// Its key is gone.
    fn lose(&mut self) {
        if let Some(state) = &mut self.state {
            state.lost();
        }
        self.forget();
    }
}

/// A key as the engine names it.
fn queue_key(key: Mark) -> QueueKey {
    let place = u8::try_from(key.place).expect("few places");
    QueueKey { key: vec![place], created: i64::from(key.created) }
}

fn at(tick: u8) -> Moment {
    Moment::from_nanos(0).after(Duration::from_secs(tick.into()))
}

/// What a release reads in the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Read {
    Nothing,
    /// The key right behind.
    Key(Mark),
    /// The first key that is left.
    First,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Join {
        place: usize,
    },
    Joined {
        own: Mark,
        before: Option<Mark>,
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
        before: Option<Mark>,
        revision: u8,
    },
    Leave {
        own: Mark,
        read: Read,
        is_repeat: bool,
    },
    /// With the key that was read, if it is there.
    Left {
        own: Mark,
        is_deleted: bool,
        next: Option<Mark>,
        revision: u8,
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
        key: Mark,
        revision: u8,
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
    /// The waiter that was handed the lock wakes.
    TakeTurn {
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

    /// The key right before this one.
    fn before(&self, created: u8) -> Option<Mark> {
        self.keys.iter().rev().copied().find(|other| other.created < created)
    }

    fn believes(&self, place: usize) -> bool {
        self.places[place].is_held() && self.now < self.deadlines[CLIENT_OF[place]]
    }

    /// Deletes keys; the places that watch them are told, some time.
    fn delete(&mut self, is_to_go: impl Fn(&Mark) -> bool) {
        let gone: Vec<Mark> = self.keys.iter().copied().filter(|key| is_to_go(key)).collect();
        if gone.is_empty() {
            return;
        }
        self.revision += 1;
        self.keys.retain(|key| !is_to_go(key));
        for key in gone {
            for (to, place) in self.places.iter().enumerate() {
                let is_own = key.place == to && place.created() == key.created && !place.is_leaving();
                let is_awaited = place.waits_for().is_some_and(|before| before.contains(&queue_key(key)));
                if is_own || is_awaited {
                    self.wire.insert(Message::Deleted { to, key, revision: self.revision });
                }
            }
        }
    }

    fn end_lease(&mut self, client: usize) {
        self.leases[client] = None;
        self.delete(|key| CLIENT_OF[key.place] == client);
    }

    /// A watch that begins too late to see the end of `key` looks once.
    fn watch(&mut self, to: usize, key: Mark) {
        if !self.has(key.created) {
            self.wire.insert(Message::Deleted { to, key, revision: self.revision });
        }
    }

    /// Waits for the end of `before`.
    fn wait(&mut self, own: Mark, before: Mark, revision: u8) {
        let Some(state) = &mut self.places[own.place].state else { return };
        state.queue_read(revision.into());
        state.put_behind(vec![queue_key(before)]);
        self.watch(own.place, before);
        self.watch(own.place, own);
    }

    /// The lock is ours as of `revision`, as `proven` by the server or as we believe.
    fn grant(&mut self, own: Mark, revision: u8, proven: bool) {
        let (now, deadline) = (self.now, self.deadlines[CLIENT_OF[own.place]]);
        let term = Term { start: at(deadline.saturating_sub(LEASE)), ttl: Duration::from_secs(LEASE.into()) };
        let place = &mut self.places[own.place];
        let Some(state) = &mut place.state else { return };
        match state.granted(revision.into(), deadline == 0, term, at(now)) {
            // The core takes no grant whose deadline is over.
            Granted::Held { .. } if now >= deadline => place.forget(),
            Granted::Held { created, .. } => {
                assert_eq!(created, i64::from(own.created), "the token is the key's create revision");
                state.put_behind(Vec::new());
                place.stolen = proven && self.revoked.contains(&own.created);
                if !place.stolen {
                    self.fell |= own.created <= self.highest;
                    self.highest = self.highest.max(own.created);
                }
                self.watch(own.place, own);
            }
            Granted::Lost => place.lose(),
            Granted::GivenUp => {}
        }
    }

    /// The client is told that its lease is gone.
    fn lease_gone(&mut self, client: usize) {
        self.deadlines[client] = 0;
        let now = at(self.now);
        for place in self.places.iter_mut() {
            let gone = place.state.as_mut().map(|state| state.lease_gone(Lease(client).id(), now));
            if gone == Some(LeaseGone::KeyLost) {
                place.lose();
            }
        }
    }
}

impl Etcd {
    fn deliver(&self, state: &mut State, message: Message) {
        state.wire.remove(&message);
        match message {
            Message::Join { place } => self.join(state, place),
            Message::Joined { own, before } => {
                let Some(attempt) = &mut state.places[own.place].state else { return };
                attempt.made(Some(own.created.into()), true);
                let first_at = attempt.first_at().map(|revision| u8::try_from(revision).expect("few revisions"));
                match (before, first_at) {
                    (None, _) => state.grant(own, own.created, true),
                    (_, Some(revision)) => state.grant(own, revision, true),
                    (Some(before), None) => state.wait(own, before, own.created),
                }
            }
            Message::Refused { place } => state.lease_gone(CLIENT_OF[place]),
            Message::Look { own } => {
                let (is_there, before) = (state.has(own.created), state.before(own.created));
                let revision = state.revision;
                state.wire.insert(Message::Looked { own, is_there, before, revision });
            }
            Message::Looked { own, is_there, before, revision } => {
                self.looked(state, own, is_there.then_some(revision), before);
            }
            Message::Leave { own, read, .. } => self.leave(state, own, read),
            Message::Left { own, is_deleted, next, revision } => {
                self.left(state, own, is_deleted.then_some(revision), next);
            }
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
                // What has passed is lost for good.
                if state.now < state.deadlines[client] {
                    state.deadlines[client] = state.deadlines[client].max(start + LEASE);
                }
            }
            Message::LeaseGone { client } => state.lease_gone(client),
            Message::Deleted { to, key, revision } => self.saw_deletion(state, to, key, revision),
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

    /// The queue was read, and showed our key `there` as of a revision.
    fn looked(&self, state: &mut State, own: Mark, there: Option<u8>, before: Option<Mark>) {
        let place = &mut state.places[own.place];
        if place.created() != own.created || place.waits_for().is_none_or(|before| !before.is_empty()) {
            return;
        }
        match (before, there) {
            (None, Some(revision)) => state.grant(own, revision, true),
            (None, None) if self.flaw == Flaw::NoFinalCheck => state.grant(own, own.created, false),
            (Some(before), Some(revision)) => state.wait(own, before, revision),
            _ => place.lose(),
        }
    }

    fn leave(&self, state: &mut State, own: Mark, read: Read) {
        let by_name = self.flaw == Flaw::ReleaseByName;
        let is_meant = |key: &Mark| *key == own || by_name && key.place == own.place;
        let is_deleted = state.keys.iter().any(is_meant);
        state.robbed |= state.keys.iter().any(|key| is_meant(key) && *key != own);
        state.delete(is_meant);
        let next = match read {
            Read::Nothing => None,
            Read::Key(next) => Some(next).filter(|next| state.has(next.created)),
            Read::First => state.keys.first().copied(),
        };
        let revision = state.revision;
        state.wire.insert(Message::Left { own, is_deleted, next, revision });
    }

    fn saw_deletion(&self, state: &mut State, to: usize, key: Mark, revision: u8) {
        let place = &mut state.places[to];
        let (is_held, created) = (place.is_held(), place.created());
        let Some(attempt) = &mut place.state else { return };
        if key.place == to {
            let ignored = if is_held { Flaw::NoOwnWatch } else { Flaw::NoFinalCheck };
            if self.flaw != ignored && attempt.saw_deletion(revision.into()) != SawDeletion::Nothing {
                place.lose();
            }
            return;
        }
        if attempt.wait().is_none_or(|wait| !wait.before.contains(&queue_key(key))) {
            return;
        }
        let own = Mark { place: to, created };
        attempt.put_behind(Vec::new());
        match self.flaw == Flaw::NoLook {
            true => state.grant(own, revision, false),
            false => drop(state.wire.insert(Message::Look { own })),
        }
    }

    fn begin_to_leave(&self, state: &mut State, place: usize) {
        let own = Mark { place, created: state.places[place].created() };
        let Some(attempt) = &mut state.places[place].state else { return };
        let Some(leaving) = attempt.leave() else { return };
        // Only of a holder is it known that no key was before its own.
        let is_first = leaving.was_held || attempt.is_first();
        let mut others = (0..state.places.len()).filter(|next| CLIENT_OF[*next] == CLIENT_OF[place]);
        let past_others = self.flaw == Flaw::HandsPastOthers;
        let next = others.find(|next| {
            state.places[*next].waits_for().is_some_and(|before| past_others || before.contains(&queue_key(own)))
        });
        let next = next.filter(|_| is_first).map(|next| Mark { place: next, created: state.places[next].created() });
        let read = match next {
            Some(next) => Read::Key(next),
            None if is_first => Read::First,
            None => Read::Nothing,
        };
        state.wire.insert(Message::Leave { own, read, is_repeat: false });
        if let Some(next) = next.filter(|_| self.flaw == Flaw::HandsOnAtOnce) {
            state.grant(next, state.revision, false);
        }
    }

    /// A release was answered: the old key was `deleted` as of a revision, and the next one is there.
    fn left(&self, state: &mut State, own: Mark, deleted: Option<u8>, next: Option<Mark>) {
        let now = at(state.now);
        let place = &mut state.places[own.place];
        if place.is_leaving() && place.created() == own.created {
            let after = place.state.as_mut().map(|attempt| attempt.left(true, deleted.is_some(), now));
            assert_eq!(after, Some(AfterDeletion::Forget), "no request was left unanswered");
            place.forget();
        }
        let next = next.filter(|next| CLIENT_OF[next.place] == CLIENT_OF[own.place]);
        if let (Some(revision), Some(next)) = (deleted, next)
            && let Some(attempt) = &mut state.places[next.place].state
        {
            attempt.handed_over(next.created.into(), revision.into());
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
            match &it.state {
                None if it.attempts < self.attempts[place] && is_open => actions.push(Action::Join { place }),
                Some(attempt) if attempt.is_held() || attempt.wait().is_some() => {
                    actions.push(Action::Leave { place });
                    if attempt.is_waiting() && attempt.is_first() {
                        actions.push(Action::TakeTurn { place });
                    }
                }
                Some(attempt) if attempt.is_leaving() && state.repeats > 0 => {
                    actions.push(Action::LeaveAgain { place });
                }
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
                let client = CLIENT_OF[place];
                let start = at(state.deadlines[client].saturating_sub(LEASE));
                state.places[place].attempts += 1;
                state.places[place].state = Some(AttemptState::new(Lease(client), 0, start, Moment::NEVER));
                state.wire.insert(Message::Join { place });
            }
            Action::Leave { place } => self.begin_to_leave(&mut state, place),
            Action::LeaveAgain { place } => {
                let own = Mark { place, created: state.places[place].created() };
                state.repeats -= 1;
                state.wire.insert(Message::Leave { own, read: Read::Nothing, is_repeat: true });
            }
            Action::TakeTurn { place } => {
                let own = Mark { place, created: state.places[place].created() };
                let revision = state.places[place].state.as_ref()?.wait()?.first_at?;
                state.grant(own, u8::try_from(revision).expect("few revisions"), true);
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
                    let place = &mut state.places[key.place];
                    place.stolen |= place.is_held() && place.created() == key.created;
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
                let is_stolen = |place: usize| state.places[place].stolen;
                (0..CLIENT_OF.len()).filter(|place| state.believes(*place) && !is_stolen(*place)).count() <= 1
            }),
            Property::<Self>::always(TOKENS_RISE, |_, state| !state.fell),
            Property::<Self>::always(NOT_ROBBED, |_, state| !state.robbed),
            Property::<Self>::always(TOLD, |_, state| {
                let lacks_key = |place: usize| !state.has(state.places[place].created());
                !state.wire.is_empty() || !(0..CLIENT_OF.len()).any(|place| state.believes(place) && lacks_key(place))
            }),
            Property::<Self>::sometimes(TWICE, |_, state| state.highest >= 2),
        ]
    }
}

const ONE_HOLDER: &str = "one holder at a time, but for one whose lease etcd took away";
const TOKENS_RISE: &str = "tokens rise";
const NOT_ROBBED: &str = "nobody's key is deleted by another's release";
const TOLD: &str = "whoever has lost its key is told";
/// Two attempts of one client and one of another, whose leases run out.
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
fn handing_over_past_another_clients_waiter_is_detected() {
    expect_broken(Etcd { flaw: Flaw::HandsPastOthers, ..ENGINE }, &[ONE_HOLDER]);
}

#[test]
fn a_holder_that_does_not_watch_its_key_is_detected() {
    expect_broken(Etcd { flaw: Flaw::NoOwnWatch, ..REVOKED }, &[TOLD]);
}
