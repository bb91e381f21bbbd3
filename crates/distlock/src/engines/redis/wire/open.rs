//! Opening a connection: dialling, logging in, and the checks before it is used.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use redis::aio::{PubSub, PubSubStream};
use redis::{PushKind, RedisError, RedisResult, Value};

use crate::engines::redis::error::{Stage, classify, classify_at};
use crate::engines::redis::protocol::script::read_time;
use crate::engines::redis::state::restart_guard::Look;
use crate::engines::redis::wire::connection::{Connection, Listening, warn_of};
use crate::engines::redis::wire::driver::Driver;
use crate::engines::redis::wire::log_in::log_in;
use crate::engines::redis::wire::options::{Options, Protocol};
use crate::engines::redis::wire::probe::Probe;
use crate::engines::redis::wire::server_clock::{Reading, ServerClock};
use crate::engines::redis::wire::socket::Socket;
use crate::engines::shared::dial::Dialer;
use crate::engines::shared::waiting::Waiting;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};

/// Dials, logs in, makes sure that the server is a master, and subscribes if there is `waiting` to listen for. In this
/// order, so that no request goes over a connection that is not ready.
pub(super) async fn open(
    options: &Options,
    waiting: Option<Arc<Waiting>>,
    server_clock: &Arc<ServerClock>,
) -> Result<(Arc<Connection>, Driver)> {
    let server = options.find().await?;
    match options.protocol {
        Some(protocol) => open_as(options, &server, waiting, server_clock, protocol).await,
        None => match open_as(options, &server, waiting.clone(), server_clock, Protocol::Resp3).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                open_as(options, &server, waiting, server_clock, Protocol::Resp2).await
            }
            outcome => outcome,
        },
    }
}

async fn open_as(
    options: &Options,
    server: &Dialer,
    waiting: Option<Arc<Waiting>>,
    server_clock: &Arc<ServerClock>,
    protocol: Protocol,
) -> Result<(Arc<Connection>, Driver)> {
    let logged_in = log_in(&options.login(protocol), server.open("redis").await?).await;
    let socket = Arc::new(Socket::new(logged_in.map_err(|error| login_failed(options, server, &error))?));
    let (clock, hearing) = (server_clock.clone(), waiting.clone());
    let mut driver = socket.clone().drive(move |kind, data| {
        if let Some(waiting) = &hearing {
            hear_push(waiting, kind, data, clock.now());
        }
    });
    let (connection, listening) = tokio::select! {
        biased;
        prepared = prepare(options, server, waiting.clone(), server_clock, protocol, socket) => prepared?,
        () = &mut driver => {
            return Err(Error::unavailable(format!("redis: {}: the connection broke while it was opened", server.place)));
        }
    };
    let connection = Arc::new(connection);
    let (place, natives) = (&connection.place, &connection.natives);
    tracing::debug!(target: "distlock", %place, %natives, "connected to redis");
    Ok((connection.clone(), drive(connection, driver, listening, waiting)))
}

/// Returns what drives the connection: its socket, the batches, and the listening connection. One task, so that a batch
/// needs no change of tasks. It ends when one of them does.
fn drive(
    connection: Arc<Connection>,
    driver: Driver,
    listening: Option<Driver>,
    waiting: Option<Arc<Waiting>>,
) -> Driver {
    Box::pin(async move {
        // Also when this is dropped: the requests in batches wait for replies that no task reads then.
        let _ending = Ending(connection.clone());
        let loading = async {
            connection.load_scripts().await;
            std::future::pending::<()>().await;
        };
        let listening = async {
            match listening {
                Some(listening) => listening.await,
                None => std::future::pending().await,
            }
        };
        // Behind the callers whose replies came with the messages: a runtime runs the task first that was woken last, and for
        // the release of the new holder others wait.
        let waking = poll_fn(|_| {
            waiting.iter().for_each(|waiting| waiting.wake_told());
            Poll::<()>::Pending
        });
        let driving = async {
            driver.await;
            // What came with the end of the connection.
            connection.deliver();
            waiting.iter().for_each(|waiting| waiting.wake_told());
        };
        tokio::select! {
            biased;
            () = driving => {}
            () = connection.send_batches() => {}
            () = loading => {}
            () = listening => {}
            () = waking => {}
        }
    })
}

