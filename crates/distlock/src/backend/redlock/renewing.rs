//! Renewing holds on all nodes, and setting again what a node has forgotten.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::backend::redis::node::{self, Keys, Lane};
use crate::backend::redis::script::garbled;
use crate::backend::redlock::crew::{Crew, GRACE, Member, no_answer};
use crate::backend::redlock::race::Race;
use crate::backend::redlock::releasing::{self, Parting};
use crate::backend::redlock::scripts::RENEW;
use crate::backend::redlock::vote::list;
use crate::backend::{Lease, Renewal, Term};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::event::LossReason;

/// How many locks one call renews: a fraction of a millisecond of the node's time.
const CHUNK: usize = 128;
/// How long renewals wait for a majority to be connected.
const PATIENCE: Duration = Duration::from_millis(400);

/// What one node says to the renewal of one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vote {
    Renewed,
    /// The lock was missing there and is set again.
    Healed,
    /// It was released, or granted to somebody else and released since.
    Superseded,
    /// Somebody else has it there.
    Held,
    NoMemory,
}

impl Vote {
    fn read(number: i64) -> Result<Vote> {
        match number {
            1 => Ok(Vote::Renewed),
            2 => Ok(Vote::Healed),
            0 => Ok(Vote::Superseded),
            -1 => Ok(Vote::Held),
            -2 => Ok(Vote::NoMemory),
            _ => Err(garbled()),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Vote::Renewed => "renewed",
            Vote::Healed => "set again",
            Vote::Superseded => "superseded",
            Vote::Held => "held by another",
            Vote::NoMemory => "no memory to set it again",
        }
    }
}

/// What is sent to every node.
struct Request {
    node_key: String,
    items: Vec<Item>,
    guard: u8,
}

struct Item {
    keys: Keys,
    attempt: String,
    ballot: u64,
    ttl_ms: u64,
    rest: String,
}

impl Request {
    fn new(crew: &Crew, leases: &[Lease]) -> Result<Request> {
        let item = |lease: &Lease| -> Result<Item> {
            let record = node::write_record(&lease.claim.record)?;
            Ok(Item {
                keys: crew.keys(&lease.claim.key)?,
                attempt: lease.claim.attempt.to_string(),
                ballot: lease.token.get(),
                ttl_ms: node::millis(lease.claim.ttl),
                rest: format!("{} {record}", crew.options.wake),
            })
        };
        let items = leases.iter().map(item).collect::<Result<_>>()?;
        Ok(Request { node_key: crew.options.node_key(), items, guard: u8::from(crew.options.restart_guard) })
    }

    async fn ask(&self, member: &Member) -> Result<Vec<Vote>> {
        let connection = member.connection(Lane::Reserved)?;
        let fill = |command: &mut Cmd, nonce| {
            command.arg(1 + 2 * self.items.len()).arg(&self.node_key);
            for Item { keys, .. } in &self.items {
                command.arg(&keys.lock).arg(&keys.fence);
            }
            command.arg(nonce).arg(self.guard);
            for item in &self.items {
                command.arg(&item.attempt).arg(item.ballot).arg(item.ttl_ms).arg(&item.rest);
            }
        };
        let mut reply = connection.run(&RENEW, fill).await?;
        let votes = self.items.iter().map(|_| Vote::read(reply.int()?)).collect::<Result<_>>()?;
        if reply.is_empty() { Ok(votes) } else { Err(garbled()) }
    }
}

/// Renews; one answer for each lease, in their order.
pub(super) async fn renew(crew: &Arc<Crew>, leases: &[Lease]) -> Vec<Result<Renewal>> {
    let mut answers = Vec::with_capacity(leases.len());
    for chunk in leases.chunks(CHUNK) {
        match renew_chunk(crew, chunk).await {
            Ok(renewals) => answers.extend(renewals),
            Err(error) => answers.extend(chunk.iter().map(|_| Err(Error::new(error.kind(), error.to_string())))),
        }
    }
    answers
}

