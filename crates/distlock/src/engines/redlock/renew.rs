//! Renewing holds on all nodes, each of which sets again what it has forgotten unless others have tried since.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::contract::{Lease, Renewal, Term};
use crate::engines::redis::node::{self, Connection, Keys, Lane};
use crate::engines::redis::script::garbled;
use crate::engines::redlock::heal;
use crate::engines::redlock::protocol::scripts::RENEW;
use crate::engines::redlock::release::{self, Parting};
use crate::engines::redlock::state::claim_votes::list;
use crate::engines::redlock::wire::calls::Race;
use crate::engines::redlock::wire::nodes::{Crew, GRACE, no_answer};
use crate::types::clock::{Moment, deadline};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::LossReason;
use crate::types::token::AttemptId;

/// How many locks one call renews: a fraction of a millisecond of the node's time.
const CHUNK: usize = 128;
/// How long renewals wait for a majority to be connected.
const PATIENCE: Duration = Duration::from_millis(400);

/// What one node says to the renewal of one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    Renewed,
    /// The lock was missing there and is set again.
    Healed,
    /// The lock is missing there and a higher ballot is the last: others have been there since, or it was released.
    Passed(u64),
    /// It was ended by force there, or its fence is not ours.
    Ended,
    /// Somebody else has it there.
    Held,
    NoMemory,
}

impl Vote {
    fn read(number: i64) -> Result<Vote> {
        match number {
            1 => Ok(Vote::Renewed),
            2 => Ok(Vote::Healed),
            0 => Ok(Vote::Ended),
            -1 => Ok(Vote::Held),
            -2 => Ok(Vote::NoMemory),
            _ => u64::try_from(number).map(Vote::Passed).map_err(|_| garbled()),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Vote::Renewed => "renewed",
            Vote::Healed => "set again",
            Vote::Passed(_) | Vote::Ended => "superseded",
            Vote::Held => "held by another",
            Vote::NoMemory => "no memory to set it again",
        }
    }
}

/// What is sent to every node.
pub(crate) struct Request {
    node_key: String,
    pub(crate) items: Vec<Item>,
    guard: u8,
}

#[derive(Clone)]
pub(crate) struct Item {
    keys: Keys,
    pub(crate) id: AttemptId,
    ballot: u64,
    ttl_ms: u64,
    rest: String,
    /// The higher ballot by which the node is asked to set it again; 0 for none.
    bar: u64,
}

impl Request {
    fn new(crew: &Crew, leases: &[Lease]) -> Result<Request> {
        let item = |lease: &Lease| -> Result<Item> {
            let record = node::write_record(&lease.claim.record)?;
            Ok(Item {
                keys: crew.keys(&lease.claim.key)?,
                id: lease.claim.attempt,
                ballot: lease.token.get(),
                ttl_ms: node::millis(lease.claim.ttl),
                rest: format!("{} {record}", crew.options.wake),
                bar: 0,
            })
        };
        let items = leases.iter().map(item).collect::<Result<_>>()?;
        Ok(Request { node_key: crew.options.node_key(), items, guard: u8::from(crew.options.restart_guard) })
    }

    pub(crate) fn name(&self, item: usize) -> &str {
        &self.items[item].keys.lock
    }

    /// The same for some of them, each by the ballot that the node has told.
    pub(crate) fn by(&self, bars: &[(usize, u64)]) -> Request {
        let items = bars.iter().map(|(at, bar)| Item { bar: *bar, ..self.items[*at].clone() });
        Request { node_key: self.node_key.clone(), items: items.collect(), guard: self.guard }
    }

    /// Asks a node, if there is a connection to it.
    pub(crate) async fn ask(&self, connection: Option<&Connection>) -> Result<Vec<Vote>> {
        let connection = connection.ok_or_else(|| Error::unavailable("no connection"))?;
        let fill = |command: &mut Cmd, nonce| {
            command.arg(1 + 2 * self.items.len()).arg(&self.node_key);
            for Item { keys, .. } in &self.items {
                command.arg(&keys.lock).arg(&keys.fence);
            }
            command.arg(nonce).arg(self.guard);
            for item in &self.items {
                command.arg(item.id.to_string()).arg(item.ballot).arg(item.ttl_ms).arg(&item.rest).arg(item.bar);
            }
        };
        let mut reply = connection.run(&RENEW, fill).await?;
        let votes = self.items.iter().map(|_| Vote::read(reply.int()?)).collect::<Result<_>>()?;
        if reply.is_empty() { Ok(votes) } else { Err(garbled()) }
    }
}

/// Renews; one answer for each lease, in their order.
pub(crate) async fn renew(crew: &Arc<Crew>, leases: &[Lease]) -> Vec<Result<Renewal>> {
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
    let connections: Vec<_> = crew.nodes.iter().map(|member| member.connection(Lane::Reserved).ok()).collect();
    let mut race = Race::new(connections.iter().cloned().enumerate().map(|(at, connection)| {
        let request = request.clone();
        (at, async move { request.ask(connection.as_ref()).await })
    }));
    race.run(timeout, GRACE, |at, answer| {
        crew.note(at, answer.is_ok());
        answers[at] = answer;
        (0..leases.len()).all(|item| verdict(crew.quorum(), &answers, item).is_some())
    })
    .await;
    let renewals = leases.iter().enumerate().map(|(item, lease)| settle(crew, lease, &answers, item, start)).collect();
    let kept = leases.iter().enumerate().filter(|(item, _)| is_kept(crew, &answers, *item));
    let kept = kept.map(|(item, lease)| (item, deadline(start, lease.claim.ttl, crew.drift))).collect();
    heal::begin(crew, Round { request, connections, kept, answers, late: race, timeout });
    Ok(renewals)
}

/// A round that is decided.
pub(crate) struct Round {
    pub(crate) request: Arc<Request>,
    /// What each node was asked by.
    pub(crate) connections: Vec<Option<Connection>>,
    /// Which locks a majority has renewed, and when each of these leases ends.
    pub(crate) kept: Vec<(usize, Moment)>,
    pub(crate) answers: Vec<Result<Vec<Vote>>>,
    /// Nodes that have not answered yet.
    pub(crate) late: Race<Result<Vec<Vote>>>,
    pub(crate) timeout: Duration,
}

fn is_kept(crew: &Crew, answers: &[Result<Vec<Vote>>], item: usize) -> bool {
    verdict(crew.quorum(), answers, item) == Some(Verdict::Renewed)
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
    let refused = votes().filter(|vote| matches!(vote, Vote::Passed(_) | Vote::Ended | Vote::Held)).count();
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
                release::pay_later(crew, &parting, 0..crew.nodes.len());
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
        use Vote::{Ended, Healed, Held, NoMemory, Passed, Renewed};
        let cases: [(&[Option<Vote>], Option<Verdict>); 7] = [
            (&[Some(Renewed), Some(Healed), None], Some(Verdict::Renewed)),
            (&[Some(Renewed), None, None], None),
            (&[Some(Passed(9)), Some(Held), Some(Renewed)], Some(Verdict::Lost)),
            (&[Some(Passed(9)), Some(Ended), Some(Renewed)], Some(Verdict::Lost)),
            (&[Some(Passed(9)), Some(Renewed), Some(Renewed)], Some(Verdict::Renewed)),
            (&[Some(Passed(9)), Some(Renewed), None], None),
            (&[Some(NoMemory), Some(NoMemory), Some(Renewed)], None),
        ];
        for (votes, expected) in cases {
            assert_eq!(verdict(2, &answers(votes), 0), expected, "{votes:?}");
        }
    }
}
