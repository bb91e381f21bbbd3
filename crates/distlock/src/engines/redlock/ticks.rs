//! The notes of a lock's ticks, on a majority of the nodes.
//!
//! A note counts when a majority has stored it for the attempt that holds the lock there, and every read asks a majority, so
//! it finds each note that counts. What only a minority has stored may or may not be found: a holder that finds such a note of
//! a tick that is done writes it again, until a majority has it, before it believes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::contract::{Claim, LockTicks, TickNotes};
use crate::engines::redis::node::Lane;
use crate::engines::redis::ticks::StoredNote;
use crate::engines::redlock::error::{by_node, no_reply};
use crate::engines::redlock::inspect::{INSPECT_WAIT, call_all, majority};
use crate::engines::redlock::wire::nodes::{LATE_REPLY_WAIT, NodeState, Nodes};
use crate::engines::shared::listing::Allowance;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote};

/// Returns the notes of a lock, or that of one tick, as a majority knows them.
pub(super) async fn read(nodes: &Nodes, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
    let replies = call_all(nodes, |state: Arc<NodeState>| {
        let (prefix, key, tick) = (nodes.options.prefix.clone(), key.clone(), tick.cloned());
        async move { state.connection(Lane::Main)?.ticks(&prefix, &key, tick.as_ref()).await }
    })
    .await?;
    let replies: Vec<TickNotes> = majority(nodes, replies)?.into_iter().map(|(found, _)| found).collect();
    let mut clocks: Vec<u64> = replies.iter().map(|found| found.now_ms).collect();
    clocks.sort_unstable();
    let views = replies.into_iter().flat_map(|found| found.notes).collect();
    Ok(TickNotes { now_ms: clocks[clocks.len() / 2], ..merge(nodes.quorum(), views) })
}

/// Returns the notes of all locks whose names begin with `start`.
pub(super) async fn list(nodes: &Nodes, start: &str) -> Result<Vec<LockTicks>> {
    let replies = call_all(nodes, |state: Arc<NodeState>| {
        let (prefix, start) = (nodes.options.prefix.clone(), start.to_owned());
        async move { state.connection(Lane::Main)?.list_ticks(&prefix, &start, &mut Allowance::new()).await }
    })
    .await?;
    let mut locks: BTreeMap<Key, Vec<TickNote>> = BTreeMap::new();
    for (key, notes) in majority(nodes, replies)?.into_iter().flatten() {
        locks.entry(key).or_default().extend(notes);
    }
    let merged = locks.into_iter().map(|(key, views)| (key, merge(nodes.quorum(), views).notes));
    Ok(merged.filter(|(_, notes)| !notes.is_empty()).collect())
}

/// Writes a note on all nodes that hold the lock for `claim`. Returns whether a majority has stored it.
pub(super) async fn write(nodes: &Nodes, claim: &Claim, note: &TickNote) -> Result<bool> {
    nodes.await_quorum(Lane::Main, INSPECT_WAIT).await?;
    let mut replies: Vec<Result<bool>> = nodes.iter().map(|_| Err(no_reply())).collect();
    nodes
        .call_all(|state| {
            let (prefix, claim, note) = (nodes.options.prefix.clone(), claim.clone(), note.clone());
            async move {
                match state.connection(Lane::Main)?.note_tick(&prefix, &claim, &note).await? {
                    StoredNote::Stored => Ok(true),
                    StoredNote::Refused => Ok(false),
                    // No reader will find it there.
                    StoredNote::Forgotten => {
                        Err(Error::unavailable("its clock is ahead: the note is forgotten already"))
                    }
                }
            }
        })
        .collect(INSPECT_WAIT, LATE_REPLY_WAIT, |at, reply| {
            replies[at] = reply;
            replies.iter().filter(|reply| matches!(reply, Ok(true))).count() >= nodes.quorum()
        })
        .await;
    judge(nodes.quorum(), replies, &nodes.places())
}

