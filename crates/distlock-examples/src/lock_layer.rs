//! A tower layer that runs each request under a lock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use distlock::Locker;
use tower::{Layer, Service};

use crate::refusal::Refusal;

/// A tower layer that runs each request under a lock of its own owner.
///
/// If another owner holds the lock, the response is 423 with the holder; if the lock is lost, the inner service's future
/// is dropped at its next await, and the response is 503: see [`Refusal`]. The request carries the lock's
/// [`FencingToken`](distlock::FencingToken) as an extension. The lock is released when the inner service has returned
/// its response; a body that is streamed afterwards is not covered.
///
/// ```
/// # use axum::{Extension, Router, extract::Request, routing::post};
/// # use distlock::{FencingToken, Locker};
/// # use distlock_examples::LockLayer;
/// async fn recount(Extension(token): Extension<FencingToken>) -> String {
///     format!("counted with token {token}")
/// }
///
/// # fn router(locker: Locker) -> Router {
/// let lock = LockLayer::new(locker, |request: &Request| Some(request.uri().path().to_owned()));
/// Router::new().route("/stock/{warehouse}", post(recount)).route_layer(lock)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LockLayer<F> {
    locker: Arc<Locker>,
    key: F,
    wait: Duration,
}

impl<F> LockLayer<F>
where
    F: Fn(&Request) -> Option<String>,
{
    /// Returns a layer that takes the lock whose name `key` makes of the request; `None` runs it without a lock.
    pub fn new(locker: impl Into<Arc<Locker>>, key: F) -> Self {
        LockLayer { locker: locker.into(), key, wait: Duration::ZERO }
    }

    /// Sets how long a request waits for its lock. Default: it does not wait.
    #[must_use]
    pub fn wait(mut self, most: Duration) -> Self {
        self.wait = most;
        self
    }
}

impl<S, F: Clone> Layer<S> for LockLayer<F> {
    type Service = LockService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService { inner, layer: self.clone() }
    }
}

/// The service of a [`LockLayer`].
#[derive(Debug, Clone)]
pub struct LockService<S, F> {
    inner: S,
    layer: LockLayer<F>,
}

impl<S, F> Service<Request> for LockService<S, F>
where
    S: Service<Request, Response = Response, Error: Send, Future: Send> + Clone + Send + 'static,
    F: Fn(&Request) -> Option<String>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let LockLayer { locker, key, wait } = &self.layer;
        let lock = key(&request).map(|name| locker.lock(name).wait(*wait).as_new_owner());
        // The service that was polled is ready; its clone need not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let Some(lock) = lock else { return inner.call(request).await };
            let guard = match lock.await {
                Ok(guard) => guard,
                Err(error) => return Ok(Refusal::from(error).into_response()),
            };
            request.extensions_mut().insert(guard.fencing_token());
            match guard.run(inner.call(request)).await {
                Ok(response) => {
                    if let Err(error) = guard.unlock().await {
                        tracing::warn!(%error, "lock not released");
                    }
                    response
                }
                Err(lost) => Ok(Refusal::from(lost).into_response()),
            }
        })
    }
}

#[cfg(test)]
mod tests;
