//! One round of claims: the same ballot to every node at once.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::contract::{Busy, Claim, Claimed, Grant, Term};
use crate::engines::redis::heartbeat;
use crate::engines::redis::node::{self, Connection, Keys, Trust};
use crate::engines::redis::script::garbled;
use crate::engines::redlock::quarantine;
use crate::engines::redlock::release::{self, Parting};
use crate::engines::redlock::state::attempts::Attempt;
use crate::engines::redlock::state::claim_votes::{Held, Tally, Vote};
use crate::engines::redlock::wire::batch::{self, Answer, Answers, Ask};
use crate::engines::redlock::wire::nodes::{Crew, GRACE};
use crate::types::clock::{Moment, deadline};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::{AttemptId, FencingToken};

/// How much of the lease must be left when a majority has granted it.
const LEAST_VALIDITY_PART: u32 = 4;
/// How long whoever does not know the nodes yet waits for the others, which may tell that somebody has the lock.
const NEWCOMER_GRACE: Duration = Duration::from_millis(50);
/// The pause after split votes. Whoever came first tries again at once, when the others have taken theirs back; they try
/// again later, up to twice as late with every split in a row.
const FIRST_SPLIT: Duration = Duration::from_millis(2);
const LATER_SPLIT: Duration = Duration::from_millis(10);
const MOST_DOUBLINGS: u32 = 4;
/// How much later than the one before it a waiter looks when a lease ends, so that they do not split the votes.
const STAGGER: Duration = Duration::from_millis(15);
const MOST_STAGGERS: u32 = 20;
/// How often a node that does not vote yet is asked again at the least.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// What is sent to every node.
pub(crate) struct Request {
    pub(crate) keys: Keys,
    attempt: String,
    state: Attempt,
    ttl_ms: u64,
    /// `wake record`, and the same for a node whose messages do not reach us.
    told: String,
    untold: String,
    heartbeat_ms: u64,
    sent: Moment,
}

impl Request {
    fn new(crew: &Crew, claim: &Claim, state: Attempt, sent: Moment) -> Result<Request> {
        let record = node::write_record(&claim.record)?;
        Ok(Request {
            keys: crew.keys(&claim.key)?,
            attempt: claim.attempt.to_string(),
            state,
            ttl_ms: node::millis(claim.ttl),
            told: format!("{} {record}", crew.options.wake),
            untold: format!("- {record}"),
            heartbeat_ms: if claim.queue { node::millis(heartbeat(claim.ttl)) } else { 0 },
            sent,
        })
    }

    pub(crate) fn fill(&self, command: &mut Cmd, to: &Connection) {
        let rest = if to.hears() { &self.told } else { &self.untold };
        command.arg("claim").arg(&self.attempt).arg(self.state.ballot).arg(self.ttl_ms).arg(rest);
        command.arg(self.heartbeat_ms).arg(self.state.ticket).arg(u8::from(self.state.waits));
        command.arg(to.not_after(self.sent));
    }
}

fn read_vote(answer: Answer) -> Result<Vote> {
    let Answer { mut reply, now_us, hears, trust } = answer;
    Ok(match reply.word()?.as_str() {
        "ack" => match trust {
            Trust::Full => Vote::Granted,
            Trust::Young => Vote::Young,
            Trust::None => Vote::Distrusted,
        },
        "low" => Vote::Low(reply.word()?.parse().map_err(|_| garbled())?),
        "held" => {
            let ttl_left = u64::try_from(reply.int()?).ok().map(Duration::from_millis);
            let place = u32::try_from(reply.int()?).ok();
            let holder = node::holder(&reply.bytes()?, ttl_left, now_us);
            let tells = hears && holder.record.is_some();
            Vote::Held(Held { holder, place, tells })
        }
        "fresh" => Vote::Fresh,
        "quarantined" => Vote::Quarantined(Duration::from_millis(reply.unsigned()?)),
        "late" => Vote::Refused(Error::unavailable("the claim arrived after its time and was refused")),
        "ahead" => Vote::Refused(
            Error::new(ErrorKind::Foreign, "the ballot is more than a day ahead of the node's clock")
                .with_help("a clock is wrong by days, or somebody wrote the lock's fence by hand"),
        ),
        "foreign" => Vote::Refused(Error::new(ErrorKind::Foreign, format!("{:?} is not ours", reply.word()?))),
        "error" => Vote::Refused(node::refusal(&reply.word()?)),
        _ => return Err(garbled()),
    })
}

