//! The events of a world, in true time, which no clock in the world shows.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock::{FencingToken, Mode, Moment, fencing};
use distlock_testkit::history::{History, Hold};

/// Returns the time since the world began, for code that runs on one of its machines.
pub(crate) fn true_time() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

/// The recorded events.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline(Arc<Mutex<Events>>);

#[derive(Debug, Default)]
struct Events {
    lines: Vec<String>,
    turns: Vec<Turn>,
    /// When each client was killed.
    killed: Vec<(usize, Duration)>,
    troubles: Vec<Trouble>,
    /// The resource of each lock: the highest token seen, and all writes.
    resource: Vec<Option<FencingToken>>,
    writes: Vec<(usize, u64, bool)>,
    /// The turn whose hold must survive all faults, once it is granted.
    kept: Option<usize>,
}

/// An interval in which queue places may legitimately be lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trouble {
    /// `None` means all clients.
    pub(crate) client: Option<usize>,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// One attempt to take a lock.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) client: usize,
    pub(crate) lock: usize,
    pub(crate) mode: Mode,
    pub(crate) asked: Duration,
    queued: Option<Duration>,
    granted: Option<Granted>,
    is_over: bool,
}

#[derive(Debug, Clone, Copy)]
struct Granted {
    at: Duration,
    token: u64,
    slot: Option<u32>,
    /// The last recorded deadline.
    deadline: Duration,
    notified: Option<Duration>,
    left: Option<Duration>,
}

