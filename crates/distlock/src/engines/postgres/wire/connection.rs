//! One session with the server.

use std::cmp;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row};

use crate::engines::postgres::error::{Stage, Verdict, classify, is_settings_refusal};
use crate::engines::postgres::protocol::requests::{Statement, column};
use crate::engines::postgres::protocol::schema::VERSION;
use crate::engines::postgres::protocol::time::COMMAND_TIMEOUT;
use crate::engines::postgres::state::server_clock::{Reading, ServerClock};
use crate::engines::postgres::wire::lender::{self, Lender, LentClient};
use crate::engines::postgres::wire::options::{Options, Server};
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};

/// The oldest server: 13.
const OLDEST_SERVER: i32 = 130_000;

/// Settings of a session. A session in which the first is missing is behind a pooler that lends servers by the
/// transaction: nothing of a session lasts there.
///
/// The server ends a statement just before its sender gives up, so that its outcome is known. Claims that meet wait for
/// each other's rows; under a stricter isolation they would fail instead. A plan is made once for a session: while the
/// table is small, it must not be one that reads the whole table.
const SESSION: &str = "-c distlock.session=own -c statement_timeout=900ms -c enable_seqscan=off \
                       -c plan_cache_mode=force_generic_plan -c default_transaction_isolation=read\\ committed";

/// A message of `NOTIFY`.
pub(in crate::engines) struct Notified {
    pub(in crate::engines) channel: String,
    pub(in crate::engines) text: String,
}

/// One session. Dropping it closes it, or gives it back to the pool that lent it.
pub(in crate::engines) struct Connection {
    /// Distinguishes the connections of this process.
    pub(in crate::engines) id: u64,
    session: Session,
    place: Arc<str>,
    /// Whether a pooler may give each transaction another server.
    pub(in crate::engines) is_pooled: bool,
    /// Set before the driver has ended, which takes its runtime.
    is_given_up: AtomicBool,
    clock: Arc<ServerClock>,
    /// By their texts.
    prepared: Vec<(String, tokio_postgres::Statement)>,
}

/// How statements reach the server.
enum Session {
    /// With the task that moves its bytes.
    Own(Client, AbortHandle),
    Lent(LentClient),
}

