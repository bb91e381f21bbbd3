//! The engine: its options, and what exists once it is attached.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::contract::Attachment;
use crate::engines::redis::node::{Connection, Lane};
use crate::engines::redlock::options::RedlockOptions;
use crate::engines::redlock::quarantine;
use crate::engines::redlock::state::attempts::BallotAttempts;
use crate::engines::redlock::wire::batch::NodeBatcher;
use crate::engines::redlock::wire::claim_limit::ClaimLimits;
use crate::engines::redlock::wire::nodes::Nodes;

/// The Redlock engine: a lock is held when a majority of the nodes keeps it.
///
/// Two connections to each node: one for claims, releases and wake-ups, driven by the runtime in which the locker was
/// made; one for renewals, driven by the keeper.
///
/// ```no_run
/// use distlock::Locker;
/// use distlock::backend::redis::Redis;
/// use distlock::backend::redlock::Redlock;
///
/// # async fn f() -> distlock::Result<()> {
/// let nodes = ["a", "b", "c"].map(|host| Redis::tcp(host, 6379));
/// let locker = Locker::new(Redlock::of(nodes).prefix("app:").build()?)?;
/// let guard = locker.lock("invoice:42").await?;
/// # guard.unlock().await }
/// ```
pub struct Redlock {
    pub(super) options: Arc<RedlockOptions>,
    attached: OnceLock<Arc<AttachedRedlock>>,
}

/// What exists once the engine is attached. Dropping it ends the tasks that watch the nodes' clocks.
pub(super) struct AttachedRedlock {
    pub(super) nodes: Arc<Nodes>,
    pub(super) batcher: Arc<NodeBatcher>,
    pub(super) attempts: BallotAttempts,
    pub(super) claim_limits: ClaimLimits,
    _clock_watches: JoinSet<()>,
}

impl Redlock {
    pub(super) fn new(options: Arc<RedlockOptions>) -> Redlock {
        Redlock { options, attached: OnceLock::new() }
    }

    pub(super) fn start(&self, attachment: &Attachment) {
        let _ = self.attached.set(Arc::new(AttachedRedlock::start(&self.options, attachment)));
    }

    /// Returns the attached engine. Without a locker, its connections run in the runtime of the first call.
    pub(super) fn attached(&self) -> &Arc<AttachedRedlock> {
        self.attached.get_or_init(|| {
            Arc::new(AttachedRedlock::start(&self.options, &Attachment::standalone(&Handle::current())))
        })
    }

    pub(super) fn if_attached(&self) -> Option<&Arc<AttachedRedlock>> {
        self.attached.get()
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("options", &self.options).finish_non_exhaustive()
    }
}

impl AttachedRedlock {
    fn start(options: &Arc<RedlockOptions>, attachment: &Attachment) -> AttachedRedlock {
        let nodes = Arc::new(Nodes::start(options, attachment));
        AttachedRedlock {
            _clock_watches: quarantine::watch_clocks(&nodes),
            batcher: Arc::new(NodeBatcher::new(nodes.clone())),
            nodes,
            attempts: BallotAttempts::default(),
            claim_limits: ClaimLimits::default(),
        }
    }

    /// Whether a majority of the nodes is connected without notifications.
    pub(super) fn is_without_notifications(&self) -> bool {
        let is_deaf = |connection: Option<Connection>| connection.is_some_and(|connection| !connection.hears());
        self.nodes.iter().filter(|state| is_deaf(state.node.now(Lane::Main))).count() >= self.nodes.quorum()
    }
}
