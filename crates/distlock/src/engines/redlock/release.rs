//! Giving a lock back on every node, now or as soon as a node can be reached.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;

use crate::contract::{Claim, Release};
use crate::engines::redis::node::Keys;
use crate::engines::redis::script::garbled;
use crate::engines::redlock::state::claim_votes::list;
use crate::engines::redlock::wire::batch::{self, Answer, Answers, Ask};
use crate::engines::redlock::wire::nodes::{Crew, GRACE, no_answer};
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::AttemptId;

/// The pause before a node is asked again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is sent to every node to end an attempt there.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) keys: Keys,
    attempt: String,
    /// Nothing with this ballot is accepted later; 0 when this engine does not know it.
    ballot: u64,
    waits: bool,
    ends: Ends,
    timeout: Duration,
    /// When the lease is over in any case.
    until: Moment,
}

/// What ends, as the script knows it.
#[derive(Debug, Clone, Copy)]
enum Ends {
    /// A claim that is given up: it may have votes and places, and nothing that was renewed.
    Claim = 0,
    /// A hold, by its holder, which sends nothing more that could set it again.
    Hold = 1,
    /// A hold, by an operator, while its holder goes on.
    Forced = 2,
}

impl Parting {
    /// Ends whatever `claim` has become.
    pub(crate) fn of(crew: &Crew, claim: &Claim) -> Result<Arc<Parting>> {
        let known = crew.attempts.get(claim.attempt);
        let waits = known.map_or(claim.queue, |known| known.places);
        let ends = if known.is_some_and(|known| known.was_granted) { Ends::Hold } else { Ends::Claim };
        Parting::with(crew, claim, known.map_or(0, |known| known.ballot), waits, ends)
    }

    /// Takes back one round of `claim`, which goes on with another ballot and keeps its place.
    pub(crate) fn of_round(crew: &Crew, claim: &Claim, ballot: u64) -> Result<Arc<Parting>> {
        Parting::with(crew, claim, ballot, false, Ends::Claim)
    }

    fn with(crew: &Crew, claim: &Claim, ballot: u64, waits: bool, ends: Ends) -> Result<Arc<Parting>> {
        Ok(Arc::new(Parting {
            keys: crew.keys(&claim.key)?,
            attempt: claim.attempt.to_string(),
            ballot,
            waits,
            ends,
            timeout: Crew::node_timeout(claim.ttl),
            until: crew.now().after(claim.ttl),
        }))
    }

    /// Ends the hold that somebody else's attempt has with `ballot`.
    pub(crate) fn forced(keys: Keys, attempt: AttemptId, ballot: u64, now: Moment) -> Arc<Parting> {
        let timeout = Crew::node_timeout(Duration::MAX);
        let until = now.after(LONGEST_PAUSE * 10);
        let (attempt, ends) = (attempt.to_string(), Ends::Forced);
        Arc::new(Parting { keys, attempt, ballot, waits: false, ends, timeout, until })
    }

    pub(crate) fn fill(&self, command: &mut Cmd, wake: bool) {
        command.arg("release").arg(&self.attempt).arg(self.ballot).arg(u8::from(self.waits)).arg(u8::from(wake));
        command.arg(self.ends as u8);
    }
}

fn read(answer: Result<Answer>) -> Result<Release> {
    match answer?.reply.word()?.as_str() {
        "released" => Ok(Release::Released),
        "not ours" => Ok(Release::NotOurs),
        _ => Err(garbled()),
    }
}

/// Ends a hold, or gives up a place, on all nodes; answered when a majority has.
pub(crate) async fn release(crew: &Arc<Crew>, claim: &Claim) -> Result<Release> {
    // Before anything is sent: from now on no node is asked to set it again.
    crew.attempts.end(claim.attempt);
    let parting = Parting::of(crew, claim)?;
    let outcome = everywhere(crew, &parting).await?;
    crew.attempts.forget(claim.attempt);
    Ok(outcome)
}

