//! Claims: a place in the queue of tickets, then the lock's file.

use std::time::Duration;

use super::hold::{FileHold, TakeOutcome};
use super::inspector::Inspector;
use super::protocol::lock_paths::LockPaths;
use super::protocol::ticket_queue::{Position, TicketQueue};
use super::state::State;
use super::waiters::{Waiter, seems_stuck};
use super::wire::lock_file::{CHANGED_FILE_TRIES, Obstacle};
use crate::contract::{Busy, Claim, Claimed, Grant};
use crate::types::error::{Error, Result};
use crate::types::owner::Holder;
use crate::types::token::AttemptId;

/// When a waiter that hears of changes claims again all the same. Only the first in the queue can get the lock.
const FIRST_POLL: Duration = Duration::from_millis(100);
const OTHERS_POLL: Duration = Duration::from_secs(1);
/// The same for a waiter that does not hear of changes.
pub(super) const UNNOTIFIED_FIRST_POLL: Duration = Duration::from_millis(20);
pub(super) const UNNOTIFIED_OTHERS_POLL: Duration = Duration::from_millis(200);

/// An inspection shares a lock's file for a moment. A claim that does not wait and meets nothing but sharers tries
/// again after each of these pauses: a quarter of a second in all, for an inspection that the scheduler interrupted.
pub(super) const SHARERS_RETRY_PAUSES: [Duration; 20] = {
    let mut pauses = [Duration::from_millis(16); 20];
    (pauses[0], pauses[1], pauses[2]) = (Duration::ZERO, Duration::from_millis(1), Duration::from_millis(2));
    (pauses[3], pauses[4]) = (Duration::from_millis(4), Duration::from_millis(8));
    pauses
};

/// The outcome of one attempt.
pub(super) enum Attempted {
    Granted(Grant),
    /// When to claim again at the latest, and what is in the way.
    Busy(Option<Duration>, Obstacle),
}

pub(super) async fn claim(state: &State, claim: &Claim) -> Result<Claimed> {
    let waiter = state.waiters.get(claim.attempt);
    waiter.iter().for_each(|waiter| waiter.beat(state.clock.now()));
    let claimed = match attempt_past_sharers(state, claim).await {
        Ok(Attempted::Granted(grant)) => Ok(Claimed::Granted(grant)),
        Ok(Attempted::Busy(poll_after, _)) => refuse_disagreement(state, claim, waiter.is_none())
            .map(|()| Claimed::Busy(Busy { holder: probable_holder(state, claim), poll_after })),
        Err(error) => Err(error),
    };
    claimed.map_err(|error| {
        // A failed claim leaves no place in the queue, unless it had one before.
        if waiter.is_none() {
            state.waiters.leave(claim.attempt);
        }
        error.with_key(&claim.key)
    })
}

/// Tries to take the lock; again if the claim does not wait and nothing but an inspection seems to be in the way.
async fn attempt_past_sharers(state: &State, claim: &Claim) -> Result<Attempted> {
    let mut pauses = SHARERS_RETRY_PAUSES.iter().filter(|_| !claim.queue);
    loop {
        match (attempt(state, claim)?, pauses.next()) {
            (Attempted::Busy(_, Obstacle::Sharers), Some(pause)) => state.waiters.pause(*pause).await,
            (attempted, _) => return Ok(attempted),
        }
    }
}

/// Tries to take the lock, and takes a place in the queue if the claim asks for one.
pub(super) fn attempt(state: &State, claim: &Claim) -> Result<Attempted> {
    if let Some(granted) = granted_before(state, claim.attempt)? {
        return Ok(granted);
    }
    let paths = state.layout.find(&claim.key)?;
    let tickets = TicketQueue::at(&paths.queue);
    let step = Step { state, claim, paths: &paths, tickets: &tickets };
    for _ in 0..CHANGED_FILE_TRIES {
        if let Some(attempted) = step.run()? {
            return Ok(attempted);
        }
    }
    Err(Error::unavailable(format!("{} keeps changing", paths.lock.display())))
}

fn granted_before(state: &State, attempt: AttemptId) -> Result<Option<Attempted>> {
    let mut holds = state.holds();
    match holds.get(&attempt) {
        None => Ok(None),
        Some(hold) if hold.is_intact()? => Ok(Some(Attempted::Granted(hold.grant()))),
        Some(_) => {
            holds.remove(&attempt);
            Ok(None)
        }
    }
}

/// One try of an attempt.
struct Step<'a> {
    state: &'a State,
    claim: &'a Claim,
    paths: &'a LockPaths,
    tickets: &'a TicketQueue,
}

