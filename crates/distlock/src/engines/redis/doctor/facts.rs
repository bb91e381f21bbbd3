//! What one server says about itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisConnectionInfo, RedisError, RedisResult, Value};

use crate::engines::redis::error::{Stage, classify};
use crate::engines::redis::protocol::names::{Fences, HISTORY_SUFFIX};
use crate::engines::redis::protocol::script::read_time;
use crate::engines::redis::wire::natives::Natives;
use crate::engines::redis::wire::options::{Options, Protocol};
use crate::engines::redis::wire::probe::is_refused_right;
use crate::engines::redis::wire::server_identity::ServerIdentity;
use crate::engines::shared::dial::Dialer;
use crate::types::clock::Clock;
use crate::types::error::{Error, ErrorKind, Result};

const RIGHTS: &str = include_str!("rights.lua");

/// The settings that are looked at.
const SETTINGS: [&str; 7] = [
    "save",
    "appendfsync",
    "bind",
    "min-replicas-to-write",
    "cluster-require-full-coverage",
    "protected-mode",
    "stop-writes-on-bgsave-error",
];

/// How often the time is asked for, and how long between.
const ROUNDS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// What one server says about itself.
#[derive(Debug, Default)]
pub(in crate::engines) struct Facts {
    /// Where it is, for messages.
    pub(in crate::engines) place: Arc<str>,
    pub(super) round_trips: Vec<Duration>,
    /// How far the server's clock is ahead of ours, in seconds, at least and at most; one for each round.
    pub(super) clock: Vec<(f64, f64)>,
    /// What INFO says; `None` without the right to ask.
    pub(super) info: Option<HashMap<String, String>>,
    /// What CONFIG GET says; `None` without the right to ask.
    pub(super) config: Option<HashMap<String, String>>,
    /// Which server it is.
    pub(super) identity: ServerIdentity,
    /// The native commands that are used.
    pub(super) natives: Natives,
    /// Whether it takes commands without a log-in.
    pub(super) is_open: bool,
    /// What it refuses to do for us, each with the reason.
    pub(super) refused: Vec<(String, String)>,
    /// The fence of the prefix, if there is one.
    pub(super) fence: Option<FenceFact>,
}

/// The fence of a prefix as a server has it.
#[derive(Debug)]
pub(super) struct FenceFact {
    pub(super) key: String,
    pub(super) value: String,
    /// The server's clock when it was read.
    pub(super) server_us: u64,
}