/// Returns what the replies of the nodes to a note mean.
fn judge(quorum: usize, replies: Vec<Result<bool>>, places: &[&str]) -> Result<bool> {
    let stored = replies.iter().filter(|reply| matches!(reply, Ok(true))).count();
    if stored >= quorum {
        return Ok(true);
    }
    let may_be_stored = |reply: &Result<bool>| reply.as_ref().is_err_and(Error::may_be_applied);
    let doubtful = replies.iter().filter(|reply| may_be_stored(reply)).count();
    if stored + doubtful == 0 && replies.iter().filter(|reply| matches!(reply, Ok(false))).count() >= quorum {
        return Ok(false);
    }
    let states = replies.iter().map(|reply| match reply {
        Ok(true) => "stored".to_owned(),
        Ok(false) => "not the holder there".to_owned(),
        Err(error) => error.to_string(),
    });
    let message = format!("redlock: no majority has stored the note of a tick: {}", by_node(places, states));
    if stored + doubtful > 0 {
        return Err(Error::unknown(message));
    }
    let refused = replies.into_iter().filter_map(Result::err).find(|error| !error.is_retryable());
    Err(refused.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, message)))
}

/// Returns what the notes of several nodes say together.
fn merge(quorum: usize, views: Vec<TickNote>) -> TickNotes {
    let mut by_tick: BTreeMap<Tick, Vec<TickNote>> = BTreeMap::new();
    for note in views {
        by_tick.entry(note.tick.clone()).or_default().push(note);
    }
    let mut merged = TickNotes::at(0, Vec::new());
    for (_, notes) in by_tick {
        let (done, started): (Vec<_>, Vec<_>) = notes.into_iter().partition(TickNote::is_done);
        let confirmed = done.iter().find(|note| done.iter().filter(|same| same == note).count() >= quorum);
        match confirmed {
            Some(note) => merged.notes.push(note.clone()),
            None => {
                merged.unconfirmed.extend(done.into_iter().max_by_key(|note| note.token));
                merged.notes.extend(started.into_iter().max_by_key(|note| (note.starts, note.token)));
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::types::owner::{OwnerId, Process, Record};
    use crate::types::token::FencingToken;

    const HOUR: Duration = Duration::from_secs(3600);

    fn note(token: u64, starts: u32) -> TickNote {
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let tick = Tick::named("a").unwrap();
        TickNote::start(tick, 1_000, HOUR, FencingToken::new(token), record).with_starts(starts)
    }

    fn done(token: u64) -> TickNote {
        note(token, 1).done(HOUR, 2_000, HOUR)
    }

    #[test]
    fn a_tick_is_done_when_a_majority_says_so_and_every_start_counts() {
        let merged = merge(2, vec![done(1), done(1), note(2, 2)]);
        assert_eq!((merged.notes, merged.unconfirmed), (vec![done(1)], vec![]));
        let merged = merge(2, vec![done(1), note(2, 3), note(1, 2)]);
        assert_eq!((merged.notes, merged.unconfirmed), (vec![note(2, 3)], vec![done(1)]));
        let merged = merge(2, vec![done(1), done(2)]);
        assert_eq!((merged.notes, merged.unconfirmed), (vec![], vec![done(2)]), "two runs, of which neither counts");
    }

    #[test]
    fn a_note_of_a_minority_is_unknown_and_one_of_no_node_was_refused() {
        let away = || Err(Error::unavailable("away"));
        let lost = || Err(Error::unknown("no reply"));
        let kind = |replies: Vec<Result<bool>>| judge(2, replies, &["a", "b", "c"]).map_err(|error| error.kind());
        assert_eq!(kind(vec![Ok(true), Ok(false), Ok(true)]), Ok(true));
        assert_eq!(kind(vec![Ok(false), away(), Ok(false)]), Ok(false));
        assert_eq!(kind(vec![Ok(true), Ok(false), Ok(false)]), Err(ErrorKind::Unknown), "one node has it");
        assert_eq!(kind(vec![lost(), Ok(false), Ok(false)]), Err(ErrorKind::Unknown), "one node may have it");
        assert_eq!(kind(vec![away(), away(), Ok(false)]), Err(ErrorKind::Unavailable));
        let foreign = Err(Error::new(ErrorKind::Foreign, "not ours"));
        assert_eq!(kind(vec![away(), away(), foreign]), Err(ErrorKind::Foreign));
    }
}
