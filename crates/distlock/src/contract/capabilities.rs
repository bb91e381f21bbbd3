//! What an engine can do.

use crate::types::mode::Mode;

/// How far a lock reaches; a wider scope is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The tasks and threads of one process.
    Process,
    /// The processes of one machine.
    Host,
    /// Every machine that reaches the same servers.
    Cluster,
}

/// What an engine can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How far its locks reach.
    pub scope: Scope,
    /// Waiters are served in the order of their first claims.
    pub fair: bool,
    /// A hold ends by itself when it is not renewed.
    pub leases: bool,
    /// A waiter is notified when it may claim; it does not only poll.
    pub wakes: bool,
    /// Holders and waiters can be listed.
    pub inspects: bool,
    /// A hold can be force-released.
    pub breaks: bool,
    /// Locks can be shared by readers: [`Mode::Shared`].
    pub shares: bool,
    /// Locks can be counting semaphores: [`Mode::Slot`].
    pub slots: bool,
    /// An owner can re-enter its lock, also from another process: [`Mode::Reentrant`].
    pub reenters: bool,
    /// A lock can have a delay after its lease has expired: [`crate::backend::Claim::delay`].
    pub delays: bool,
    /// The stored record of a holder can be replaced: [`crate::backend::Backend::amend`].
    pub amends: bool,
    /// A hold can be taken over with its attempt id: [`crate::backend::Backend::adopt`].
    pub adopts: bool,
    /// Several locks can be claimed in one step: [`crate::backend::Backend::claim_all`].
    pub claim_all: bool,
    /// Locks can have a history: [`crate::backend::Backend::write_history`].
    pub history: bool,
    /// Locks can have notes of ticks: [`crate::backend::Backend::note_tick`].
    pub ticks: bool,
}

impl Capabilities {
    /// Returns the capabilities of an engine with locks of this scope and nothing more.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Capabilities {
            scope,
            fair: false,
            leases: false,
            wakes: false,
            inspects: false,
            breaks: false,
            shares: false,
            slots: false,
            reenters: false,
            delays: false,
            amends: false,
            adopts: false,
            claim_all: false,
            history: false,
            ticks: false,
        }
    }

    /// Returns whether the engine grants locks in `mode`.
    #[must_use]
    pub fn allows(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shares,
            Mode::Reentrant => self.reenters,
            Mode::Slot { .. } => self.slots,
        }
    }
}
