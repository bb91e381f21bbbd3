//! Clients that a pool of the application lends.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::Client;

use crate::engines::postgres::error::{Stage, classify};
use crate::types::error::{Error, Result};

/// What messages call the pool.
pub(in crate::engines) const PLACE: &str = "the pool";

/// How many clients an engine has at most: two that it uses, and those whose last reply has not come.
const MOST_LENT: usize = 4;

type Failure = Box<dyn StdError + Send + Sync>;
type Lending = Pin<Box<dyn Future<Output = Result<Box<dyn Lent>, Failure>> + Send>>;

/// What a pool lends: dropping it gives it back.
trait Lent: Send + Sync {
    fn client(&self) -> &Client;
}

struct Object<C> {
    lent: C,
    client: fn(&C) -> &Client,
}

impl<C: Send + Sync> Lent for Object<C> {
    fn client(&self) -> &Client {
        (self.client)(&self.lent)
    }
}

/// Borrows clients from a pool.
pub(in crate::engines) struct Lender {
    lend: Box<dyn Fn() -> Lending + Send + Sync>,
    permits: Arc<Semaphore>,
}

impl Lender {
    /// Borrows with `lend`; `client` finds the client in what was lent.
    pub(in crate::engines) fn new<F, Fut, C, E>(lend: F, client: fn(&C) -> &Client) -> Lender
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<C, E>> + Send + 'static,
        C: Send + Sync + 'static,
        E: Into<Failure>,
    {
        let lend = move || -> Lending {
            let lending = lend();
            Box::pin(async move {
                let lent = lending.await.map_err(Into::into)?;
                Ok(Box::new(Object { lent, client }) as Box<dyn Lent>)
            })
        };
        Lender { lend: Box::new(lend), permits: Arc::new(Semaphore::new(MOST_LENT)) }
    }

    /// Borrows a client, for as long as the pool takes.
    ///
    /// # Errors
    /// Kind `Unavailable`, or that of the server's refusal.
    pub(in crate::engines) async fn lend(&self) -> Result<LentClient> {
        let permit = self.permits.clone().try_acquire_owned();
        let permit = permit
            .map_err(|_| Error::unavailable(format!("postgres: {MOST_LENT} connections of the pool do not reply")))?;
        let lent = (self.lend)().await.map_err(failed)?;
        Ok(LentClient { held: Arc::new(Held { lent, _permit: permit }), runtime: Handle::current() })
    }
}

/// Returns the server's refusal where the pool's failure has one as its cause.
fn failed(failure: Failure) -> Error {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(&*failure);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref() {
            return classify(PLACE, error, Stage::Opening).0;
        }
        cause = error.source();
    }
    Error::unavailable(format!("postgres: {PLACE} lends no connection: {failure}")).with_source(failure)
}

/// A client of a pool. Dropping it gives it back when its last statement was answered: until then the application's next
/// statement would wait for ours.
pub(in crate::engines) struct LentClient {
    held: Arc<Held>,
    runtime: Handle,
}

struct Held {
    lent: Box<dyn Lent>,
    _permit: OwnedSemaphorePermit,
}

impl LentClient {
    pub(in crate::engines) fn client(&self) -> &Client {
        self.held.lent.client()
    }
}

impl Drop for LentClient {
    fn drop(&mut self) {
        let held = self.held.clone();
        // tidy-allow(spawn): its caller may have given up, and a reply may still come; ends with the reply or the connection
        self.runtime.spawn(async move {
            // Replies come in the order of statements, so this one is the last.
            let _ = held.lent.client().check_connection().await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::io;

    use super::*;
    use crate::types::error::ErrorKind;

    #[derive(Debug)]
    struct Exhausted;

    impl fmt::Display for Exhausted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("all are in use")
        }
    }

    impl StdError for Exhausted {}

    #[tokio::test]
    async fn the_failure_of_a_pool_is_told_and_leaves_room_for_the_next() {
        let lender = Lender::new(|| async { Err::<Client, _>(Exhausted) }, |client| client);
        for _ in 0..=MOST_LENT {
            let error = lender.lend().await.err().expect("a failure");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("all are in use"), "{error}");
        }
        let lender = Lender::new(|| async { Err::<Client, _>(io::Error::other("no way there")) }, |client| client);
        let error = lender.lend().await.err().expect("a failure");
        assert!(error.to_string().contains("no way there"), "{error}");
    }
}
