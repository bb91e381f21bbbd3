//! Locks as a majority of the nodes sees them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::contract::LockInfo;
use crate::engines::redis::node::{Keys, Lane};
use crate::engines::redis::script::garbled;
use crate::engines::redlock::protocol::scripts::BREAK;
use crate::engines::redlock::release::{self, Parting};
use crate::engines::redlock::state::claim_votes::list as list_votes;
use crate::engines::redlock::wire::calls::Race;
use crate::engines::redlock::wire::nodes::{Crew, GRACE, Member, no_answer};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::owner::Holder;
use crate::types::token::{AttemptId, FencingToken};

/// How long a node may take to show what it has.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks all nodes; what those say that have answered when a majority has.
async fn ask_all<T, F>(crew: &Crew, ask: impl Fn(Arc<Member>) -> F) -> Result<Vec<Result<T>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    crew.gather(Lane::Main, PATIENCE).await?;
    let mut answers: Vec<Result<T>> = crew.nodes.iter().map(|_| Err(no_answer())).collect();
    let mut race = Race::new(crew.nodes.iter().enumerate().map(|(at, member)| (at, ask(member.clone()))));
    race.run(PATIENCE, GRACE, |at, answer| {
        answers[at] = answer;
        answers.iter().filter(|answer| answer.is_ok()).count() >= crew.quorum()
    })
    .await;
    Ok(answers)
}

/// The error when no majority answers.
fn too_few<T>(crew: &Crew, kind: ErrorKind, answers: &[Result<T>]) -> Error {
    let said = answers.iter().map(|answer| match answer {
        Ok(_) => "answered".to_owned(),
        Err(error) => error.to_string(),
    });
    Error::new(kind, format!("redlock: no majority answers: {}", list_votes(&crew.places(), said)))
}

fn majority<T>(crew: &Crew, answers: Vec<Result<T>>) -> Result<Vec<T>> {
    if answers.iter().filter(|answer| answer.is_ok()).count() < crew.quorum() {
        return Err(too_few(crew, ErrorKind::Unavailable, &answers));
    }
    Ok(answers.into_iter().filter_map(Result::ok).collect())
}

/// The locks whose names begin with `start`.
pub(super) async fn list(crew: &Crew, start: &str) -> Result<Vec<LockInfo>> {
    let answers = ask_all(crew, |member| {
        let (prefix, start) = (crew.options.prefix.clone(), start.to_owned());
        async move { member.connection(Lane::Main)?.list(&prefix, &start).await }
    })
    .await?;
    let seen = majority(crew, answers)?;
    let mut locks: BTreeMap<Key, Vec<LockInfo>> = BTreeMap::new();
    for lock in seen.into_iter().flatten() {
        locks.entry(lock.key.clone()).or_default().push(lock);
    }
    Ok(locks.into_iter().filter_map(|(key, views)| merge(crew, key, views)).collect())
}

/// One lock.
pub(super) async fn get(crew: &Crew, key: &Key) -> Result<Option<LockInfo>> {
    let answers = ask_all(crew, |member| {
        let (prefix, key) = (crew.options.prefix.clone(), key.clone());
        async move { member.connection(Lane::Main)?.get(&prefix, &key).await }
    })
    .await?;
    let views = majority(crew, answers)?;
    Ok(merge(crew, key.clone(), views.into_iter().flatten().collect()))
}

/// What a majority agrees on. A hold of a minority is a claim that is on its way in or out.
fn merge(crew: &Crew, key: Key, views: Vec<LockInfo>) -> Option<LockInfo> {
    let mut holders: BTreeMap<Option<FencingToken>, Vec<Holder>> = BTreeMap::new();
    let mut waiters = Vec::new();
    for view in views {
        if view.waiters.len() > waiters.len() {
            waiters = view.waiters;
        }
        for holder in view.holders {
            holders.entry(holder.token).or_default().push(holder);
        }
    }
    let holder = holders.into_values().find(|same| same.len() >= crew.quorum()).map(|mut same| {
        // The lock is gone when the majority is, not when the last node has let it go.
        same.sort_by_key(|holder| std::cmp::Reverse(holder.ttl_left));
        same.swap_remove(crew.quorum() - 1)
    });
    (holder.is_some() || !waiters.is_empty()).then(|| LockInfo::new(key, holder, waiters))
}

enum Broken {
    Done(AttemptId),
    NotHeld,
    Foreign(String),
}

/// Ends the hold with `token`. Goes on when its caller does not: one node is enough to tell the holder that its lock is lost,
/// which then leaves it to the others until its lease ends.
pub(super) async fn force_release(crew: &Arc<Crew>, key: &Key, token: FencingToken) -> Result<()> {
    let (keys, its_crew) = (crew.keys(key)?, crew.clone());
    // tidy-allow(spawn): see above; it ends when the nodes have answered, or with their timeout
    let breaking = crew.runtime.spawn(async move { break_everywhere(&its_crew, keys, token).await });
    breaking.await.unwrap_or_else(|_| Err(Error::unknown("redlock: the engine was closed before the nodes answered")))
}

async fn break_everywhere(crew: &Arc<Crew>, keys: Keys, token: FencingToken) -> Result<()> {
    let answers = ask_all(crew, |member| {
        let keys = keys.clone();
        async move { break_on(&member, &keys, token).await }
    })
    .await?;
    let broken = answers.iter().find_map(|answer| match answer {
        Ok(Broken::Done(attempt)) => Some(*attempt),
        _ => None,
    });
    if let Some(attempt) = broken {
        // On the other nodes too, or the holder's next renewal would set it again there.
        let parting = Parting::forced(keys, attempt, token.get(), crew.now());
        return release::everywhere(crew, &parting).await.map(drop);
    }
    let unanswered = answers.iter().filter(|answer| answer.as_ref().is_err_and(Error::may_be_applied)).count();
    let answered = majority(crew, answers).map_err(|error| match unanswered {
        0 => error,
        _ => Error::new(ErrorKind::Unknown, error.to_string()),
    })?;
    let foreign = answered.into_iter().find_map(|answer| match answer {
        Broken::Foreign(kind) => Some(kind),
        _ => None,
    });
    Err(match foreign {
        Some(kind) => Error::new(ErrorKind::Foreign, format!("redlock: the key holds a {kind} that is not ours"))
            .with_help("whoever made it must end it"),
        None => Error::new(ErrorKind::NotHeld, format!("nobody holds it with token {token}")),
    })
}

async fn break_on(member: &Member, keys: &Keys, token: FencingToken) -> Result<Broken> {
    let connection = member.connection(Lane::Main)?;
    let Keys { lock, queue, waiters, fence } = keys;
    let fill = |command: &mut Cmd, nonce| {
        command.arg(4).arg(lock).arg(queue).arg(waiters).arg(fence).arg(nonce).arg(token.get());
    };
    let mut reply = connection.run(&BREAK, fill).await?;
    match reply.word()?.as_str() {
        "broken" => Ok(Broken::Done(reply.word()?.parse().map_err(|_| garbled())?)),
        "not held" => Ok(Broken::NotHeld),
        "foreign" => Ok(Broken::Foreign(reply.word()?)),
        _ => Err(garbled()),
    }
}
