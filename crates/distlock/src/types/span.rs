//! Spans for `tracing`. Without the feature `spans` everything here is empty and compiled away.

use crate::types::key::Key;
use crate::types::owner::OwnerId;
use crate::types::token::FencingToken;

/// Something that takes time.
#[cfg(feature = "spans")]
pub(crate) struct Span(tracing::Span);

#[cfg(feature = "spans")]
impl Span {
    /// From asking for a lock to the end of asking.
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

    /// Work that goes on while a lock is held.
    pub(crate) fn hold(key: &Key, owner: &OwnerId, token: FencingToken) -> Span {
        Span(tracing::info_span!(
            target: "distlock",
            "lock hold",
            "lock.name" = %key,
            "lock.owner" = %owner,
            "lock.token" = token.get()
        ))
    }

    /// One request that renews many locks.
    pub(crate) fn renew(backend: &'static str, count: usize) -> Span {
        Span(tracing::debug_span!(target: "distlock", "lock renew", "lock.backend" = backend, "lock.count" = count))
    }

    /// Does `work` inside.
    pub(crate) fn around<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        tracing::Instrument::instrument(work, self.0)
    }
}

/// Says how the acquisition ended that we are inside of.
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
