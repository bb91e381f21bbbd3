//! Spans for `tracing`. Without the feature `spans` everything here is empty and compiled away.

use crate::types::key::Key;
use crate::types::owner::OwnerId;
use crate::types::token::FencingToken;

/// A span of `tracing`.
#[cfg(feature = "spans")]
pub(crate) struct Span(tracing::Span);

#[cfg(feature = "spans")]
impl Span {
    /// Spans one acquisition.
    pub(crate) fn acquire(key: &Key, owner: &OwnerId, backend: &'static str) -> Span {
        Span(tracing::info_span!(
            target: "distlock",
            "lock acquire",
            "lock.name" = %key,
            "lock.owner" = %owner,
            "lock.backend" = backend,
            "lock.outcome" = tracing::field::Empty
        ))
    }

    /// Spans the work of a holder.
    pub(crate) fn hold(key: &Key, owner: &OwnerId, token: FencingToken) -> Span {
        Span(tracing::info_span!(
            target: "distlock",
            "lock hold",
            "lock.name" = %key,
            "lock.owner" = %owner,
            "lock.token" = token.get()
        ))
    }

    /// Spans one batch of renewals.
    pub(crate) fn renew(backend: &'static str, count: usize) -> Span {
        Span(tracing::debug_span!(target: "distlock", "lock renew", "lock.backend" = backend, "lock.count" = count))
    }

    /// Runs `work` inside the span.
    pub(crate) fn around<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        tracing::Instrument::instrument(work, self.0)
    }
}

/// Records the outcome of the current acquisition.
#[cfg(feature = "spans")]
pub(crate) fn acquired<T>(end: &crate::types::error::Result<Option<T>>) {
    tracing::Span::current().record("lock.outcome", crate::types::meter::asked(end));
}

#[cfg(not(feature = "spans"))]
// tidy-allow(name): the same type without the feature
pub(crate) struct Span;

#[cfg(not(feature = "spans"))]
impl Span {
    pub(crate) fn acquire(_key: &Key, _owner: &OwnerId, _backend: &'static str) -> Span {
        Span
    }

    pub(crate) fn hold(_key: &Key, _owner: &OwnerId, _token: FencingToken) -> Span {
        Span
    }

    pub(crate) fn renew(_backend: &'static str, _count: usize) -> Span {
        Span
    }

    pub(crate) fn around<F: Future>(self, work: F) -> F {
        work
    }
}

#[cfg(not(feature = "spans"))]
pub(crate) fn acquired<T>(_end: &crate::types::error::Result<Option<T>>) {}