impl Step<'_> {
    /// Returns `None` when files changed meanwhile and another try is worth it.
    fn run(&self) -> Result<Option<Attempted>> {
        let Step { state, claim, tickets, .. } = *self;
        let waiter = state.waiters.get(claim.attempt);
        let stuck = |before| match &waiter {
            Some(mine) => mine.finds_stuck(before, tickets.beat(before), state.clock.now()),
            None => seems_stuck(before, tickets.beat(before), state.clock.now()),
        };
        // A waiter that is still behind the same one need not read the whole queue to know.
        if let Some(waiter) = &waiter
            && let Some(before) = waiter.follows().or_else(|| waiter.stood_behind(state.clock.now()))
            && tickets.is_behind(waiter.name(), before)
            && !stuck(before)
        {
            return Ok(Some(busy_behind(waiter)));
        }
        match (tickets.position(waiter.as_ref().map(|waiter| waiter.name()), claim.mode(), stuck)?, waiter) {
            (Position::Gone, _) => {
                state.waiters.leave(claim.attempt);
                Ok(None)
            }
            (Position::First, waiter) => self.try_to_take(waiter.as_deref()),
            (Position::Behind(..), None) if claim.queue => {
                if state.waiters.enter(claim, tickets, None)? {
                    return Ok(None);
                }
                // Without the right to write tickets the claim competes as flock(1) does.
                self.try_to_take(None)
            }
            (Position::Behind(..), None) => Ok(Some(Attempted::Busy(None, Obstacle::Holder))),
            (Position::Behind(before, ahead), Some(waiter)) => {
                waiter.stands_behind(before, state.clock.now());
                if state.waiters.follow(&waiter, tickets, before, ahead) {
                    // The one before may have left before this waiter listened.
                    return Ok(None);
                }
                Ok(Some(busy_behind(&waiter)))
            }
        }
    }

    fn try_to_take(&self, waiter: Option<&Waiter>) -> Result<Option<Attempted>> {
        let Step { state, claim, paths, tickets } = *self;
        let kept = waiter.and_then(|waiter| waiter.file().take());
        let file = match kept {
            Some(file) if paths.has(&file)? => file,
            _ => paths.open()?,
        };
        if let Some(waiter) = waiter {
            state.waiters.listen(waiter, paths, &file);
        }
        match FileHold::take(claim, paths, file, &state.clock)? {
            TakeOutcome::Taken(hold) => {
                let grant = hold.grant();
                state.holds().insert(claim.attempt, hold);
                state.waiters.leave(claim.attempt);
                Ok(Some(Attempted::Granted(grant)))
            }
            TakeOutcome::Moved => Ok(None),
            TakeOutcome::Busy(file, obstacle) => match waiter {
                Some(waiter) => {
                    *waiter.file() = Some(file);
                    let poll = if waiter.is_notified() { FIRST_POLL } else { UNNOTIFIED_FIRST_POLL };
                    Ok(Some(Attempted::Busy(Some(poll), obstacle)))
                }
                None if !claim.queue => Ok(Some(Attempted::Busy(None, obstacle))),
                None if state.waiters.enter(claim, tickets, Some(file))? => Ok(None),
                None => Ok(Some(Attempted::Busy(Some(UNNOTIFIED_FIRST_POLL), obstacle))),
            },
        }
    }
}

fn busy_behind(waiter: &Waiter) -> Attempted {
    let poll = if waiter.is_notified() { OTHERS_POLL } else { UNNOTIFIED_OTHERS_POLL };
    Attempted::Busy(Some(poll), Obstacle::Holder)
}

/// Refuses a claim that has to wait and whose mode disagrees with a holder's or a waiter's. A waiter that is not the
/// first in the queue agreed with them all when it came.
fn refuse_disagreement(state: &State, claim: &Claim, is_new: bool) -> Result<()> {
    let (paths, asked) = (state.layout.find(&claim.key)?, claim.asked());
    let waiter = state.waiters.get(claim.attempt);
    let held = {
        let kept = waiter.as_ref().map(|waiter| waiter.file());
        match kept.as_ref().and_then(|kept| kept.as_ref()) {
            None if !is_new => return Ok(()),
            kept => Inspector::of(state).disagreeing_holder(&paths, kept, asked)?,
        }
    };
    let other = match held {
        None if is_new => TicketQueue::at(&paths.queue).disagreeing(asked, claim.attempt)?,
        held => held,
    };
    other.map_or(Ok(()), |other| Err(asked.mode.disagrees(other)))
}

fn probable_holder(state: &State, claim: &Claim) -> Option<Holder> {
    let paths = state.layout.find(&claim.key).ok()?;
    // The first in the queue has the file open already; to open and close it again would wake itself.
    let waiter = state.waiters.get(claim.attempt);
    let kept = waiter.as_ref().map(|waiter| waiter.file());
    match kept.as_ref().and_then(|kept| kept.as_ref()) {
        Some(file) => Inspector::of(state).probable_holder(&paths, file),
        // To read the kernel's list stops every flock of the machine for a moment: not for each waiter in the queue.
        None if waiter.is_some() => Inspector::of(state).recorded_holder(&paths, &paths.open_to_read().ok()??),
        None => Inspector::of(state).probable_holder(&paths, &paths.open_to_read().ok()??),
    }
}
