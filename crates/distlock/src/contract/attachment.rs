//! What an engine gets from the locker family that it serves.

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::types::clock::{Clock, DEFAULT_DRIFT};
use crate::types::event::LossReason;
use crate::types::token::AttemptId;

/// The channel for losses that an engine learns of between two requests, from a watch or from the server.
#[derive(Debug, Clone)]
pub struct Losses(mpsc::UnboundedSender<(AttemptId, LossReason)>);

impl Losses {
    // Unbounded, but never longer than the number of holds: an engine reports each loss once.
    pub(crate) fn channel() -> (Losses, mpsc::UnboundedReceiver<(AttemptId, LossReason)>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Losses(sender), receiver)
    }

    /// Reports that the hold of `attempt` is gone.
    pub fn push(&self, attempt: AttemptId, reason: LossReason) {
        // Without a keeper there is no guard left to tell.
        let _ = self.0.send((attempt, reason));
    }
}

/// What an engine gets from the locker family that it serves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Attachment {
    /// Takes losses that the engine learns of by itself.
    pub losses: Losses,
    /// The keeper's runtime, for tasks that must go on while the application blocks its own runtime or has shut it
    /// down.
    pub keeper_runtime: Handle,
    /// The runtime in which the locker was made, if it was in one. Tasks that serve callers run faster there, but
    /// that runtime may block or end at any time.
    pub caller_runtime: Option<Handle>,
    /// The family's clock, which [`Term::start`](crate::backend::Term::start) is read from.
    pub clock: Clock,
    /// How much the rates of this clock and the server's may differ.
    pub drift: f64,
}

impl Attachment {
    /// Returns an attachment for an engine without a locker, as in its own tests. Pushed losses are dropped.
    #[must_use]
    pub fn standalone(runtime: &Handle) -> Self {
        let (losses, _) = Losses::channel();
        Attachment {
            losses,
            keeper_runtime: runtime.clone(),
            caller_runtime: None,
            clock: Clock::system(),
            drift: DEFAULT_DRIFT,
        }
    }
}
