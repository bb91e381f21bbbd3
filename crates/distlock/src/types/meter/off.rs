//! The metrics without the feature: everything here is empty and compiled away.

use super::MeteredResult;
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;
use crate::types::event::EventKind;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Group {}

#[derive(Debug)]
pub(crate) struct HoldMeter;

impl HoldMeter {
    pub(crate) fn new(_group: Group) -> HoldMeter {
        HoldMeter
    }

    pub(crate) fn saw(&self, _backend: &'static str, _kind: &EventKind<'_>) {}
}

#[derive(Debug)]
pub(crate) struct AcquireMeter;

impl AcquireMeter {
    pub(crate) fn begin(_clock: &Clock, _started: Moment, _backend: &'static str, _group: Group) -> AcquireMeter {
        AcquireMeter
    }

    pub(crate) fn waits(&self) {}

    pub(crate) fn forget(&mut self) {}

    pub(crate) fn ends<T>(&mut self, _end: &Result<Option<T>>) {}
}

pub(crate) fn forced(_backend: &'static str, _outcome: &impl MeteredResult) {}

pub(crate) fn operation<F: Future<Output: MeteredResult>>(
    _backend: &'static str,
    _operation: &'static str,
    call: F,
) -> F {
    call
}
