//! Makes the tables and functions of the engine.

use std::time::Duration;

use crate::engines::postgres::client::Postgres;
use crate::engines::postgres::wire::connection::Connection;
use crate::types::error::Result;

/// How long making the schema may take: another set-up may be under way.
const LONGEST: Duration = Duration::from_secs(60);

impl Postgres {
    /// Returns the SQL that makes the engine's tables and functions, for a database administrator to run. It can be
    /// repeated, and brings an older schema up to date.
    #[must_use]
    pub fn setup_sql(&self) -> String {
        self.options.schema.sql()
    }

    /// Makes the engine's tables and functions, or brings them up to date. The user owns them, and must have the right to
    /// create a schema in the database.
    ///
    /// # Errors
    /// Kind `Unavailable` or `Auth` if the server cannot be used, `Auth` if the user may not do this, `Config` if the
    /// schema is newer than this version of distlock. Nothing is changed then.
    pub async fn setup(&self) -> Result<()> {
        Connection::set_up(&self.options, &self.options.schema.statements(), LONGEST).await
    }
}
