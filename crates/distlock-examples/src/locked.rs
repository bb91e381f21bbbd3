//! An axum extractor that takes the lock of the request's path.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, Path};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use distlock::{LockGuard, LockRequest, Locker};
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// What is in a path and has a lock, such as the number of an order.
pub trait Lockable: DeserializeOwned + Send {
    /// Returns the request for its lock: its name, and how long to wait for it.
    fn lock(&self, locker: &Locker) -> LockRequest;
}

/// An extractor that takes the lock of what the request's path names, as an owner of its own.
///
/// If another owner holds the lock, the response is 423 with the holder: see [`Refusal`]. The handler runs its work with
/// [`LockGuard::try_run`], so that a loss ends it.
///
/// Extractors run in the order of the handler's arguments. Put this one after those that may refuse the request; a body is
/// read while the lock is held.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use axum::{Router, routing::post};
/// # use distlock::{LockRequest, Locker};
/// # use distlock_examples::{Lockable, Locked, Refusal};
/// #[derive(serde::Deserialize)]
/// struct OrderId(u64);
///
/// impl Lockable for OrderId {
///     fn lock(&self, locker: &Locker) -> LockRequest {
///         locker.lock(format!("order:{}", self.0)).wait(Duration::from_secs(2))
///     }
/// }
///
/// async fn ship(Locked { item: OrderId(id), guard }: Locked<OrderId>) -> Result<String, Refusal> {
///     guard.try_run(async { Ok(format!("order {id} is shipped")) }).await
/// }
///
/// # fn router(locker: Locker) -> Router {
/// Router::new().route("/orders/{id}/shipment", post(ship)).with_state(Arc::new(locker))
/// # }
/// ```
#[derive(Debug)]
pub struct Locked<T> {
    /// What the path names.
    pub item: T,
    /// Its lock. Dropping it releases the lock in the background.
    pub guard: LockGuard,
}

impl<S, T> FromRequestParts<S> for Locked<T>
where
    S: Send + Sync,
    Arc<Locker>: FromRef<S>,
    T: Lockable,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Path(item) = Path::<T>::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
        let request = item.lock(&Arc::from_ref(state)).as_new_owner();
        let guard = request.await.map_err(|error| Refusal::from(error).into_response())?;
        Ok(Locked { item, guard })
    }
}

#[cfg(test)]
mod tests;
