//! The engine's row: one Redis by TCP or a socket, behind sentinels, or a cluster.

use std::path::PathBuf;

#[cfg(feature = "redis")]
use crate::contract::{BoxFuture, DynBackend};
#[cfg(feature = "redis")]
use crate::engines::redis::{Protocol, Redis, RedisBuilder};
use crate::engines::shared::host::{Credentials, Host, percent_decode};
use crate::engines::shared::row::{EngineAddress, EngineRow, Scheme, WithoutUrl};
#[cfg(feature = "redis")]
use crate::engines::shared::settings::{EngineSettings, TlsFiles};
use crate::engines::shared::url_parts::{UrlParts, whole_number};
use crate::types::error::Result;
#[cfg(feature = "redis")]
use crate::types::finding::Finding;

pub(crate) const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const OPTIONS: &[&str] = &["restart_guard", "wait_replicas", "protocol", "db"];
/// A cluster has database 0 only.
const CLUSTER_OPTIONS: &[&str] = &["restart_guard", "wait_replicas", "protocol"];

pub(crate) static ROW: EngineRow = EngineRow {
    name: "redis",
    feature: Some("redis"),
    needs_runtime: true,
    needs_username: false,
    schemes: &[
        scheme("redis", false, OPTIONS, RedisAddress::read_one),
        scheme("rediss", true, OPTIONS, RedisAddress::read_one),
        scheme("valkey", false, OPTIONS, RedisAddress::read_one),
        scheme("valkeys", true, OPTIONS, RedisAddress::read_one),
        scheme("redis+unix", false, OPTIONS, RedisAddress::read_unix),
        scheme("redis+sentinel", false, OPTIONS, RedisAddress::read_sentinel),
        scheme("rediss+sentinel", true, OPTIONS, RedisAddress::read_sentinel),
        scheme("redis+cluster", false, CLUSTER_OPTIONS, RedisAddress::read_cluster),
        scheme("rediss+cluster", true, CLUSTER_OPTIONS, RedisAddress::read_cluster),
    ],
    without_url: WithoutUrl::Endpoints { plain: &["redis"], tls: &["rediss"] },
};

const fn scheme(
    name: &'static str,
    tls: bool,
    options: &'static [&'static str],
    read: fn(&mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String>,
) -> Scheme {
    Scheme { name, tls, allows_at_in_path: false, options, read }
}

/// One Redis, however many servers it is made of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RedisAddress {
    pub(crate) servers: RedisServers,
    pub(crate) credentials: Credentials,
    pub(crate) options: RedisOptions,
}

/// How a Redis is found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RedisServers {
    One(Host),
    Unix(PathBuf),
    Sentinel { sentinels: Vec<Host>, service: String },
    Cluster(Vec<Host>),
}

/// The options of the connections to a Redis server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RedisOptions {
    pub(crate) tls: bool,
    pub(crate) db: u32,
    /// The version of the Redis protocol, 2 or 3; `None`: the best that the server speaks.
    pub(crate) protocol: Option<u8>,
    /// `None`: the engine's own default.
    pub(crate) restart_guard: Option<bool>,
    /// How many replicas must have a grant.
    pub(crate) wait_replicas: u32,
}

impl RedisOptions {
    /// Reads the options of a URL whose path, if it has one, is `/db`.
    pub(crate) fn read(url: &UrlParts<'_>, db_path: &str) -> Result<RedisOptions, String> {
        let restart_guard = url.option("restart_guard", |value| match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err("neither on nor off".into()),
        })?;
        let wait_replicas =
            url.option("wait_replicas", |value| value.parse().map_err(|_| "not a number of replicas".into()))?;
        let protocol = url.option("protocol", |value| match value {
            "2" => Ok(2),
            "3" => Ok(3),
            _ => Err("neither 2 nor 3".into()),
        })?;
        let db = match (url.option("db", whole_number)?, db_path.strip_prefix('/').unwrap_or_default()) {
            (db, "") => db.unwrap_or_default(),
            (None, path) => whole_number(path).map_err(|fault| format!("the path is to name a database: {fault}"))?,
            (Some(_), _) => return Err("the database is given twice, as the path and as an option".into()),
        };
        Ok(RedisOptions { tls: url.tls, db, protocol, restart_guard, wait_replicas: wait_replicas.unwrap_or_default() })
    }
}

impl RedisAddress {
    fn read_one(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        let (hosts, credentials) = url.cluster(REDIS_PORT)?;
        let servers = RedisServers::One(only(hosts)?);
        Ok(Box::new(RedisAddress { servers, credentials, options: RedisOptions::read(url, url.path)? }))
    }

