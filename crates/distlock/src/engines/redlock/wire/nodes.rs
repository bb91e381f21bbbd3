//! The nodes together: how each is asked, and how many must answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::contract::Attachment;
use crate::engines::redis::node::{Connection, Keys, Lane, Node, NodeOptions};
use crate::engines::redlock::config::Options;
use crate::engines::redlock::quarantine::{self, Leaps};
use crate::engines::redlock::state::attempts::Attempts;
use crate::engines::redlock::state::claim_votes::{list, quorum_of};
use crate::engines::redlock::wire::batch::Volleys;
use crate::engines::redlock::wire::calls::Race;
use crate::engines::redlock::wire::claim_limit::Gates;
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;

/// How long a node may take to answer, as a part of the lease and within bounds.
const TIMEOUT_PART: u32 = 5;
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(50);
const LONGEST_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the answers of the others are waited for when a majority has decided: they are on their way.
pub(crate) const GRACE: Duration = Duration::from_millis(1);
/// How long the other nodes are waited for when a majority is connected for the first time.
const FIRST_GRACE: Duration = Duration::from_millis(200);

/// What is there once the engine is attached.
pub(crate) struct Crew {
    pub(crate) nodes: Vec<Arc<Member>>,
    pub(crate) options: Arc<Options>,
    pub(crate) attempts: Attempts,
    pub(crate) gates: Gates,
    pub(crate) volleys: Volleys,
    /// Where a node notes its life.
    pub(crate) node_key: String,
    pub(crate) clock: Clock,
    pub(crate) drift: f64,
    pub(crate) runtime: Handle,
    /// How many claims and releases a minority has not answered yet.
    late: watch::Sender<usize>,
    /// Every node was tried once, per lane.
    met: [AtomicBool; 2],
    /// One for each node, which waits for its clock to leap; they end with the crew.
    _watches: JoinSet<()>,
}

/// One node and what is known of it.
pub(crate) struct Member {
    pub(crate) node: Node,
    /// It did not answer when it was asked last.
    is_away: AtomicBool,
    /// Somebody is about to say how long it must not vote.
    pub(crate) birth: AtomicBool,
}

impl Crew {
    pub(crate) fn start(options: &Arc<Options>, attachment: &Attachment) -> Crew {
        let member = |node: &NodeOptions| {
            let node = Node::start(node, attachment);
            Arc::new(Member { node, is_away: AtomicBool::new(false), birth: AtomicBool::new(false) })
        };
        let nodes: Vec<_> = options.nodes.iter().map(member).collect();
        let (mut watches, leaps) = (JoinSet::new(), Arc::new(Leaps::new(nodes.len())));
        for (at, member) in nodes.iter().enumerate() {
            let (clock, leaps) = (attachment.clock.clone(), leaps.clone());
            let watch = quarantine::watch(at, member.clone(), options.node_key(), clock, leaps);
            // tidy-allow(spawn): sleeps until a clock leaps
            watches.spawn_on(watch, &attachment.keeper_runtime);
        }
        Crew {
            nodes,
            options: options.clone(),
            attempts: Attempts::default(),
            gates: Gates::default(),
            volleys: Volleys::default(),
            node_key: options.node_key(),
            clock: attachment.clock.clone(),
            drift: attachment.drift,
            runtime: attachment.keeper_runtime.clone(),
            late: watch::Sender::new(0),
            met: Default::default(),
            _watches: watches,
        }
    }

    pub(crate) fn quorum(&self) -> usize {
        quorum_of(self.nodes.len())
    }

    pub(crate) fn places(&self) -> Vec<&str> {
        self.nodes.iter().map(|member| member.node.place()).collect()
    }

    pub(crate) fn keys(&self, key: &Key) -> Result<Keys> {
        Keys::new(&self.options.prefix, key)
    }

    /// Returns once a majority is connected. Fails when it is not within `patience`, naming what is wrong with each node.
    pub(crate) async fn gather(&self, lane: Lane, patience: Duration) -> Result<()> {
        let met = &self.met[lane as usize];
        if !met.load(Ordering::Relaxed) {
            // At the start all of them are waited for a little, so that the first locks do not stand on a bare majority.
            self.meet(lane, patience, FIRST_GRACE, |member, lane, patience| async move {
                member.node.first(lane, patience).await
            })
            .await;
            met.store(true, Ordering::Relaxed);
        }
        if self.present(lane) >= self.quorum() {
            return Ok(());
        }
        let troubles = self
            .meet(lane, patience, Duration::ZERO, |member, lane, patience| async move {
                member.node.connection(lane, patience).await.map(drop)
            })
            .await;
        if self.present(lane) >= self.quorum() { Ok(()) } else { Err(self.absent(&troubles)) }
    }

