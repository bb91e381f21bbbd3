//! Setting a lock again on a node that has forgotten it, or never had it, and that others have tried since.
//!
//! By itself a node sets a lock again only if it knows of no higher ballot: it cannot tell a contender's vote that was taken
//! back from the end of the hold. The holder can: a majority has just renewed the lock, so no other claim was granted since, nor
//! can be while the lease lasts. It asks the node again by the higher ballot that the node told. The node does it only if that
//! is still the last one: a vote there, or the release of this hold, goes before. The node keeps the higher ballot, and the
//! holder its token.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::redis::node::Connection;
use crate::engines::redlock::renew::{Request, Round, Vote};
use crate::engines::redlock::wire::calls::Race;
use crate::engines::redlock::wire::nodes::Crew;
use crate::types::clock::Moment;
use crate::types::error::Result;

/// How often a node is asked after one renewal, if contenders come in between each time.
const TRIES: usize = 3;

/// Which locks a node lacks, and the ballot that it told for each.
type Bars = Vec<(usize, u64)>;

struct Healing {
    crew: Arc<Crew>,
    request: Arc<Request>,
    /// Of the same life of each node as the ballots that it told.
    connections: Vec<Option<Connection>>,
    kept: Vec<(usize, Moment)>,
    timeout: Duration,
}

/// Asks those nodes again that lack locks which `round` has renewed, and those as well that are late to say so.
pub(super) fn begin(crew: &Arc<Crew>, round: Round) {
    let Round { request, connections, kept, answers, mut late, timeout } = round;
    let healing = Healing { crew: crew.clone(), request, connections, kept, timeout };
    let lacking = healing.lacking(answers.into_iter().enumerate());
    if lacking.is_empty() && late.is_over() || healing.kept.is_empty() {
        return;
    }
    let healing = Arc::new(healing);
    // tidy-allow(spawn): the keeper has its answer; this ends when the nodes have answered, or with their timeouts
    crew.runtime.spawn(async move {
        healing.clone().heal_all(lacking).await;
        let mut behind = Vec::new();
        late.run(timeout, timeout, |at, answer| {
            behind.push((at, answer));
            false
        })
        .await;
        drop(late);
        let lacking = healing.lacking(behind);
        healing.heal_all(lacking).await;
    });
}

impl Healing {
    /// The nodes that lack a lock which was renewed elsewhere.
    fn lacking(&self, answers: impl IntoIterator<Item = (usize, Result<Vec<Vote>>)>) -> Vec<(usize, Bars)> {
        let bars = |votes: &[Vote]| -> Bars {
            let bar = |(item, _): &(usize, Moment)| match votes.get(*item) {
                Some(Vote::Passed(bar)) => Some((*item, *bar)),
                _ => None,
            };
            self.kept.iter().filter_map(bar).collect()
        };
        let answered = answers.into_iter().filter_map(|(at, answer)| Some((at, bars(&answer.ok()?))));
        answered.filter(|(_, bars)| !bars.is_empty()).collect()
    }

    async fn heal_all(self: Arc<Healing>, lacking: Vec<(usize, Bars)>) {
        let mut race = Race::new(lacking.into_iter().map(|(at, bars)| {
            let healing = self.clone();
            (at, async move { healing.heal(at, bars).await })
        }));
        while race.next().await.is_some() {}
    }

    async fn heal(&self, at: usize, mut bars: Bars) {
        for _ in 0..TRIES {
            // What a node told after the lease, or after the release has begun, says nothing about others any more.
            bars.retain(|(item, _)| self.is_held(*item));
            if bars.is_empty() {
                return;
            }
            let request = self.request.by(&bars);
            let asked = tokio::time::timeout(self.timeout, request.ask(self.connections[at].as_ref())).await;
            let Ok(Ok(votes)) = asked else { return };
            let mut again = Bars::new();
            for ((item, _), vote) in bars.into_iter().zip(votes) {
                match vote {
                    Vote::Passed(bar) => again.push((item, bar)),
                    Vote::Healed => {
                        let (lock, node) = (self.request.name(item), self.crew.nodes[at].node.place());
                        tracing::debug!(target: "distlock", { lock.name = lock, node }, "a node had the lock set again");
                    }
                    _ => {}
                }
            }
            bars = again;
        }
    }

    fn is_held(&self, item: usize) -> bool {
        let lasts = |until: Moment| self.crew.now() < until;
        let until = self.kept.iter().find(|(kept, _)| *kept == item).map(|(_, until)| *until);
        until.is_some_and(lasts) && self.crew.attempts.holds(self.request.items[item].id)
    }
}