impl Connection {
    /// Opens a session with the primary among the servers, or borrows one where there is a lender and no `messages` are
    /// asked for. `prepare` are the statements that it will be used for most.
    ///
    /// # Errors
    /// That of the last server that could not be used.
    pub(in crate::engines) async fn open(
        options: &Options,
        clock: &Arc<ServerClock>,
        prepare: &[&Statement],
        messages: Option<&mpsc::UnboundedSender<Notified>>,
    ) -> Result<Connection> {
        if let (Some(lender), None) = (&options.lender, messages) {
            let borrowing = async {
                let mut connection = Self::borrow(lender, clock).await?;
                connection.check(options).await.map(|()| connection)
            };
            return borrow_within(options.dial_timeout, borrowing).await;
        }
        let mut failed = None;
        for server in &options.servers {
            let opening = Self::open_one(options, server, clock, prepare, messages);
            match tokio::time::timeout(options.dial_timeout, opening).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => failed = Some(error),
                Err(_) => {
                    let limit = options.dial_timeout;
                    failed = Some(Error::unavailable(format!(
                        "postgres: {} did not reply in {limit:?}",
                        server.dialer.place
                    )));
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Config, "postgres: no server is given")))
    }

    async fn open_one(
        options: &Options,
        server: &Server,
        clock: &Arc<ServerClock>,
        prepare: &[&Statement],
        messages: Option<&mpsc::UnboundedSender<Notified>>,
    ) -> Result<Connection> {
        let session = Some(SESSION).filter(|_| !options.is_pooled);
        let mut connection = match Self::dial(options, server, clock, session, messages).await {
            Err(Dialling::Settings) => Self::dial(options, server, clock, None, messages).await,
            opened => opened,
        }
        .map_err(|failure| failure.into_error(&server.dialer.place))?;
        connection.check(options).await?;
        if !connection.is_pooled {
            for statement in prepare {
                let prepared = connection.client().prepare_typed(&statement.text, statement.types).await;
                let prepared = prepared.map_err(|error| classify(&server.dialer.place, &error, Stage::Opening).0)?;
                connection.prepared.push((statement.text.clone(), prepared));
            }
        }
        Ok(connection)
    }

    /// Borrows a session with a primary. It counts as pooled: nothing that lasts in a session is done there, since others use
    /// it later.
    async fn borrow(lender: &Lender, clock: &Arc<ServerClock>) -> Result<Connection> {
        let connection = Self::new(Session::Lent(lender.lend().await?), lender::PLACE.into(), clock);
        let (first, second) = (connection.look().await?, connection.look().await?);
        // What is claimed in a transaction of the application would be granted when that ends, or never.
        if first.began == second.began {
            let help = "end every transaction before its connection goes back to the pool";
            return Err(
                Error::new(ErrorKind::Config, "postgres: the pool lent a connection in a transaction").with_help(help)
            );
        }
        Ok(connection)
    }

    /// Runs the statements of `sql` on the primary, for at most `limit`, whether or not the schema is there.
    pub(in crate::engines) async fn set_up(options: &Options, sql: &str, limit: Duration) -> Result<()> {
        let clock = Arc::new(ServerClock::new(crate::types::clock::Clock::system(), 0.0));
        if let Some(lender) = &options.lender {
            let connection = borrow_within(options.dial_timeout, Self::borrow(lender, &clock)).await?;
            return connection.execute_within(limit, sql).await;
        }
        let mut failed = None;
        for server in &options.servers {
            let opened =
                tokio::time::timeout(options.dial_timeout, Self::dial(options, server, &clock, None, None)).await;
            let connection = match opened {
                Ok(Ok(connection)) => connection,
                Ok(Err(failure)) => {
                    failed = Some(failure.into_error(&server.dialer.place));
                    continue;
                }
                Err(_) => {
                    failed = Some(Error::unavailable(format!("postgres: {} did not reply", server.dialer.place)));
                    continue;
                }
            };
            match connection.look().await {
                Ok(_) => return connection.execute_within(limit, sql).await,
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Config, "postgres: no server is given")))
    }

    async fn dial(
        options: &Options,
        server: &Server,
        clock: &Arc<ServerClock>,
        session: Option<&str>,
        messages: Option<&mpsc::UnboundedSender<Notified>>,
    ) -> Result<Connection, Dialling> {
        let stream = server.dialer.open("postgres").await.map_err(Dialling::Unreachable)?;
        let mut config = Config::new();
        config.user(&options.user).dbname(&options.database).application_name("distlock");
        config.ssl_mode(tokio_postgres::config::SslMode::Disable);
        if let Some(password) = &server.password {
            config.password(password.expose());
        }
        if let Some(session) = session {
            config.options(session);
        }
        let (client, mut driver) = match config.connect_raw(stream, NoTls).await {
            Ok(opened) => opened,
            Err(error) if session.is_some() && is_settings_refusal(&error) => return Err(Dialling::Settings),
            Err(error) => return Err(Dialling::Postgres(error)),
        };
        let messages = messages.cloned();
        // tidy-allow(spawn): moves bytes for every caller, so it must not end with one of them; ends with the connection
        let driving = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| driver.poll_message(context)).await {
                if let (AsyncMessage::Notification(it), Some(messages)) = (message, &messages) {
                    let notified = Notified { channel: it.channel().into(), text: it.payload().into() };
                    let _ = messages.send(notified);
                }
            }
        });
        let own = Session::Own(client, driving.abort_handle());
        let mut connection = Self::new(own, server.dialer.place.clone(), clock);
        connection.is_pooled = session.is_none();
        Ok(connection)
    }

    fn new(session: Session, place: Arc<str>, clock: &Arc<ServerClock>) -> Connection {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let (id, clock) = (NUMBER.fetch_add(1, Ordering::Relaxed), clock.clone());
        let is_given_up = AtomicBool::new(false);
        Connection { id, session, place, is_pooled: true, is_given_up, clock, prepared: Vec::new() }
    }

    fn client(&self) -> &Client {
        match &self.session {
            Session::Own(client, _) => client,
            Session::Lent(lent) => lent.client(),
        }
    }

    pub(in crate::engines) fn is_lent(&self) -> bool {
        matches!(self.session, Session::Lent(_))
    }

    /// Checks that this is a primary that the engine can use, and learns what is behind the connection.
    async fn check(&mut self, options: &Options) -> Result<()> {
        let session = self.look().await?.session;
        let sent = self.clock.now();
        let row = self.client().query_typed_one(&options.statements.greet.text, &[]).await;
        let row = row.map_err(|error| classify(&self.place, &error, Stage::Opening).0)?;
        self.clock.saw(Reading { sent, received: self.clock.now(), server_us: column(&row, 1)? });
        let found = column(&row, 0)?;
        let compatible_from = if found == VERSION + 1 { self.compatible_from(options).await? } else { None };
        check_version(found, compatible_from, &options.schema.to_string())?;
        self.is_pooled |= session.as_deref() != Some("own");
        Ok(())
    }

    /// Returns the oldest version whose clients can use the schema, if the schema says so.
    async fn compatible_from(&self, options: &Options) -> Result<Option<i32>> {
        match self.client().query_typed_one(&options.statements.compatible_from.text, &[]).await {
            Ok(row) => column(&row, 0).map(Some),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_FUNCTION) => Ok(None),
            Err(error) => Err(classify(&self.place, &error, Stage::Opening).0),
        }
    }

    /// Looks at the session, if the server is a primary of a version that can be used.
    async fn look(&self) -> Result<Look> {
        const LOOK: &str = "SELECT current_setting('distlock.session', true), pg_is_in_recovery(), \
                            current_setting('server_version_num')::int, now()::text";
        let opening = |error: &tokio_postgres::Error| classify(&self.place, error, Stage::Opening).0;
        let row = self.client().query_typed_one(LOOK, &[]).await.map_err(|error| opening(&error))?;
        let (session, is_replica): (Option<String>, bool) = (column(&row, 0)?, column(&row, 1)?);
        let version: i32 = column(&row, 2)?;
        check_server(version, &self.place)?;
        if is_replica {
            let message = format!("postgres: {} is a replica, which cannot be written to", self.place);
            return Err(Error::unavailable(message).with_help("name the primary, or all servers"));
        }
        Ok(Look { session, began: column(&row, 3)? })
    }

    /// Sends a statement and returns its rows. Kind `Unknown` when no reply comes in time; the connection is then closed.
    pub(in crate::engines) async fn query(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.query_within(COMMAND_TIMEOUT, statement, parameters).await
    }

    /// As [`query`](Connection::query), for at most `limit`.
    pub(in crate::engines) async fn query_within(
        &self,
        limit: Duration,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        match tokio::time::timeout(limit, self.send(statement, parameters)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                let (error, verdict) = classify(&self.place, &error, Stage::Request);
                if verdict == Verdict::Drop {
                    self.close();
                }
                Err(error)
            }
            Err(_) => {
                self.close();
                Err(Error::unknown(format!("postgres: {} did not reply in {limit:?}", self.place)))
            }
        }
    }

    async fn send(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let prepared = self.prepared.iter().find(|(text, _)| *text == statement.text);
        match prepared {
            Some((_, prepared)) => self.client().query(prepared, parameters).await,
            None => {
                let typed: Vec<_> = parameters.iter().copied().zip(statement.types.iter().cloned()).collect();
                self.client().query_typed(&statement.text, &typed).await
            }
        }
    }

    /// Sends a command without parameters.
    pub(in crate::engines) async fn execute(&self, command: &str) -> Result<()> {
        self.execute_within(COMMAND_TIMEOUT, command).await
    }

    async fn execute_within(&self, limit: Duration, command: &str) -> Result<()> {
        let replied = tokio::time::timeout(limit, self.client().batch_execute(command)).await;
        let replied = replied.map_err(|_| Error::unknown(format!("postgres: {} did not reply", self.place)))?;
        replied.map_err(|error| classify(&self.place, &error, Stage::Request).0)
    }

    /// Notes what the server's clock showed in the reply to a request that was sent at `sent`.
    pub(in crate::engines) fn saw_clock(&self, sent: Moment, server_us: i64) {
        self.clock.saw(Reading { sent, received: self.clock.now(), server_us });
    }

    /// Returns the time on the server's clock after which a claim that is sent now is refused.
    pub(in crate::engines) fn not_after(&self, sent: Moment) -> i64 {
        self.clock.latest(sent, COMMAND_TIMEOUT)
    }

    pub(in crate::engines) fn is_closed(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire) || self.client().is_closed()
    }

    /// Closes the socket, and requests that are under way fail. A client that is lent goes back when no request uses it.
    pub(in crate::engines) fn close(&self) {
        self.is_given_up.store(true, Ordering::Release);
        if let Session::Own(_, driver) = &self.session {
            driver.abort();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a session is like.
struct Look {
    /// The mark of our own sessions.
    session: Option<String>,
    /// When the transaction began.
    began: String,
}

async fn borrow_within(limit: Duration, borrowing: impl Future<Output = Result<Connection>>) -> Result<Connection> {
    tokio::time::timeout(limit, borrowing).await.unwrap_or_else(|_| {
        let message = format!("postgres: the pool lent no connection that replied in {limit:?}");
        Err(Error::unavailable(message).with_help("a locker keeps two connections of the pool: make the pool larger"))
    })
}

/// Why a session was not opened.
enum Dialling {
    Unreachable(Error),
    Postgres(tokio_postgres::Error),
    /// A pooler is in between, or the server is too old: the settings of a session are refused.
    Settings,
}

impl Dialling {
    fn into_error(self, place: &str) -> Error {
        match self {
            Dialling::Unreachable(error) => error,
            Dialling::Postgres(error) => classify(place, &error, Stage::Opening).0,
            Dialling::Settings => Error::unavailable(format!("postgres: {place} refuses the session")),
        }
    }
}

/// Refuses a server that is too old.
fn check_server(version: i32, place: &str) -> Result<()> {
    if version >= OLDEST_SERVER {
        return Ok(());
    }
    // Before version 10 the second number belongs to the name: 9.6 is 90600.
    let found = if version < 100_000 {
        format!("{}.{}", version / 10_000, version / 100 % 100)
    } else {
        (version / 10_000).to_string()
    };
    let message = format!("postgres: {place} is version {found}, and at least 13 is needed");
    Err(Error::new(ErrorKind::Unsupported, message).with_help("upgrade the server, or name another one in the URL"))
}

/// Refuses a schema of another version, unless it is the next one and says that clients of this version can use it.
fn check_version(found: i32, compatible_from: Option<i32>, schema: &str) -> Result<()> {
    let (message, help) = match found.cmp(&VERSION) {
        cmp::Ordering::Equal => return Ok(()),
        cmp::Ordering::Greater if compatible_from.is_some_and(|oldest| oldest <= VERSION) => return Ok(()),
        cmp::Ordering::Less => ("too old", "bring it up to date with `distlock setup URL`"),
        cmp::Ordering::Greater => ("too new", "use a newer version of distlock"),
    };
    let message = format!("postgres: the schema {schema} is {message}: version {found}, and {VERSION} is needed");
    Err(Error::new(ErrorKind::Config, message).with_help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_before_13_is_refused_with_its_version() {
        for (version, name) in [(120_022, "version 12,"), (90_624, "version 9.6,"), (0, "version 0.0,")] {
            let error = check_server(version, "db:5432").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(name) && error.to_string().contains("db:5432"), "{error}");
        }
        assert!(check_server(130_000, "db:5432").is_ok() && check_server(180_001, "db:5432").is_ok());
    }
}
