//! Orders in SQLite. Every write is fenced: the statement itself refuses a holder that a later one has overtaken.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock::FencingToken;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;

use super::failure::Failure;

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL, token INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS summary (
        id INTEGER PRIMARY KEY CHECK (id = 1), orders INTEGER NOT NULL, leader TEXT NOT NULL, token INTEGER NOT NULL
    );
";

/// Compares the tokens and writes in one step.
const WRITE_ORDER: &str = "
    INSERT INTO orders (id, state, token) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, token = excluded.token WHERE token <= excluded.token
";

const WRITE_SUMMARY: &str = "
    INSERT INTO summary (id, orders, leader, token) SELECT 1, count(*), ?1, ?2 FROM orders WHERE true
    ON CONFLICT (id) DO UPDATE SET orders = excluded.orders, leader = excluded.leader, token = excluded.token
    WHERE token <= excluded.token
";

#[derive(Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) state: String,
    /// The fencing token of the last write.
    pub(crate) token: FencingToken,
}

/// What the leader writes.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) orders: i64,
    pub(crate) leader: String,
    pub(crate) token: FencingToken,
}

#[derive(Debug, Clone)]
pub(crate) struct Store(Arc<Mutex<Connection>>);

impl Store {
    pub(crate) fn open(file: &Path) -> rusqlite::Result<Store> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.execute_batch(TABLES)?;
        Ok(Store(Arc::new(Mutex::new(connection))))
    }

    /// Writes an order, unless a later holder of its lock has.
    pub(crate) async fn write(&self, id: i64, state: String, token: FencingToken) -> Result<Order, Failure> {
        self.run(move |connection| {
            tracing::info!(id, %token, "writing order");
            fenced(connection.execute(WRITE_ORDER, params![id, state, token.get()])?)?;
            Ok(Order { id, state, token })
        })
        .await
    }

    /// Writes the summary, unless a later leader has.
    pub(crate) async fn summarize(&self, leader: Arc<str>, token: FencingToken) -> Result<(), Failure> {
        self.run(move |connection| fenced(connection.execute(WRITE_SUMMARY, params![leader, token.get()])?)).await
    }

    pub(crate) async fn order(&self, id: i64) -> Result<Option<Order>, Failure> {
        self.run(move |connection| {
            let found = connection.query_row("SELECT id, state, token FROM orders WHERE id = ?1", [id], order);
            Ok(found.optional()?)
        })
        .await
    }

    pub(crate) async fn orders(&self) -> Result<Vec<Order>, Failure> {
        self.run(|connection| {
            let mut all = connection.prepare("SELECT id, state, token FROM orders ORDER BY id")?;
            Ok(all.query_map([], order)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(crate) async fn summary(&self) -> Result<Option<Summary>, Failure> {
        self.run(|connection| {
            let found = connection.query_row("SELECT orders, leader, token FROM summary", [], |row| {
                Ok(Summary { orders: row.get(0)?, leader: row.get(1)?, token: token(row, 2)? })
            });
            Ok(found.optional()?)
        })
        .await
    }

    /// Runs `work` on a thread that may block. It goes on if the future is dropped, as on a loss: the fence stays.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let connection = self.0.clone();
        let task =
            tokio::task::spawn_blocking(move || work(&connection.lock().unwrap_or_else(PoisonError::into_inner)));
        task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

/// Fails if the fence let no row be changed.
fn fenced(changed: usize) -> Result<(), Failure> {
    if changed == 0 {
        metrics::counter!("orders_stale_writes_total").increment(1);
        return Err(Failure::Stale);
    }
    Ok(())
}

fn order(row: &Row<'_>) -> rusqlite::Result<Order> {
    Ok(Order { id: row.get(0)?, state: row.get(1)?, token: token(row, 2)? })
}

fn token(row: &Row<'_>, column: usize) -> rusqlite::Result<FencingToken> {
    Ok(FencingToken::new(row.get(column)?))
}
