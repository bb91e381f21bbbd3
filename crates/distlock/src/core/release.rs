//! Ending a hold or an attempt on the engine.

use std::sync::Arc;

use crate::contract::Release;
use crate::core::family::Core;
use crate::core::hold::Hold;
use crate::core::pending_release::PendingRelease;
use crate::types::error::{Error, Result};
use crate::types::event::{EventKind, LossReason};

/// Sends `pending` once. A confirmed release whose claim may still arrive is handed to the keeper to be repeated.
pub(crate) async fn send(core: &Core, pending: &PendingRelease) -> Result<Release> {
    let sent = core.clock.now();
    let outcome = core.backend.release(&pending.claim).await?;
    if let Some(until) = core.backend.late_until(&pending.claim).filter(|until| sent < *until) {
        core.holds.hand_over(pending.repeat(until, core.clock.now()));
    }
    Ok(outcome)
}

/// Hands the release to the keeper if the caller's future is dropped before the engine has answered.
struct Releasing<'a> {
    core: &'a Core,
    pending: Option<PendingRelease>,
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.core.holds.hand_over(pending);
        }
    }
}

/// Releases a hold that is out of the table, in the caller's future.
pub(crate) async fn release_now(core: &Core, hold: Arc<Hold>) -> Result<()> {
    let now = core.clock.now();
    let mut pending = match PendingRelease::leave(&hold, now) {
        Some(pending) if pending.hold.is_some() => pending,
        lost => {
            core.report_loss(&hold);
            core.reporter.flush();
            lost.into_iter().for_each(|pending| core.holds.hand_over(pending));
            return Err(loss_of(&hold));
        }
    };
    // Another task may still have a guard of what is unlocked by name: it learns of the end before the engine does.
    hold.lose(LossReason::Unlocked, now);
    // If this future is dropped, the release may have been carried out.
    pending.unanswered = true;
    let mut releasing = Releasing { core, pending: Some(pending) };
    let Some(pending) = &releasing.pending else { return Ok(()) };
    match send(core, pending).await {
        Ok(outcome) => {
            releasing.pending = None;
            let held = now.since(hold.acquired);
            if outcome == Release::Released {
                core.report(&hold, EventKind::Released { held });
                return Ok(());
            }
            let reason = LossReason::Revoked;
            core.report(&hold, EventKind::Lost { reason: &reason, held });
            Err(Error::lost(reason).with_key(hold.key()))
        }
        Err(error) => {
            if let Some(pending) = &mut releasing.pending {
                pending.unanswered = error.may_be_applied();
            }
            let help = "releasing goes on in the background, at the latest its lease ends it";
            Err(error.with_key(hold.key()).with_help(help))
        }
    }
}

/// Returns the error that says how `hold` was lost.
pub(crate) fn loss_of(hold: &Hold) -> Error {
    let reason = hold.loss().unwrap_or(&LossReason::Revoked);
    Error::lost(reason.clone()).with_key(hold.key())
}