    fn present(&self, lane: Lane) -> usize {
        self.nodes.iter().filter(|member| member.node.now(lane).is_some()).count()
    }

    async fn meet<F>(
        &self,
        lane: Lane,
        patience: Duration,
        grace: Duration,
        ask: impl Fn(Arc<Member>, Lane, Duration) -> F,
    ) -> Vec<Result<()>>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut troubles: Vec<_> = self.nodes.iter().map(|_| Err(no_answer())).collect();
        let runners = self.nodes.iter().enumerate().map(|(at, member)| (at, ask(member.clone(), lane, patience)));
        let mut race = Race::new(runners);
        race.run(patience, grace, |at, outcome| {
            troubles[at] = outcome;
            troubles.iter().filter(|outcome| outcome.is_ok()).count() >= self.quorum()
        })
        .await;
        troubles
    }

    /// The error when too few nodes are connected.
    fn absent(&self, troubles: &[Result<()>]) -> Error {
        let is_fine = |trouble: &Result<()>| trouble.is_ok();
        let said = troubles.iter().map(|trouble| match trouble {
            Ok(()) => "connected".to_owned(),
            Err(error) => error.to_string(),
        });
        let votes = list(&self.places(), said);
        let kinds: Vec<_> = troubles.iter().filter_map(|trouble| trouble.as_ref().err().map(Error::kind)).collect();
        let present = troubles.iter().filter(|trouble| is_fine(trouble)).count();
        let final_kind = |kind: ErrorKind| kinds.iter().filter(|other| **other == kind).count() >= self.quorum();
        let kind = [ErrorKind::Auth, ErrorKind::Config, ErrorKind::Closed, ErrorKind::Unsupported]
            .into_iter()
            .find(|kind| final_kind(*kind))
            .unwrap_or(ErrorKind::Unavailable);
        let total = self.nodes.len();
        Error::new(kind, format!("redlock: {present} of {total} nodes are connected, {} must: {votes}", self.quorum()))
    }

    /// How long a node may take to answer when the lease is `ttl`.
    pub(crate) fn node_timeout(ttl: Duration) -> Duration {
        (ttl / TIMEOUT_PART).clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
    }

    /// Writes down whether a node answers, and says so when that changes.
    pub(crate) fn note(&self, node: usize, answers: bool) {
        let member = &self.nodes[node];
        if member.is_away.load(Ordering::Relaxed) == answers {
            member.is_away.store(!answers, Ordering::Relaxed);
            let place = member.node.place();
            if answers {
                tracing::info!(target: "distlock", { lock.backend = "redlock", node = place }, "node answers again");
            } else {
                tracing::warn!(target: "distlock", { lock.backend = "redlock", node = place }, "node does not answer");
            }
        }
    }

    /// Until what is answered is dropped, [`close`](Crew::close) waits.
    pub(crate) fn begin_late(self: &Arc<Crew>) -> Late {
        self.late.send_modify(|count| *count += 1);
        Late(self.clone())
    }

    /// Closes the connections. Not while a node that is a little late may still be given, or releasing, a lock: it would keep
    /// that until its lease ends.
    pub(crate) async fn close(&self) {
        // It cannot fail: the sender is ours. Each of them ends with its timeout.
        let _ = self.late.subscribe().wait_for(|count| *count == 0).await;
        self.nodes.iter().for_each(|member| member.node.close());
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }
}

/// A claim or a release that some nodes have yet to answer.
pub(crate) struct Late(Arc<Crew>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.send_modify(|count| *count -= 1);
    }
}

impl Member {
    /// The connection, if it is open: a node that is away is not waited for.
    pub(crate) fn connection(&self, lane: Lane) -> Result<Connection> {
        self.node.now(lane).ok_or_else(|| Error::unavailable("no connection"))
    }
}

pub(crate) fn no_answer() -> Error {
    Error::unknown("not answered in time")
}