impl Facts {
    pub(in crate::engines) fn info(&self, field: &str) -> Option<&str> {
        self.info.as_ref()?.get(field).map(String::as_str)
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.info(field)?.parse().ok()
    }

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.config.as_ref()?.get(name).map(String::as_str)
    }

    /// By how many seconds its clock is certainly ahead of ours, or behind.
    pub(in crate::engines) fn clock_offset(&self) -> Option<(f64, f64)> {
        let least = self.clock.iter().map(|(least, _)| *least).reduce(f64::max)?;
        let most = self.clock.iter().map(|(_, most)| *most).reduce(f64::min)?;
        Some((least.min(most), most.max(least)))
    }

    /// Asks the server at `server` everything. `lock` is the key of an unused lock; `history` says whether what a
    /// history needs is tried too.
    pub(super) async fn collect(options: &Options, server: &Dialer, lock: &str, history: bool) -> Result<Facts> {
        let ours = options.login(Protocol::Resp2);
        let facts = with_connection(options, server, &ours, async |connection| {
            let mut facts = Facts { place: server.place.clone(), ..Facts::default() };
            facts.keep_time(connection).await?;
            facts.read_itself(connection).await?;
            facts.try_rights(connection, options, lock, history).await?;
            facts.read_fence(connection, options).await?;
            let listed = ask(connection, &Natives::question()).await;
            for (native, trial) in Natives::trials(&options.prefix, listed) {
                let found = Natives::tried(native, ask(connection, &trial).await).map_err(|error| failed(&error))?;
                if let Some(natives) = found {
                    facts.natives = natives;
                    break;
                }
            }
            Ok(facts)
        });
        let mut facts = facts.await?;
        match options.is_cluster {
            true => facts.try_sharded_listening(options, server, lock).await,
            false => facts.try_listening(options, server, &ours).await,
        }
        facts.is_open = match options.password {
            None => true,
            Some(_) => is_open(options, server).await,
        };
        Ok(facts)
    }

    async fn keep_time(&mut self, connection: &mut MultiplexedConnection) -> Result<()> {
        let clock = Clock::system();
        let wall = || clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        for _ in 0..ROUNDS {
            let (start, before) = (clock.now(), wall());
            let answer = ask(connection, &redis::cmd("TIME")).await;
            let (took, after) = (clock.now().since(start), wall());
            match answer {
                Ok(time) => {
                    let server = read_time(time)? as f64 / 1e6;
                    self.round_trips.push(took);
                    self.clock.push((server - after, server - before));
                }
                Err(error) if is_refusal(&error) => return Ok(()),
                Err(error) => return Err(failed(&error)),
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn read_itself(&mut self, connection: &mut MultiplexedConnection) -> Result<()> {
        let info: Option<String> = allowed(connection, &redis::cmd("INFO")).await?;
        let fields = |text: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        self.info = info.as_deref().map(fields);
        let hello = allowed(connection, &redis::cmd("HELLO")).await?.map(ServerIdentity::of_hello).unwrap_or_default();
        // INFO first: a server may be set to call itself Redis in HELLO.
        self.identity = self.info.as_ref().map(ServerIdentity::of_info).unwrap_or_default().or(hello);
        let mut settings = HashMap::new();
        for name in SETTINGS {
            // One by one: before 7.0 it takes only one, and not every version knows all.
            let found: Option<Vec<String>> = allowed(connection, redis::cmd("CONFIG").arg("GET").arg(name)).await?;
            let Some(found) = found else { return Ok(()) };
            settings.extend(found.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())));
        }
        self.config = Some(settings);
        Ok(())
    }

    /// Reads the fence that all locks behind the prefix share.
    async fn read_fence(&mut self, connection: &mut MultiplexedConnection, options: &Options) -> Result<()> {
        let Fences::OfPrefix(key) = options.fences() else { return Ok(()) };
        let time: Option<Value> = allowed(connection, &redis::cmd("TIME")).await?;
        let value: Option<Option<String>> = allowed(connection, redis::cmd("GET").arg(&key)).await?;
        if let (Some(time), Some(Some(value))) = (time, value) {
            self.fence = Some(FenceFact { key, value, server_us: read_time(time)? });
        }
        Ok(())
    }

    /// Does everything once that locking needs, on unused keys: an access list may be asked only by few.
    async fn try_rights(
        &mut self,
        connection: &mut MultiplexedConnection,
        options: &Options,
        lock: &str,
        history: bool,
    ) -> Result<()> {
        let fence = format!("{{{lock}}}:f");
        let history_key = history.then(|| format!("{{{lock}}}{HISTORY_SUFFIX}"));
        let (publish, channel) = match options.is_cluster {
            true => ("SPUBLISH", options.sharded_channel(&fence)),
            false => ("PUBLISH", options.channel()),
        };
        let mut script = redis::cmd("EVAL");
        let keys = [lock, &fence].into_iter().chain(history_key.as_deref());
        script.arg(RIGHTS).arg(keys.clone().count());
        for key in keys {
            script.arg(key);
        }
        script.arg(publish).arg(channel);
        let unknown = "0".repeat(40);
        let alone = [
            script,
            redis::cmd("EVALSHA").arg(unknown).arg(0).to_owned(),
            redis::cmd("ROLE"),
            redis::cmd("SCAN").arg(0).arg("COUNT").arg(1).to_owned(),
        ];
        let wait = (options.wait_replicas > 0).then(|| redis::cmd("WAIT").arg(0).arg(0).to_owned());
        for (command, name) in alone.iter().chain(&wait).zip(["EVAL", "EVALSHA", "ROLE", "SCAN", "WAIT"]) {
            match ask(connection, command).await {
                Ok(answer) if name == "EVAL" => self.refused.extend(pairs(answer)),
                Ok(_) => {}
                Err(error) if name == "EVALSHA" && error.code() == Some("NOSCRIPT") => {}
                Err(error) if error.is_io_error() => return Err(failed(&error)),
                Err(error) => {
                    let code = error.code().unwrap_or_default();
                    self.refused.push((name.into(), format!("{code} {}", error.detail().unwrap_or_default())));
                }
            }
        }
        Ok(())
    }

    /// Subscribes as the connections to a cluster do: to the channel of a lock, over the newer protocol.
    async fn try_sharded_listening(&mut self, options: &Options, server: &Dialer, lock: &str) {
        let login = options.login(Protocol::Resp3);
        let asked = with_connection(options, server, &login, async |connection| {
            let channel = options.sharded_channel(&format!("{{{lock}}}:f"));
            Ok(ask(connection, redis::cmd("SSUBSCRIBE").arg(channel)).await.err())
        });
        if let Ok(Some(error)) = asked.await
            && is_refused_right(&error)
        {
            self.refused.push(("SSUBSCRIBE".into(), format!("NOPERM {error}")));
        }
    }

    async fn try_listening(&mut self, options: &Options, server: &Dialer, login: &RedisConnectionInfo) {
        let listening = async {
            let stream = server.open("redis").await?;
            let mut listener = PubSub::new(login, stream).await.map_err(|error| failed(&error))?;
            listener.subscribe(options.channel()).await.map_err(|error| failed(&error))
        };
        if let Ok(Err(error)) = tokio::time::timeout(options.dial_timeout, listening).await
            && error.kind() == ErrorKind::Auth
        {
            self.refused.push(("SUBSCRIBE".into(), format!("NOPERM {error}")));
        }
    }
}