    /// The path is the socket's, so a password comes as a field, and the database as an option.
    fn read_unix(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        url.no_hosts("redis+unix:///path")?;
        let servers = RedisServers::Unix(url.file()?);
        let options = RedisOptions::read(url, "")?;
        Ok(Box::new(RedisAddress { servers, credentials: Credentials::default(), options }))
    }

    fn read_sentinel(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        let (sentinels, credentials) = url.cluster(SENTINEL_PORT)?;
        let path = url.path.strip_prefix('/').unwrap_or_default();
        let (service, db) = path.split_at(path.find('/').unwrap_or(path.len()));
        let service = percent_decode(service).map_err(|fault| format!("the service name: {fault}"))?;
        if service.is_empty() {
            return Err("the service name is missing; write redis+sentinel://host/service".into());
        }
        let servers = RedisServers::Sentinel { sentinels, service };
        Ok(Box::new(RedisAddress { servers, credentials, options: RedisOptions::read(url, db)? }))
    }

    fn read_cluster(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        let (hosts, credentials) = url.cluster(REDIS_PORT)?;
        let options = RedisOptions::read(url, url.path)?;
        if options.db != 0 {
            return Err("a cluster has database 0 only".into());
        }
        Ok(Box::new(RedisAddress { servers: RedisServers::Cluster(hosts), credentials, options }))
    }
}

fn only(hosts: Vec<Host>) -> Result<Host, String> {
    let count = hosts.len();
    let [host] = <[Host; 1]>::try_from(hosts).map_err(|_| {
        format!(
            "{count} hosts where one belongs; several need redis+sentinel://, redis+cluster:// or redlock://, \
             and a comma in a password is written %2C"
        )
    })?;
    Ok(host)
}

impl EngineAddress for RedisAddress {
    fn row(&self) -> &'static EngineRow {
        &ROW
    }

    fn tls(&self) -> Option<bool> {
        match self.servers {
            RedisServers::Unix(_) => None,
            _ => Some(self.options.tls),
        }
    }

    fn credentials_mut(&mut self) -> Vec<&mut Credentials> {
        vec![&mut self.credentials]
    }

    #[cfg(feature = "redis")]
    fn open(&self, settings: &EngineSettings) -> Result<Box<dyn DynBackend>> {
        Ok(Box::new(self.build(settings)?))
    }

    #[cfg(feature = "redis")]
    fn examine<'a>(&'a self, settings: &'a EngineSettings) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async { Ok(self.build(settings)?.examine(settings.default_ttl, settings.history > 0).await) })
    }
}

#[cfg(feature = "redis")]
fn place(host: &Host) -> (&str, u16) {
    (&host.name, host.port)
}

#[cfg(feature = "redis")]
impl RedisAddress {
    fn build(&self, settings: &EngineSettings) -> Result<Redis> {
        let builder = match &self.servers {
            RedisServers::One(host) => Redis::tcp(&host.name, host.port),
            RedisServers::Unix(path) => Redis::unix(path),
            RedisServers::Sentinel { sentinels, service } => Redis::sentinel(sentinels.iter().map(place), service),
            RedisServers::Cluster(nodes) => Redis::cluster(nodes.iter().map(place)),
        };
        let builder = self.options.apply(builder, &self.credentials, &settings.tls)?;
        let builder = builder.restart_guard(self.options.restart_guard == Some(true));
        builder.prefix(&settings.prefix).dial_timeout(settings.dial_timeout).build()
    }
}

#[cfg(feature = "redis")]
impl RedisOptions {
    /// Sets everything that concerns the connections to each server.
    pub(crate) fn apply(
        &self,
        mut builder: RedisBuilder,
        credentials: &Credentials,
        files: &TlsFiles,
    ) -> Result<RedisBuilder> {
        if let Some(username) = &credentials.username {
            builder = builder.username(username);
        }
        if let Some(password) = &credentials.password {
            builder = builder.password(password.expose());
        }
        if let Some(version) = self.protocol {
            builder = builder.protocol(if version == 2 { Protocol::Resp2 } else { Protocol::Resp3 });
        }
        if self.tls {
            builder = builder.tls(files.read_ca()?);
            if let Some((certificate, key)) = files.read_identity()? {
                builder = builder.tls_identity(certificate, key);
            }
        }
        Ok(builder.database(self.db).wait_replicas(self.wait_replicas))
    }
}