async fn renew_chunk(crew: &Arc<Crew>, leases: &[Lease]) -> Result<Vec<Result<Renewal>>> {
    let request = Arc::new(Request::new(crew, leases)?);
    crew.gather(Lane::Reserved, PATIENCE).await?;
    let start = crew.now();
    let shortest = leases.iter().map(|lease| lease.claim.ttl).min().unwrap_or_default();
    let timeout = Crew::node_timeout(shortest);
    let mut answers: Vec<Result<Vec<Vote>>> = crew.nodes.iter().map(|_| Err(no_answer())).collect();
    let mut race = Race::new(crew.nodes.iter().enumerate().map(|(at, member)| {
        let (request, member) = (request.clone(), member.clone());
        (at, async move { request.ask(&member).await })
    }));
    race.run(timeout, GRACE, |at, answer| {
        crew.note(at, answer.is_ok());
        answers[at] = answer;
        (0..leases.len()).all(|item| verdict(crew.quorum(), &answers, item).is_some())
    })
    .await;
    drop(race);
    Ok(leases.iter().enumerate().map(|(item, lease)| settle(crew, lease, &answers, item, start)).collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Renewed,
    Lost,
}

/// What a majority of this one round says; what nodes said in other rounds does not count.
fn verdict(quorum: usize, answers: &[Result<Vec<Vote>>], item: usize) -> Option<Verdict> {
    let votes = || answers.iter().filter_map(|answer| answer.as_ref().ok()?.get(item));
    let renewed = votes().filter(|vote| matches!(vote, Vote::Renewed | Vote::Healed)).count();
    let refused = votes().filter(|vote| matches!(vote, Vote::Superseded | Vote::Held)).count();
    if renewed >= quorum {
        Some(Verdict::Renewed)
    } else if refused >= quorum {
        // As many as that can never be outvoted. Fewer have lost it by themselves, and cost their votes only.
        Some(Verdict::Lost)
    } else {
        None
    }
}

fn settle(
    crew: &Arc<Crew>,
    lease: &Lease,
    answers: &[Result<Vec<Vote>>],
    item: usize,
    start: Moment,
) -> Result<Renewal> {
    crew.attempts.keep(lease.claim.attempt, start, lease.claim.ttl);
    match verdict(crew.quorum(), answers, item) {
        Some(Verdict::Renewed) => {
            let healed = answers.iter().filter_map(|answer| answer.as_ref().ok()?.get(item));
            if healed.filter(|vote| **vote == Vote::Healed).count() > 0 {
                tracing::debug!(target: "distlock", { lock.name = %lease.claim.key }, "a node had the lock set again");
            }
            Ok(Renewal::Renewed(Some(Term { start, ttl: lease.claim.ttl })))
        }
        Some(Verdict::Lost) => {
            // What a minority still keeps of it would be in the way of the next one for a whole lease.
            if let Ok(parting) = Parting::of(crew, &lease.claim) {
                releasing::pay_later(crew, &parting, 0..crew.nodes.len());
            }
            crew.attempts.forget(lease.claim.attempt);
            Ok(Renewal::Lost(LossReason::Revoked))
        }
        None => Err(undecided(crew, answers, item)),
    }
}

fn undecided(crew: &Crew, answers: &[Result<Vec<Vote>>], item: usize) -> Error {
    let said = answers.iter().map(|answer| match answer {
        Ok(votes) => votes.get(item).map_or("nothing", |vote| vote.text()).to_owned(),
        Err(error) => error.to_string(),
    });
    let votes = list(&crew.places(), said);
    Error::new(ErrorKind::Unknown, format!("redlock: no majority has renewed it in one round: {votes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(votes: &[Option<Vote>]) -> Vec<Result<Vec<Vote>>> {
        votes.iter().map(|vote| vote.map_or_else(|| Err(no_answer()), |vote| Ok(vec![vote]))).collect()
    }

    #[test]
    fn only_a_majority_of_one_round_renews_or_loses() {
        use Vote::{Healed, Held, NoMemory, Renewed, Superseded};
        let cases: [(&[Option<Vote>], Option<Verdict>); 6] = [
            (&[Some(Renewed), Some(Healed), None], Some(Verdict::Renewed)),
            (&[Some(Renewed), None, None], None),
            (&[Some(Superseded), Some(Held), Some(Renewed)], Some(Verdict::Lost)),
            (&[Some(Superseded), Some(Renewed), Some(Renewed)], Some(Verdict::Renewed)),
            (&[Some(Superseded), Some(Renewed), None], None),
            (&[Some(NoMemory), Some(NoMemory), Some(Renewed)], None),
        ];
        for (votes, expected) in cases {
            assert_eq!(verdict(2, &answers(votes), 0), expected, "{votes:?}");
        }
    }
}