/// A connection that is given up when this is dropped.
pub(super) struct Ending(pub(super) Arc<Connection>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Sends the commands that come before the connection is open for use.
async fn prepare(
    options: &Options,
    server: &Dialer,
    waiting: Option<Arc<Waiting>>,
    server_clock: &Arc<ServerClock>,
    protocol: Protocol,
    socket: Arc<Socket>,
) -> Result<(Connection, Option<Driver>)> {
    let failed = |error: RedisError| opening_failed(server, &error);
    let found = Probe::ask(&socket, options, &server.place).await?;
    check_role(&socket, server, found.identity.is_master).await?;
    if let Some(refusal) = &found.mute {
        warn_of_polling(refusal);
    }
    if let Some(guard) = &options.guard {
        let canary = socket.ask(&guard.ask()).await.map_err(failed)?;
        guard.learn(&canary, Look::First, server_clock.now());
    }
    let sent = server_clock.now();
    let time = socket.ask(&redis::cmd("TIME")).await.map_err(failed)?;
    let reading = Reading { sent, received: server_clock.now(), server_us: read_time(time)? };
    let leap = server_clock.met(&server.place, reading);
    if let (Some(leap), Some(_)) = (leap, &waiting) {
        // The waiters are woken when the connection is open.
        warn_of(leap);
    }
    let (mut listening, mut listener) = (Listening::No, None);
    match (waiting.clone(), protocol) {
        (None, _) => {}
        (Some(_), Protocol::Resp3) => {
            if may_listen(socket.subscribe(&options.channel()).await, server)? {
                listening = Listening::Here;
            }
        }
        (Some(waiting), Protocol::Resp2) => {
            let mut second =
                PubSub::new(&options.login(protocol), server.open("redis").await?).await.map_err(failed)?;
            if may_listen(second.subscribe(options.channel()).await, server)? {
                let (sink, stream) = second.split();
                listening = Listening::Beside(tokio::sync::Mutex::new(sink));
                listener = Some(Box::pin(listen(stream, waiting, server_clock.clone())) as Driver);
            }
        }
    }
    let (place, server_clock) = (server.place.clone(), server_clock.clone());
    Ok((Connection::new(socket, options, place, server_clock, waiting, listening, found), listener))
}

/// Refuses a replica, which would refuse every claim: the link then looks for the master.
async fn check_role(socket: &Socket, server: &Dialer, is_master: Option<bool>) -> Result<()> {
    match is_master {
        Some(true) => return Ok(()),
        Some(false) => return Err(no_master(server, "replica")),
        None => {}
    }
    match socket.ask(&redis::cmd("ROLE")).await {
        Ok(Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(role)) if role != b"master" => {
                Err(no_master(server, &String::from_utf8_lossy(role)))
            }
            _ => Ok(()),
        },
        // Without the right to ask, the first claim tells.
        Ok(_) => Ok(()),
        Err(error) if classify(&error, Stage::Request).kind() == ErrorKind::Auth => Ok(()),
        Err(error) => Err(opening_failed(server, &error)),
    }
}

fn no_master(server: &Dialer, role: &str) -> Error {
    Error::unavailable(format!("redis: {} is no master (its role is {role})", server.place))
}

/// Returns whether the subscription stands. Without the right to it waiters poll; other failures are failures.
fn may_listen(subscribed: RedisResult<()>, server: &Dialer) -> Result<bool> {
    match subscribed.map_err(|error| opening_failed(server, &error)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Auth => {
            warn_of_polling(&error.to_string());
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Says once that waiters poll.
pub(super) fn warn_of_polling(refusal: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::warn!(target: "distlock", error = %refusal, "redis refuses the wake-up channel: waiters poll");
    });
}

/// Returns the error of a log-in. A database that the server refuses is not replaced by another one.
fn login_failed(options: &Options, server: &Dialer, error: &RedisError) -> Error {
    if options.database == 0 || !error.to_string().contains("refused to switch database") {
        return opening_failed(server, error);
    }
    let (place, database, reason) = (&server.place, options.database, error.detail().unwrap_or_default());
    let text = format!("redis: {place} refuses SELECT {database}: {reason}; only database 0 is left there");
    Error::new(ErrorKind::Config, text)
}

fn opening_failed(server: &Dialer, error: &RedisError) -> Error {
    classify_at(&server.place, error, Stage::Opening)
}

fn hear_push(waiting: &Waiting, kind: &PushKind, data: &[Value], received: Moment) {
    if let (PushKind::Message, [_, Value::BulkString(message)]) = (kind, data) {
        waiting.take_message(message, received);
    }
}

async fn listen(mut stream: PubSubStream, waiting: Arc<Waiting>, clock: Arc<ServerClock>) {
    let next = |stream: &mut PubSubStream, context: &mut std::task::Context<'_>| {
        futures_core::Stream::poll_next(Pin::new(stream), context)
    };
    while let Some(message) = std::future::poll_fn(|context| next(&mut stream, context)).await {
        waiting.hear(message.get_payload_bytes(), clock.now());
    }
}
