//! A family: all clones of a locker, which share the engine, the holds, the clock and the keeper.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::runtime::Handle;
use tokio::sync::SetOnce;

use crate::contract::DynBackend;
use crate::core::history::HistoryWriter;
use crate::core::hold::Hold;
use crate::core::holds::Holds;
use crate::core::pending_release::PendingRelease;
use crate::core::reporter::Reporter;
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::EventKind;
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::owner::{Process, process_number};

/// The handle that lockers and guards share. When the last one is dropped, the keeper releases everything and stops.
pub(crate) struct Family(Arc<Core>);

/// The state that the keeper shares with the family's handles.
pub(crate) struct Core {
    pub(crate) backend: Box<dyn DynBackend>,
    pub(crate) clock: Clock,
    pub(crate) drift: f64,
    pub(crate) reporter: Reporter,
    /// Collects entries for the histories of locks; `None` when no history is kept.
    pub(crate) history: Option<HistoryWriter>,
    pub(crate) holds: Holds,
    /// Set when the family closes: waiters give up.
    pub(crate) closing: SetOnce<()>,
    /// Set when the keeper has ended, to the locks whose release was not confirmed.
    pub(crate) closed: SetOnce<Vec<Key>>,
    /// The keeper's runtime, and the threads that use it.
    #[cfg(feature = "blocking")]
    pub(crate) waits: crate::core::waits::Waits,
    /// The process that made the family.
    pub(crate) process: Arc<Process>,
    /// Its number. A forked child has another.
    process_number: u64,
}

impl Family {
    /// Returns the handle of a family whose keeper runs.
    pub(crate) fn of(core: Arc<Core>) -> Arc<Family> {
        Arc::new(Family(core))
    }

    /// Releases everything and stops the keeper.
    pub(crate) async fn close(&self) -> Result<()> {
        self.check_process()?;
        self.shut();
        let unconfirmed = self.closed.wait().await;
        self.reporter.flush();
        if unconfirmed.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = unconfirmed.iter().map(Key::as_str).collect();
        Err(Error::unknown(format!("closed, but the release of {names:?} was not confirmed"))
            .with_help("they become free when their leases end"))
    }

