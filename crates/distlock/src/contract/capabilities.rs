//! What an engine can do.

use crate::types::mode::Mode;

/// How far a lock reaches.
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
    /// Waiters are served in the order in which they came.
    pub fair: bool,
    /// A hold ends by itself when it is not renewed.
    pub leases: bool,
    /// A waiter is told when it is its turn, not only by polling.
    pub wakes: bool,
    /// Holders and waiters can be listed.
    pub inspects: bool,
    /// A hold can be ended by somebody else.
    pub breaks: bool,
    /// Locks can be shared by readers: [`Mode::Shared`].
    pub shares: bool,
    /// There are semaphores: [`Mode::Slot`].
    pub slots: bool,
    /// An owner can enter its lock again from another process: [`Mode::Reentrant`].
    pub reenters: bool,
    /// A lock can be kept for a while after its lease has run out: [`crate::backend::Claim::delay`].
    pub delays: bool,
    /// What is stored about a holder can be changed: [`crate::backend::Backend::amend`].
    pub amends: bool,
    /// A hold can be taken over by who knows its attempt id: [`crate::backend::Backend::adopt`].
    pub adopts: bool,
    /// Several locks can be taken in one step: [`crate::backend::Backend::claim_all`].
    pub claim_all: bool,
    /// What happens to locks can be kept with them: [`crate::backend::Backend::write_history`].
    pub history: bool,
}

impl Capabilities {
    /// Locks of this reach, and nothing more.
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
        }
    }

    /// Whether locks can be asked for in `mode`.
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