/// What a failed request says about the claim.
fn vote_of(answer: Result<Answer>) -> Vote {
    match answer.and_then(read_vote) {
        Ok(vote) => vote,
        Err(error) if error.may_be_applied() => Vote::Unanswered,
        Err(error) => Vote::Refused(error),
    }
}

/// Claims the lock: one round, and another if only the ballot was too low.
pub(crate) async fn claim(crew: &Arc<Crew>, claim: &Claim) -> Result<Claimed> {
    let mut state = crew.attempts.begin(claim, crew.clock.wall(), crew.now());
    if claim.queue {
        crew.nodes.iter().for_each(|member| member.node.listen(claim.attempt));
    }
    for is_last in [false, true] {
        let sent = crew.now();
        let request = Request::new(crew, claim, state, sent)?;
        let (tally, late) = round(crew, claim, request).await;
        if tally.is_granted() {
            let left = deadline(sent, claim.ttl, crew.drift).since(crew.now());
            if left >= claim.ttl / LEAST_VALIDITY_PART {
                see_off(crew, claim, late, None);
                let waits = |vote: &Vote| matches!(vote, Vote::Held(_) | Vote::Unanswered);
                crew.attempts.granted(claim.attempt, claim.queue && !tally.nodes(waits).is_empty());
                let term = Some(Term { start: sent, ttl: claim.ttl });
                return Ok(Claimed::Granted(Grant::new(FencingToken::new(state.ballot), term)));
            }
        }
        let parting = Parting::of_round(crew, claim, state.ballot)?;
        // Those whose connection broke have said nothing, and say nothing later, either.
        let broken = tally.nodes(|vote| matches!(vote, Vote::Unanswered));
        release::pay_later(crew, &parting, broken.into_iter().filter(|at| !late.behind().contains(at)));
        see_off(crew, claim, late, Some(parting.clone()));
        if tally.is_low() && !is_last {
            state.ballot = crew.attempts.raise(claim.attempt, tally.highest_ballot(), crew.clock.wall());
            continue;
        }
        return refuse(crew, claim, &tally, state.ballot, &parting).await;
    }
    Err(garbled())
}

/// Asks all nodes and waits until it is decided. Answers those as well who have not answered by then.
async fn round(crew: &Arc<Crew>, claim: &Claim, request: Request) -> (Tally, Answers) {
    let mut answers = batch::ask(crew, Ask::Claim(Box::new(request)), (0..crew.nodes.len()).collect());
    let mut tally = Tally::new(crew.nodes.len());
    let take = |tally: &mut Tally, at, answer| {
        let vote = vote_of(answer);
        observe(crew, at, &vote, claim);
        tally.set(at, vote);
    };
    answers
        .run(Crew::node_timeout(claim.ttl), GRACE, |at, answer| {
            take(&mut tally, at, answer);
            tally.is_decided()
        })
        .await;
    if tally.is_provisional() {
        answers
            .run(NEWCOMER_GRACE, Duration::ZERO, |at, answer| {
                take(&mut tally, at, answer);
                !tally.is_provisional()
            })
            .await;
    }
    (tally, answers)
}

fn observe(crew: &Arc<Crew>, at: usize, vote: &Vote, claim: &Claim) {
    crew.note(at, !matches!(vote, Vote::Unanswered | Vote::Refused(_)));
    if matches!(vote, Vote::Fresh) {
        quarantine::begin(crew, at, claim.ttl);
    }
}

