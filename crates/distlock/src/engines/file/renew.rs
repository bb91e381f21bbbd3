//! Renewals: a check that the files of a hold are still in their places.

use super::state::State;
use crate::contract::{Lease, Renewal};
use crate::types::error::Result;
use crate::types::event::LossReason;

pub(super) fn renew(state: &State, leases: &[Lease]) -> Vec<Result<Renewal>> {
    let holds = state.holds();
    let renewed = leases.iter().map(|lease| match holds.get(&lease.claim.attempt) {
        Some(hold) if hold.is_intact().map_err(|error| error.with_key(&lease.claim.key))? => Ok(Renewal::Renewed(None)),
        // The files were removed or replaced: another holder may have locked new ones by now.
        _ => Ok(Renewal::Lost(LossReason::Revoked)),
    });
    renewed.collect()
}
