//! The common case of claims and releases, in scripts that cost a node little. Every other case is asked of the full
//! script, `batch.lua`.

use redis::Cmd;

use crate::engines::redis::node::Connection;
use crate::engines::redis::script::garbled;
use crate::engines::redlock::protocol::claim::NodeClaim;
use crate::engines::redlock::protocol::release::NodeRelease;
use crate::engines::redlock::protocol::scripts::{LEAN_CLAIM, LEAN_RELEASE};
use crate::engines::redlock::state::known_note::KnownNote;
use crate::types::error::Result;

/// How long a claim is on its way at the most: by then the node refuses it as late.
const CLAIM_TIME_US: u64 = 1_000_000;
/// The full script refuses ballots that are a day ahead of the node's clock. An hour covers the error of what this client
/// knows of that clock.
const MAX_AHEAD_US: u64 = 23 * 60 * 60 * 1_000_000;

/// Room in a call for its numbers: of keys, a time and a lease.
const NUMBERS: usize = 48;

/// Which requests of a call the full script must be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Odd {
    /// None of the call was carried out, for a reason that is not about one lock.
    All,
    /// By their places in the call.
    Some(Vec<usize>),
}

/// Returns until when, by the node's clock, the lean script may vote for `claim`; `None` when the full script must be asked.
/// `not_after_us` is when the claim is late.
pub(crate) fn latest(claim: &NodeClaim, note: &KnownNote, not_after_us: u64) -> Option<u64> {
    let ballot = claim.ballot();
    let latest_us = note.votes_until(ballot, claim.ttl_ms())?.min(not_after_us);
    let is_soon_enough = latest_us.saturating_add(CLAIM_TIME_US) > not_after_us;
    let may_be_lean = claim.may_be_lean() && is_soon_enough && ballot < not_after_us.saturating_add(MAX_AHEAD_US);
    (may_be_lean && is_text_comparable(ballot) && is_text_comparable(latest_us)).then_some(latest_us)
}

/// Whether the script may compare a number with others as text: all of them have 16 digits.
fn is_text_comparable(number: u64) -> bool {
    (1_000_000_000_000_000..10_000_000_000_000_000).contains(&number)
}

/// Asks a node to vote for `claims`, which have one lease, until `latest_us`. Returns the node's clock and the claims that
/// the full script must be asked for; the node has voted for the others. `is_first`: whether the node may not know the script.
pub(crate) async fn claim(
    connection: &Connection,
    note_key: &str,
    note: &KnownNote,
    latest_us: u64,
    is_first: bool,
    claims: &[&NodeClaim],
) -> Result<(u64, Odd)> {
    let Some(first) = claims.first() else { return Ok((0, Odd::Some(Vec::new()))) };
    let hears = connection.hears();
    let fill = |command: &mut Cmd| {
        command.arg(2 * claims.len() + 1);
        for claim in claims {
            command.arg(&claim.keys.lock).arg(&claim.keys.fence);
        }
        command.arg(note_key).arg(note.text()).arg(latest_us).arg(first.ttl_ms());
        for claim in claims {
            command.arg(&*claim.value(hears)).arg(claim.ballot_text());
        }
    };
    let bytes = claims.iter().map(|claim| claim.keys.lock.len() + claim.keys.fence.len() + claim.size()).sum::<usize>();
    let room = (4 * claims.len() + 5, bytes + note_key.len() + note.text().len() + NUMBERS);
    let reply = connection.run_text(&LEAN_CLAIM, is_first, first.ballot_text(), room, fill).await?;
    let mut words = reply.split_ascii_whitespace();
    let now_us = words.next().and_then(|word| word.parse().ok()).ok_or_else(garbled)?;
    Ok((now_us, read_odd(words, claims.len())?))
}

/// Asks a node to release holds that it has voted for. Returns the releases that the full script must be asked for.
pub(crate) async fn release(connection: &Connection, is_first: bool, releases: &[&NodeRelease]) -> Result<Odd> {
    let Some(first) = releases.first() else { return Ok(Odd::Some(Vec::new())) };
    let fill = |command: &mut Cmd| {
        command.arg(2 * releases.len());
        for release in releases {
            command.arg(&release.keys.lock);
        }
        for release in releases {
            command.arg(&release.keys.queue);
        }
        for release in releases {
            command.arg(&release.head);
        }
    };
    let size = |release: &&NodeRelease| release.keys.lock.len() + release.keys.queue.len() + release.head.len();
    let room = (3 * releases.len() + 1, releases.iter().map(size).sum::<usize>() + NUMBERS);
    let reply = connection.run_text(&LEAN_RELEASE, is_first, &first.head, room, fill).await?;
    read_odd(reply.split_ascii_whitespace(), releases.len())
}

/// Reads the numbers of requests, from 1 to `count`.
fn read_odd<'a>(words: impl Iterator<Item = &'a str>, count: usize) -> Result<Odd> {
    let mut odd = Vec::new();
    for word in words {
        match word.parse::<usize>() {
            Ok(number) if (1..=count).contains(&number) => odd.push(number - 1),
            _ if word == "all" && odd.is_empty() => return Ok(Odd::All),
            _ => return Err(garbled()),
        }
    }
    Ok(Odd::Some(odd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_the_requests_that_were_not_carried_out() {
        let read = |text: &str| read_odd(text.split_ascii_whitespace(), 3);
        assert_eq!(read("").unwrap(), Odd::Some(vec![]));
        assert_eq!(read(" 1 3").unwrap(), Odd::Some(vec![0, 2]));
        assert_eq!(read(" all").unwrap(), Odd::All);
        for wrong in ["0", "4", "x", "-1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
