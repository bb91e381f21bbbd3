//! Ending a hold or an attempt on the engine.

use std::sync::Arc;

use crate::contract::{Claim, Release};
use crate::core::family::Core;
use crate::core::hold::Hold;
use crate::core::pending_release::PendingRelease;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::{EventKind, LossReason};

/// Sends a release of `claim` once, at `sent`. Returns also until when a claim of its attempt may still arrive: until then
/// the keeper repeats the release.
pub(crate) async fn send(core: &Core, claim: &Claim, sent: Moment) -> Result<(Release, Option<Moment>)> {
    let outcome = core.backend.release(claim).await?;
    Ok((outcome, core.backend.late_until(claim).filter(|until| sent < *until)))
}

/// Hands the release to the keeper if the caller's future is dropped before the engine has answered, or if that failed.
struct Releasing<'a> {
    core: &'a Core,
    hold: Arc<Hold>,
    began: Moment,
    /// Whether a release may have been carried out; `None` when one was.
    is_in_doubt: Option<bool>,
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if let Some(unanswered) = self.is_in_doubt {
            let mut pending = PendingRelease::end(&self.hold, self.began);
            pending.unanswered = unanswered;
            self.core.holds.hand_over(pending);
        }
    }
}

/// Releases a hold that is out of the table, in the caller's future.
pub(crate) async fn release_now(core: &Core, hold: Arc<Hold>, now: Moment) -> Result<()> {
    if hold.is_lost(now) {
        return Err(leave_lost(core, &hold, now));
    }
    // Another task may still have a guard of what is unlocked by name: it learns of the end before the engine does.
    hold.lose(LossReason::Unlocked, now);
    // If this future is dropped, the release may have been carried out.
    let mut releasing = Releasing { core, hold, began: now, is_in_doubt: Some(true) };
    let sent = send(core, &releasing.hold.claim, now).await;
    releasing.is_in_doubt = sent.as_ref().err().map(Error::may_be_applied);
    let hold = &releasing.hold;
    let (outcome, late_until) = sent.map_err(|error| {
        let help = "the release is retried in the background; at the latest, the lock is free when its lease ends";
        error.with_key(hold.key()).with_help(help)
    })?;
    if let Some(until) = late_until {
        let now = core.clock.now();
        core.holds.hand_over(PendingRelease::withdraw(&hold.claim, now).repeat(until, now));
    }
    let held = now.since(hold.acquired);
    if outcome == Release::Released {
        core.report(hold, EventKind::Released { held });
        return Ok(());
    }
    let reason = LossReason::Revoked;
    core.report(hold, EventKind::Lost { reason: &reason, held });
    Err(Error::lost(reason).with_key(hold.key()))
}

/// Reports the loss of a hold whose owner leaves it, and releases what the engine may still keep. Returns the loss.
#[cold]
fn leave_lost(core: &Core, hold: &Arc<Hold>, now: Moment) -> Error {
    core.report_loss(hold);
    core.reporter.flush();
    if let Some(pending) = PendingRelease::leave(hold, now).or_else(|| core.release_of_gone(hold, now)) {
        core.holds.hand_over(pending);
    }
    loss_of(hold)
}

/// Returns the error that says how `hold` was lost.
pub(crate) fn loss_of(hold: &Hold) -> Error {
    let reason = hold.loss().unwrap_or(&LossReason::Revoked);
    Error::lost(reason.clone()).with_key(hold.key())
}
