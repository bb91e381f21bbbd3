//! When a waiter whose claim was not granted claims again.

use std::time::Duration;

use crate::engines::redlock::state::claim_votes::ClaimVotes;

/// The pause after split votes. The first of the claims that split them repeats as soon as the others have taken their
/// votes back. The others repeat later, up to twice as late with every split in a row.
const FIRST_CLAIM_PAUSE: Duration = Duration::from_millis(2);
const OTHER_CLAIM_PAUSE: Duration = Duration::from_millis(10);
const MAX_DOUBLINGS: u32 = 4;
/// How much later than the waiter before it a waiter claims when a lease ends, so that waiters do not split the votes.
const STAGGER: Duration = Duration::from_millis(15);
const MAX_STAGGERS: u32 = 20;
/// The longest pause before a node in quarantine is asked again.
const MAX_QUARANTINE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause while a node may keep a vote for a waiter, which blocks other claims there.
const MAX_LEFTOVERS_PAUSE: Duration = Duration::from_secs(1);

/// Returns when to claim again after other owners' votes; `None` for the caller's own retry interval. `splits` is how often
/// in a row the votes were split, `heartbeat` how long the nodes keep the waiter queued, `jitter` a random part of one.
pub(crate) fn after_contention(
    votes: &ClaimVotes,
    ballot: u64,
    splits: u32,
    heartbeat: Duration,
    jitter: f64,
) -> Option<Duration> {
    if !votes.is_held() {
        let window = f64::from(1 << splits.min(MAX_DOUBLINGS));
        return Some(match votes.is_first(ballot) {
            true => FIRST_CLAIM_PAUSE.mul_f64(0.5 + jitter),
            false => OTHER_CLAIM_PAUSE.mul_f64(0.5 + jitter * window),
        });
    }
    if votes.held().filter(|held| held.notifies).count() < votes.quorum() {
        return None;
    }
    let place = votes.held().filter_map(|held| held.place).min().unwrap_or(0).min(MAX_STAGGERS);
    let stagger = STAGGER.mul_f64(f64::from(place) + jitter / 2.0) + Duration::from_millis(1);
    let keep_alive = heartbeat / 3;
    Some(votes.free_in().map_or(keep_alive, |left| (left + stagger).min(keep_alive)))
}

/// Returns when to claim again, instead of after `pause`, where a node may keep a vote for the waiter that was not taken back:
/// the next claim of the waiter takes it back.
pub(crate) fn after_leftovers(pause: Option<Duration>) -> Duration {
    pause.map_or(MAX_LEFTOVERS_PAUSE, |pause| pause.min(MAX_LEFTOVERS_PAUSE))
}

/// Returns when to claim again where a majority needs a node that is in quarantine for `left`.
pub(crate) fn after_quarantine(left: Duration) -> Duration {
    left.clamp(OTHER_CLAIM_PAUSE, MAX_QUARANTINE_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::redlock::state::claim_votes::{ClaimVote, HeldVote};
    use crate::types::owner::Holder;
    use crate::types::token::FencingToken;

    const HEARTBEAT: Duration = Duration::from_secs(30);

    fn held(token: u64, left_ms: u64, notifies: bool) -> ClaimVote {
        let holder = Holder::new(None, Some(FencingToken::new(token)));
        let holder = holder.with_ttl_left(Some(Duration::from_millis(left_ms)));
        ClaimVote::Held(HeldVote { holder, place: Some(2), notifies })
    }

    fn votes(each: [ClaimVote; 3]) -> ClaimVotes {
        let mut votes = ClaimVotes::new(each.len());
        each.into_iter().enumerate().for_each(|(node, vote)| votes.set(node, vote));
        votes
    }

    #[test]
    fn after_a_split_the_first_claim_repeats_before_the_others() {
        let split = || votes([held(7, 1000, true), held(8, 1000, true), ClaimVote::Granted]);
        let pause = |ballot, splits| after_contention(&split(), ballot, splits, HEARTBEAT, 1.0).unwrap();
        assert_eq!(pause(6, 9), Duration::from_millis(3));
        assert_eq!(pause(9, 1), Duration::from_millis(25));
        assert_eq!(pause(9, 4), pause(9, 40), "the pause stops growing");
    }

    #[test]
    fn a_waiter_claims_when_the_lease_ends_or_its_place_in_the_queue_would() {
        let pause = |left_ms, notifies| {
            let votes = votes([held(7, left_ms, notifies), held(7, left_ms, notifies), ClaimVote::Granted]);
            after_contention(&votes, 9, 0, HEARTBEAT, 0.0)
        };
        assert_eq!(pause(100, true), Some(Duration::from_millis(100 + 2 * 15 + 1)));
        assert_eq!(pause(60_000, true), Some(HEARTBEAT / 3));
        assert_eq!(pause(100, false), None, "no notification comes: the caller polls");
    }

    #[test]
    fn a_vote_that_was_not_taken_back_shortens_the_pause() {
        let after = |ms| after_leftovers(Some(Duration::from_millis(ms))).as_millis();
        assert_eq!([after(300), after(9000), after_leftovers(None).as_millis()], [300, 1000, 1000]);
    }

    #[test]
    fn a_node_in_quarantine_is_asked_every_second_at_least() {
        let after = |ms| after_quarantine(Duration::from_millis(ms)).as_millis();
        assert_eq!([after(0), after(300), after(9000)], [10, 300, 1000]);
    }
}
