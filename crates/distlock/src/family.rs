//! What all clones of a locker share: the engine, the holds, the clock and the keeper that looks after them.

use std::sync::Arc;

use tokio::sync::SetOnce;

use crate::backend::DynBackend;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{EventKind, Reporter};
use crate::holds::{Chore, Hold, Holds, Left};
use crate::keeper;
use crate::key::Key;

/// The handle that lockers and guards share; when the last is gone the keeper ends what is left and stops.
pub(crate) struct Family(Arc<Core>);

/// What the keeper shares with the family.
pub(crate) struct Core {
    pub(crate) backend: Box<dyn DynBackend>,
    pub(crate) clock: Clock,
    pub(crate) drift: f64,
    pub(crate) reporter: Reporter,
    pub(crate) holds: Holds,
    /// Set when the family closes: whoever waits for a lock gives up.
    pub(crate) closing: SetOnce<()>,
    /// Set when the keeper has left, to the locks whose release nobody confirmed.
    pub(crate) closed: SetOnce<Vec<Key>>,
    pid: u32,
}

impl Family {
    /// Starts the keeper over `backend`.
    pub(crate) fn start(
        backend: Box<dyn DynBackend>,
        clock: Clock,
        drift: f64,
        reporter: Reporter,
    ) -> Result<Arc<Family>> {
        let core = Arc::new(Core {
            backend,
            clock,
            drift,
            reporter,
            holds: Holds::new(),
            closing: SetOnce::new(),
            closed: SetOnce::new(),
            pid: std::process::id(),
        });
        keeper::start(core.clone())?;
        Ok(Arc::new(Family(core)))
    }

    /// Releases everything and stops the keeper.
    pub(crate) async fn close(&self) -> Result<()> {
        self.check_process()?;
        self.shut();
        let unconfirmed = self.closed.wait().await;
        if unconfirmed.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = unconfirmed.iter().map(Key::as_str).collect();
        Err(Error::unknown(format!("closed, but nobody confirmed the release of {names:?}"))
            .with_help("they become free when their leases end"))
    }

    fn shut(&self) {
        self.holds.close(self.clock.now());
        let _ = self.closing.set(());
    }
}

impl std::ops::Deref for Family {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.0
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.shut();
        }
    }
}

impl Core {
    /// Refuses to act in a forked child: the holds, the keeper and the connections are its parent's.
    pub(crate) fn check_process(&self) -> Result<()> {
        let pid = std::process::id();
        if pid == self.pid {
            return Ok(());
        }
        let message = format!("this locker belongs to process {}, not to its fork {pid}", self.pid);
        Err(Error::new(ErrorKind::Closed, message).with_help("make a new Locker after the fork"))
    }

    /// Leaves a hold without waiting for the engine: what a dropped guard does. Never blocks, never panics.
    pub(crate) fn leave_in_background(&self, hold: &Arc<Hold>) {
        if self.check_process().is_ok()
            && let Left::Last(hold) = self.holds.leave(hold.claim.attempt)
        {
            self.holds.hand_over(Chore { claim: hold.claim.clone(), hold: Some(hold) });
        }
    }

    pub(crate) fn report(&self, hold: &Hold, kind: EventKind<'_>) {
        self.reporter.emit(hold.key(), hold.owner(), Some(hold.token), kind);
    }

    /// Tells observers that a hold is over without a release by its owner.
    pub(crate) fn report_loss(&self, hold: &Hold) {
        if let Some(reason) = hold.loss() {
            self.report(hold, EventKind::Lost { reason, held: self.clock.now().since(hold.acquired) });
        }
    }
}