/// Returns whether the server takes commands without a password.
async fn is_open(options: &Options, server: &Dialer) -> bool {
    let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
    let asked = with_connection(options, server, &nobody, async |connection| {
        ask(connection, &redis::cmd("PING")).await.map_err(|error| failed(&error))
    });
    asked.await.is_ok()
}

/// Opens a connection and does `work` with it. It ends when the future is dropped.
pub(super) async fn with_connection<T>(
    options: &Options,
    server: &Dialer,
    login: &RedisConnectionInfo,
    work: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T>,
) -> Result<T> {
    let silent = || Error::unavailable(format!("redis: {} does not answer", server.place));
    let opening = async {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(options.dial_timeout));
        let opened = MultiplexedConnection::new_with_config(login, server.open("redis").await?, config).await;
        opened.map_err(|error| failed(&error))
    };
    let opened = tokio::time::timeout(options.dial_timeout, opening).await;
    let (mut connection, driver) = opened.unwrap_or_else(|_| Err(silent()))?;
    tokio::select! {
        done = work(&mut connection) => done,
        () = driver => Err(silent()),
    }
}

pub(super) async fn ask(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}

/// The answer; `None` when the server does not allow the question or does not know it.
pub(super) async fn allowed<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Option<T>> {
    match ask(connection, command).await {
        Ok(answer) => Ok(redis::from_redis_value(answer).ok()),
        Err(error) if error.is_io_error() => Err(failed(&error)),
        Err(_) => Ok(None),
    }
}

fn pairs(answer: Value) -> Vec<(String, String)> {
    let words: Vec<String> = redis::from_redis_value(answer).unwrap_or_default();
    words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn is_refusal(error: &RedisError) -> bool {
    classify(error, Stage::Request).kind() == ErrorKind::Auth
}

fn failed(error: &RedisError) -> Error {
    classify(error, Stage::Opening)
}