/// Sends `parting` to all nodes; answered when a majority has, and paid later where it was not.
pub(crate) async fn everywhere(crew: &Arc<Crew>, parting: &Arc<Parting>) -> Result<Release> {
    let quorum = crew.quorum();
    let mut outcomes: Vec<Result<Release>> = crew.nodes.iter().map(|_| Err(no_answer())).collect();
    let mut answers = ask(crew, parting, true, (0..crew.nodes.len()).collect());
    answers
        .run(parting.timeout, GRACE, |at, answer| {
            let outcome = read(answer);
            crew.note(at, outcome.is_ok());
            outcomes[at] = outcome;
            outcomes.iter().filter(|outcome| outcome.is_ok()).count() >= quorum
        })
        .await;
    let count =
        |wanted: Release| outcomes.iter().filter(|outcome| matches!(outcome, Ok(was) if *was == wanted)).count();
    let (released, not_ours) = (count(Release::Released), count(Release::NotOurs));
    if released + not_ours < quorum {
        // Whoever asked asks again.
        return Err(unconfirmed(crew, &outcomes));
    }
    let owing: Vec<_> = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_err()).map(|(at, _)| at).collect();
    pay_after(crew, parting.clone(), answers, owing);
    Ok(if not_ours >= quorum || released == 0 { Release::NotOurs } else { Release::Released })
}

fn unconfirmed(crew: &Crew, outcomes: &[Result<Release>]) -> Error {
    let may_be = outcomes.iter().any(|outcome| match outcome {
        Ok(_) => true,
        Err(error) => error.may_be_applied(),
    });
    let said = outcomes.iter().map(|outcome| match outcome {
        Ok(Release::Released) => "released".to_owned(),
        Ok(Release::NotOurs) => "not ours".to_owned(),
        Err(error) => error.to_string(),
    });
    let votes = list(&crew.places(), said);
    let kind = if may_be { ErrorKind::Unknown } else { ErrorKind::Unavailable };
    Error::new(kind, format!("redlock: no majority has confirmed the release: {votes}"))
}

fn ask(crew: &Arc<Crew>, parting: &Arc<Parting>, wake: bool, nodes: Vec<usize>) -> Answers {
    batch::ask(crew, Ask::Release { parting: parting.clone(), wake }, nodes)
}

/// Takes back what some nodes granted. Answers how many of them have not confirmed it; they are asked again later.
pub(crate) async fn take_back(crew: &Arc<Crew>, parting: &Arc<Parting>, granted: &[usize]) -> usize {
    if granted.is_empty() {
        return 0;
    }
    let mut owing = granted.to_vec();
    // Those who wait for a holder would wake up for nothing, unless this one looked like a holder.
    let mut answers = ask(crew, parting, granted.len() >= crew.quorum(), granted.to_vec());
    answers
        .run(parting.timeout, GRACE, |at, answer| {
            if read(answer).is_ok() {
                owing.retain(|node| *node != at);
            }
            false
        })
        .await;
    let kept = owing.len();
    pay_later(crew, parting, owing);
    kept
}

/// Those who are late have the request already: they are asked again only if it comes to nothing.
fn pay_after(crew: &Arc<Crew>, parting: Arc<Parting>, mut late: Answers, mut owing: Vec<usize>) {
    if late.is_over() {
        return pay_later(crew, &parting, owing);
    }
    let (crew, waited_for) = (crew.clone(), crew.begin_late());
    // tidy-allow(spawn): the caller has its answer; a node that is late must be freed all the same
    crew.runtime.clone().spawn(async move {
        let _waited_for = waited_for;
        late.run(parting.timeout, GRACE, |at, answer| {
            let is_done = read(answer).is_ok();
            crew.note(at, is_done);
            if is_done {
                owing.retain(|node| *node != at);
            }
            false
        })
        .await;
        late.behind().iter().for_each(|at| crew.note(*at, false));
        pay_later(&crew, &parting, owing);
    });
}

/// Sends `parting` to each node that owes an answer, again and again until it is answered or the lease is over.
pub(crate) fn pay_later(crew: &Arc<Crew>, parting: &Arc<Parting>, owing: impl IntoIterator<Item = usize>) {
    for at in owing {
        let (crew, parting) = (crew.clone(), parting.clone());
        // tidy-allow(spawn): one small task for a node that is out of reach, for a lease at the longest
        crew.runtime.clone().spawn(pay(Arc::downgrade(&crew), at, parting));
    }
}

async fn pay(crew: Weak<Crew>, at: usize, parting: Arc<Parting>) {
    let mut pause = FIRST_PAUSE;
    // Without an engine there are no connections, either.
    while let Some(crew) = crew.upgrade() {
        let ask = Ask::Release { parting: parting.clone(), wake: true };
        let answer = tokio::time::timeout(parting.timeout, batch::send(&crew, at, std::iter::once(&ask))).await;
        let is_done = answer.is_ok_and(|answers| answers.into_iter().all(|answer| read(answer).is_ok()));
        if is_done || crew.now().after(pause) >= parting.until {
            return;
        }
        drop(crew);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