impl Timeline {
    /// Records a line of the log, on one of the machines.
    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        self.note_at(true_time(), what);
    }

    pub(crate) fn note_at(&self, at: Duration, what: fmt::Arguments<'_>) {
        self.events().lines.push(format!("{:>12.6} {what}", at.as_secs_f64()));
    }

    /// Records a request; returns the number of the turn.
    pub(crate) fn asks(&self, client: usize, lock: usize, mode: Mode) -> usize {
        let mut events = self.events();
        events.turns.push(Turn { client, lock, mode, asked: true_time(), queued: None, granted: None, is_over: false });
        let turn = events.turns.len() - 1;
        drop(events);
        self.note(format_args!("turn {turn}: client {client} asks for {mode} of lock {lock}"));
        turn
    }

    /// Records a wait; in a queue, if the engine is fair.
    pub(crate) fn waits(&self, turn: usize, is_fair: bool) {
        if is_fair {
            self.events().turns[turn].queued.get_or_insert(true_time());
        }
        self.note(format_args!("turn {turn}: waits"));
    }

    pub(crate) fn is_told(&self, turn: usize, reason: &str) {
        if let Some(granted) = &mut self.events().turns[turn].granted {
            granted.notified.get_or_insert(true_time());
        }
        self.note(format_args!("turn {turn}: learns that {reason}"));
    }

    /// Records a grant; `deadline` is in true time.
    pub(crate) fn is_granted(&self, turn: usize, token: u64, slot: Option<u32>, deadline: Duration) {
        let granted = Granted { at: true_time(), token, slot, deadline, notified: None, left: None };
        self.events().turns[turn].granted = Some(granted);
        self.note(format_args!("turn {turn}: granted {token} until {:.6}", deadline.as_secs_f64()));
    }

    /// From now on the hold of this turn must not be lost.
    pub(crate) fn keeps(&self, turn: usize) {
        self.events().kept = Some(turn);
        self.note(format_args!("turn {turn}: keeps it"));
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.events().kept.is_some()
    }

    /// Returns the turn that was to keep its hold and learned that it is lost.
    pub(crate) fn lost_keep(&self) -> Option<usize> {
        let events = self.events();
        events.kept.filter(|turn| events.turns[*turn].granted.is_some_and(|granted| granted.notified.is_some()))
    }

    /// Records that the client checked the lock, which was valid until then.
    pub(crate) fn is_good(&self, turn: usize, deadline: Duration) {
        if let Some(granted) = &mut self.events().turns[turn].granted {
            granted.deadline = deadline;
        }
    }

    /// Records that the client stopped believing; if the lock was lost, at its notification or its deadline.
    pub(crate) fn leaves(&self, turn: usize, lost_at: Option<Duration>) {
        if let Some(granted) = &mut self.events().turns[turn].granted {
            let notified = granted.notified.filter(|_| lost_at.is_some());
            granted.left = [Some(true_time()), lost_at, notified].into_iter().flatten().min();
        }
        self.note(format_args!("turn {turn}: leaves{}", if lost_at.is_some() { " what it lost" } else { "" }));
    }

    pub(crate) fn ends(&self, turn: usize, how: &str) {
        self.events().turns[turn].is_over = true;
        self.note(format_args!("turn {turn}: {how}"));
    }

    /// Records a write to the protected resource. An open resource accepts every token.
    pub(crate) fn write(&self, turn: usize, lock: usize, token: FencingToken, is_open: bool) {
        let mut events = self.events();
        if events.resource.len() <= lock {
            events.resource.resize(lock + 1, None);
        }
        let accepted = is_open || fencing::check(token, events.resource[lock]).is_ok();
        if accepted {
            events.resource[lock] = Some(token);
        }
        events.writes.push((lock, token.get(), accepted));
        drop(events);
        self.note(format_args!("turn {turn}: writes with {token}, {}", if accepted { "accepted" } else { "stale" }));
    }

    pub(crate) fn is_killed(&self, client: usize, at: Duration) {
        self.events().killed.push((client, at));
    }

    pub(crate) fn is_troubled(&self, trouble: Trouble) {
        self.events().troubles.push(trouble);
    }

    /// Returns the history for the checker; the client of a hold is the number of its turn.
    pub(crate) fn history(&self) -> History {
        let (history, events) = (History::of_several_sizes(), self.events());
        for (number, turn) in events.turns.iter().enumerate() {
            if let Some(granted) = turn.granted {
                history.hold(events.hold(number, turn, granted));
            }
        }
        events.writes.iter().for_each(|(lock, token, accepted)| history.write(&name(*lock), *token, *accepted));
        history
    }

    /// Returns the turns of living clients that have no end.
    pub(crate) fn unserved(&self) -> Vec<usize> {
        let events = self.events();
        let is_waiting = |turn: &Turn| !turn.is_over && events.killed_after(turn.client, turn.asked).is_none();
        events.turns.iter().enumerate().filter(|(_, turn)| is_waiting(turn)).map(|(number, _)| number).collect()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.events().lines.clone()
    }

    /// Returns the numbers of requests, grants, waits judged for their order, and stale writes.
    pub(crate) fn figures(&self) -> [usize; 4] {
        let events = self.events();
        let granted = events.turns.iter().filter(|turn| turn.granted.is_some()).count();
        let is_judged = |turn: &&Turn| turn.granted.is_some_and(|granted| events.place(turn, granted).is_some());
        let stale = events.writes.iter().filter(|(_, _, accepted)| !accepted).count();
        [events.turns.len(), granted, events.turns.iter().filter(is_judged).count(), stale]
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    fn killed_after(&self, client: usize, moment: Duration) -> Option<Duration> {
        self.killed.iter().filter(|(who, at)| *who == client && *at >= moment).map(|(_, at)| *at).min()
    }

    fn hold(&self, number: usize, turn: &Turn, granted: Granted) -> Hold {
        let killed = self.killed_after(turn.client, granted.at);
        let unsaid = [Some(granted.deadline), granted.notified, killed];
        let end = granted.left.or_else(|| unsaid.into_iter().flatten().min()).unwrap_or(granted.at);
        Hold {
            key: name(turn.lock),
            client: u32::try_from(number).unwrap_or(u32::MAX),
            mode: turn.mode,
            slot: granted.slot,
            asked: moment(turn.asked),
            queued: self.place(turn, granted).map(moment),
            granted: moment(granted.at.min(end)),
            token: granted.token,
            end: moment(end),
        }
    }

    /// Returns when the client entered the queue, unless it may legitimately have lost its place.
    fn place(&self, turn: &Turn, granted: Granted) -> Option<Duration> {
        let meets = |trouble: &Trouble| {
            trouble.client.is_none_or(|client| client == turn.client)
                && trouble.from < granted.at
                && turn.asked < trouble.to
        };
        turn.queued.filter(|_| !self.troubles.iter().any(meets))
    }
}

fn moment(at: Duration) -> Moment {
    Moment::from_nanos(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the name of a lock.
pub(crate) fn name(lock: usize) -> String {
    format!("lock{lock}")
}