/// Nodes that are late: what they answer is noted. If the claim was not granted, whatever they did is taken back. If it was,
/// and was released before it came to a node, then its place in the queue there is.
fn see_off(crew: &Arc<Crew>, claim: &Claim, mut late: Answers, parting: Option<Arc<Parting>>) {
    if late.is_over() {
        return;
    }
    let (crew, claim, waited_for) = (crew.clone(), claim.clone(), crew.begin_late());
    // tidy-allow(spawn): the caller has its answer; what is still on its way ends with the node's timeout
    crew.runtime.clone().spawn(async move {
        let _waited_for = waited_for;
        let behind = late.behind().to_vec();
        let (timeout, mut clear, mut queued) = (Crew::node_timeout(claim.ttl), Vec::new(), Vec::new());
        late.run(timeout, timeout, |at, answer| {
            let vote = vote_of(answer);
            observe(&crew, at, &vote, &claim);
            if !vote.keeps() && !matches!(vote, Vote::Unanswered) {
                clear.push(at);
            }
            if matches!(vote, Vote::Held(_)) {
                queued.push(at);
            }
            false
        })
        .await;
        late.behind().iter().for_each(|at| crew.note(*at, false));
        if let Some(parting) = parting {
            let owing: Vec<_> = behind.into_iter().filter(|at| !clear.contains(at)).collect();
            release::take_back(&crew, &parting, &owing).await;
        } else if claim.queue
            && crew.attempts.get(claim.attempt).is_none()
            && let Ok(parting) = Parting::of(&crew, &claim)
        {
            release::take_back(&crew, &parting, &queued).await;
        }
    });
}

/// The claim was not granted: takes back what a minority granted, and says why.
async fn refuse(
    crew: &Arc<Crew>,
    claim: &Claim,
    tally: &Tally,
    ballot: u64,
    parting: &Arc<Parting>,
) -> Result<Claimed> {
    let is_split = tally.is_contested() && !tally.is_held();
    let splits = crew.attempts.refused(claim.attempt, claim.queue && tally.held().next().is_some(), is_split);
    let granted = tally.nodes(Vote::keeps);
    let kept = release::take_back(crew, parting, &granted).await;
    let unanswered = tally.nodes(|vote| matches!(vote, Vote::Unanswered)).len() + kept;
    tracing::debug!(target: "distlock", { lock.name = %claim.key, votes = ?tally }, "a redlock round was not granted");
    let places = crew.places();
    if unanswered >= crew.nodes.len() + 1 - crew.quorum() && !tally.is_held() {
        return Err(tally.error(ErrorKind::Unknown, &places));
    }
    if tally.is_granted() {
        let slow = format!("redlock: the votes took longer than a lease of {:?} allows", claim.ttl);
        return Err(Error::unavailable(slow).with_help("ask for a longer ttl"));
    }
    if tally.is_contested() {
        return Ok(Claimed::Busy(busy(claim, tally, ballot, splits)));
    }
    match tally.quarantine() {
        // It is over by itself: whoever waits, waits for it.
        Some(left) if claim.queue => {
            let poll_after = Some(left.clamp(LATER_SPLIT, LONGEST_LOOK));
            Ok(Claimed::Busy(Busy { holder: None, poll_after }))
        }
        _ => {
            crew.attempts.forget(claim.attempt);
            Err(tally.error(tally.kind(), &places))
        }
    }
}

fn busy(claim: &Claim, tally: &Tally, ballot: u64, splits: u32) -> Busy {
    // The one that most nodes, or the last one of them, keep it for.
    let newest = tally.held().max_by_key(|held| held.holder.token.map(FencingToken::get));
    let holder = newest.map(|held| held.holder.clone());
    let jitter = AttemptId::random().fraction();
    let poll_after = if !claim.queue {
        None
    } else if !tally.is_held() {
        let window = f64::from(1 << splits.min(MOST_DOUBLINGS));
        Some(match tally.is_first(ballot) {
            true => FIRST_SPLIT.mul_f64(0.5 + jitter),
            false => LATER_SPLIT.mul_f64(0.5 + jitter * window),
        })
    } else if tally.held().filter(|held| held.tells).count() < tally.quorum() {
        // Nobody will tell: the caller's own retry interval.
        None
    } else {
        let place = tally.held().filter_map(|held| held.place).min().unwrap_or(0).min(MOST_STAGGERS);
        let turn = STAGGER.mul_f64(f64::from(place) + jitter / 2.0) + Duration::from_millis(1);
        let beat = heartbeat(claim.ttl) / 3;
        Some(tally.free_in().map_or(beat, |left| (left + turn).min(beat)))
    };
    Busy { holder, poll_after }
}