    fn shut(&self) {
        // Waits end before they are withdrawn.
        let _ = self.closing.set(());
        self.holds.close(self.clock.now()).iter().for_each(|hold| self.report_loss(hold));
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
    /// Returns what a new family shares. Its keeper is not started.
    pub(crate) fn new(
        backend: Box<dyn DynBackend>,
        clock: Clock,
        drift: f64,
        reporter: Reporter,
        history: Option<HistoryWriter>,
    ) -> Core {
        Core {
            backend,
            clock,
            drift,
            reporter,
            history,
            holds: Holds::new(),
            closing: SetOnce::new(),
            closed: SetOnce::new(),
            #[cfg(feature = "blocking")]
            waits: crate::core::waits::Waits::default(),
            process: Process::current(),
            process_number: process_number(),
        }
    }

    /// Refuses to act in a forked child: the holds, the keeper and the connections are its parent's.
    pub(crate) fn check_process(&self) -> Result<()> {
        if process_number() == self.process_number { Ok(()) } else { Err(self.refuse_fork()) }
    }

    #[cold]
    fn refuse_fork(&self) -> Error {
        let (parent, pid) = (self.process.pid, std::process::id());
        let message = format!("this locker belongs to process {parent}, not to its fork {pid}");
        Error::new(ErrorKind::Closed, message).with_help("make a new Locker after the fork")
    }

    /// Refuses a call that cannot reach the engine: in a forked child, and outside of a tokio runtime where the engine needs
    /// one. Nothing is sent then.
    pub(crate) fn check_caller(&self) -> Result<()> {
        self.check_process()?;
        if self.backend.needs_runtime() { check_runtime(self.backend.name()) } else { Ok(()) }
    }

    /// Sleeps until `moment`.
    ///
    /// # Errors
    /// Kind `Config` outside of a tokio runtime, whose timers the machine's clock needs.
    pub(crate) async fn sleep_until(&self, moment: Moment) -> Result<()> {
        if self.clock.needs_runtime() {
            check_runtime(self.backend.name())?;
        }
        self.clock.sleep_until(moment).await;
        Ok(())
    }

    /// Leaves a hold without waiting for the engine, as a dropped guard does. Never blocks, never panics.
    pub(crate) fn leave_in_background(&self, hold: &Hold) {
        if self.check_process().is_ok()
            && let Some(lost) = self.holds.leave_behind(hold.claim.attempt, self.clock.now())
        {
            self.release_of_gone(&lost, self.clock.now()).into_iter().for_each(|pending| self.holds.hand_over(pending));
            self.report_loss(&lost);
        }
    }

    /// Returns the release of a hold that is gone, if the engine says that some of its servers still have it.
    pub(crate) fn release_of_gone(&self, hold: &Hold, now: Moment) -> Option<PendingRelease> {
        let until = hold.is_gone().then(|| self.backend.late_until(&hold.claim)).flatten()?;
        Some(PendingRelease::withdraw(&hold.claim, now).repeat(until, now))
    }

    /// Reports an event from a caller's task. When this returns, the observer has seen it.
    pub(crate) fn report(&self, hold: &Hold, kind: EventKind<'_>) {
        self.record(hold, &kind);
        self.reporter.emit(hold.key(), hold.owner(), Some(hold.token), kind);
    }

    /// Reports an event without waiting for the observer: for the keeper and dropped guards.
    pub(crate) fn report_later(&self, hold: &Hold, kind: EventKind<'_>) {
        self.record(hold, &kind);
        self.reporter.emit_later(hold.key(), hold.owner(), Some(hold.token), kind);
    }

    fn record(&self, hold: &Hold, kind: &EventKind<'_>) {
        hold.meter.saw(self.reporter.backend, kind);
        if self.history.is_some()
            && let Some(entry) = HistoryEntry::of(kind, hold.token, &hold.claim.record, self.wall_ms())
        {
            self.write_down(hold.key(), entry);
        }
    }

    /// Queues an entry for a lock's history. The keeper writes it later, as far as it can.
    pub(crate) fn write_down(&self, key: &Key, entry: HistoryEntry) {
        if let Some(history) = &self.history
            && history.add(key, entry, self.clock.now())
        {
            self.holds.wake.notify_one();
        }
    }

    /// Returns the milliseconds of the Unix epoch, for display.
    pub(crate) fn wall_ms(&self) -> u64 {
        let since = self.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Reports the loss of a hold, once.
    pub(crate) fn report_loss(&self, hold: &Hold) {
        let held = self.clock.now().since(hold.acquired);
        hold.tell_loss(|reason| self.report_later(hold, EventKind::Lost { reason, held }));
    }
}

/// Refuses to go on outside of a tokio runtime, where connections and timers would panic.
pub(crate) fn check_runtime(engine: &str) -> Result<()> {
    if Handle::try_current().is_ok() {
        return Ok(());
    }
    let message = format!("the {engine} engine needs a tokio runtime, and this future is polled outside of one");
    let help = "await it under #[tokio::main] or Runtime::block_on, or enter a runtime with Handle::enter";
    Err(Error::new(ErrorKind::Config, message).with_help(help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::acquire::acquire;
    use crate::core::keeper;
    use crate::engines::memory::{Memory, Store};
    use crate::types::clock::DEFAULT_DRIFT;
    use crate::types::options::Options;
    use crate::types::owner::OwnerId;

    #[tokio::test]
    async fn in_a_forked_child_nothing_is_released_and_every_call_is_an_error() {
        let store = Store::new();
        let reporter = || Reporter::new("memory", None, &Clock::system()).unwrap();
        let backend = Box::new(Memory::on(&store));
        let family = keeper::start(Core::new(backend, Clock::system(), DEFAULT_DRIFT, reporter(), None)).unwrap();
        let ask = |family: Arc<Family>| async move {
            acquire(&family, Key::new("k").unwrap(), OwnerId::random(), &Options::default()).await
        };
        let hold = ask(family.clone()).await.unwrap().unwrap();

        // The same family as a fork of its process would see it.
        let backend = Box::new(Memory::on(&store));
        let core = Core::new(backend, Clock::system(), DEFAULT_DRIFT, reporter(), None);
        let child = Family::of(Arc::new(Core { process_number: core.process_number + 1, ..core }));
        let error = ask(child.clone()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("after the fork"), "{error}");
        child.holds.insert(hold.clone(), child.holds.hash(hold.owner(), hold.key()), child.clock.now()).unwrap();
        child.leave_in_background(&hold);
        assert!(child.holds.get(hold.claim.attempt).is_some(), "left alone");
        drop(child);
        assert!(!store.is_empty(), "the parent's hold");
        family.leave_in_background(&hold);
    }
}
