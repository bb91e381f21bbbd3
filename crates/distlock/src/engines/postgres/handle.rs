//! What a transaction of the application needs to rely on a lock.

use std::sync::Arc;

use crate::engines::postgres::client::Postgres;
use crate::engines::postgres::wire::options::Options;
use crate::types::key::Key;
use crate::types::token::FencingToken;

/// A statement that fails unless the token's hold is live, and keeps the lock from being granted to another owner until the
/// transaction in which it runs has ended. Any client can send it: the text has two parameters.
///
/// ```no_run
/// # async fn f(transaction: tokio_postgres::Transaction<'_>, hold: distlock::backend::postgres::PostgresHold)
/// # -> Result<(), tokio_postgres::Error> {
/// // With tokio-postgres; in sqlx it is `sqlx::query(&hold.sql).bind(&hold.name).bind(hold.token).execute(&mut *transaction)`.
/// transaction.execute(&hold.sql, &[&hold.name, &hold.token]).await?;
/// transaction.execute("UPDATE account SET balance = 0", &[]).await?;
/// transaction.commit().await
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostgresHold {
    /// The text of the statement.
    pub sql: String,
    /// Its first parameter, a text: the lock's name with the prefix.
    pub name: String,
    /// Its second parameter, a `bigint`.
    pub token: i64,
}

/// Gives access to an engine that a locker has taken; made by [`Postgres::handle`].
#[derive(Debug, Clone)]
pub struct PostgresHandle {
    options: Arc<Options>,
}

impl Postgres {
    /// Returns a handle that stays usable when a locker has taken the engine.
    #[must_use]
    pub fn handle(&self) -> PostgresHandle {
        PostgresHandle { options: self.options.clone() }
    }
}

impl PostgresHandle {
    /// Returns the statement by which a transaction relies on the hold of `key` with `token`.
    #[must_use]
    pub fn hold(&self, key: &Key, token: FencingToken) -> PostgresHold {
        let sql = format!("SELECT {}.hold($1, $2)", self.options.schema);
        let name = format!("{}{}", self.options.prefix, key.as_str());
        // No hold has a token beyond `bigint`: the statement fails.
        PostgresHold { sql, name, token: i64::try_from(token.get()).unwrap_or(-1) }
    }
}
