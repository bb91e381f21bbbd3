//! From a URL or a configuration to a locker: the only place that knows all engines.

use crate::api::locker::Locker;
#[cfg(any(test, not(all(feature = "etcd", feature = "redis"))))]
use crate::config::Driver;
#[cfg(any(feature = "etcd", feature = "redis"))]
use crate::config::TlsFiles;
use crate::config::url::Target;
#[cfg(any(feature = "etcd", feature = "redis"))]
use crate::config::url::{Credentials, Host};
#[cfg(feature = "redis")]
use crate::config::url::{Node, Protocol, RedisOptions, RedisServers};
use crate::config::{Config, Settings};
use crate::contract::DynBackend;
use crate::core::family::check_runtime;
#[cfg(feature = "etcd")]
use crate::engines::etcd::{Etcd, EtcdBuilder};
use crate::engines::file::{self, FileBackend, default_dir};
use crate::engines::memory::{Memory, Store};
#[cfg(feature = "redis")]
use crate::engines::redis::{self, Redis, RedisBuilder};
#[cfg(feature = "redis")]
use crate::engines::redlock::Redlock;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::finding::Finding;

impl Locker {
    /// A locker on the engine that `url` names: `mem://`, `file:///dir`, `redis://host`, `redlock://h1,h2,h3`,
    /// `etcd://h1,h2`.
    ///
    /// Every `mem://` of a process is the same store, and so is every `mem://name` with the same name.
    ///
    /// # Errors
    /// Kind `Config` when the URL is not acceptable, before anything is sent; `Unsupported` when the engine is not
    /// part of this build, naming its feature; `Unavailable` when it cannot be reached. Never a weaker lock instead.
    /// Kind `Config` outside of a tokio runtime, too, where the engine needs one: Redis, Redlock and etcd.
    pub async fn connect(url: &str) -> Result<Locker> {
        Locker::from_config(&Config::from_url(url)?).await
    }

    /// A locker on the engine that `config` names, with its defaults.
    ///
    /// # Errors
    /// As [`connect`](Locker::connect), naming the field that is not acceptable.
    pub async fn from_config(config: &Config) -> Result<Locker> {
        let settings = config.validate()?;
        check_place(&settings)?;
        let locker = Locker::builder()
            .default_ttl(settings.default_ttl)
            .retry_interval(settings.retry_interval)
            .max_retries(settings.max_retries)
            .history(settings.history)
            .build_boxed(open(&settings)?)?;
        locker.ready().await?;
        Ok(locker)
    }
}

/// Looks at the engine that `config` names, for what makes locks there unsafe, slow or impossible.
///
/// It connects by itself and leaves nothing behind; on Redis it writes keys that nobody uses, and on etcd leases. What
/// the servers do not allow to be asked is a [`Note`](crate::Severity::Note).
///
/// # Errors
/// Kind `Config` and `Unsupported`, as [`Locker::from_config`]. An engine that cannot be reached is a finding.
///
/// # Cancel safety
/// Dropping the future closes its connections; a key of a dropped script is gone within a millisecond, a lease with its
/// time to live.
pub async fn examine(config: &Config) -> Result<Vec<Finding>> {
    let settings = config.validate()?;
    check_place(&settings)?;
    match &settings.target {
        Target::Memory { .. } => {
            Ok(vec![Finding::note("scope", "memory", "locks end with this process, and no other process sees them")])
        }
        Target::File { dir } => {
            let dir = dir.clone().map_or_else(default_dir, Ok)?;
            Ok(file::examine(&dir))
        }
        #[cfg(feature = "redis")]
        Target::Redis { servers, credentials, options } => {
            let engine = redis(&settings, servers, credentials, options)?;
            Ok(engine.examine(settings.default_ttl, settings.history > 0).await)
        }
        #[cfg(feature = "redis")]
        Target::Redlock { nodes, options } => {
            Ok(redlock(&settings, nodes, options)?.examine(settings.default_ttl).await)
        }
        #[cfg(feature = "etcd")]
        Target::Etcd { hosts, credentials, tls, .. } => {
            Ok(etcd(&settings, hosts, credentials, *tls)?.build()?.examine(settings.default_ttl).await)
        }
        #[cfg(not(all(feature = "etcd", feature = "redis")))]
        other => Err(not_built_in(other.driver())),
    }
}

/// Refuses to open connections where nothing would drive them.
fn check_place(settings: &Settings) -> Result<()> {
    match &settings.target {
        Target::Memory { .. } | Target::File { .. } => Ok(()),
        remote => check_runtime(remote.driver().as_str()),
    }
}

fn open(settings: &Settings) -> Result<Box<dyn DynBackend>> {
    match &settings.target {
        Target::Memory { name } => {
            refuse_prefix(settings)?;
            Ok(Box::new(Memory::on(&Store::public(name.as_deref()))))
        }
        Target::File { dir } => {
            refuse_prefix(settings)?;
            let backend = match dir {
                Some(dir) => FileBackend::in_dir(dir)?,
                None => FileBackend::host(default_dir()?),
            };
            Ok(Box::new(backend))
        }
        #[cfg(feature = "redis")]
        Target::Redis { servers, credentials, options } => {
            Ok(Box::new(redis(settings, servers, credentials, options)?))
        }
        #[cfg(feature = "redis")]
        Target::Redlock { nodes, options } => Ok(Box::new(redlock(settings, nodes, options)?)),
        #[cfg(feature = "etcd")]
        Target::Etcd { hosts, credentials, tls, verbatim } => {
            let builder = etcd(settings, hosts, credentials, *tls)?;
            Ok(Box::new(if *verbatim { builder.verbatim_names() } else { builder }.build()?))
        }
        #[cfg(not(all(feature = "etcd", feature = "redis")))]
        other => Err(not_built_in(other.driver())),
    }
}

#[cfg(feature = "redis")]
fn redis(
    settings: &Settings,
    servers: &RedisServers,
    credentials: &Credentials,
    options: &RedisOptions,
) -> Result<Redis> {
    let engine = speak_redis(reach_redis(servers), credentials, options);
    let engine = if options.tls { encrypt_redis(engine, &settings.tls)? } else { engine };
    engine.prefix(&settings.prefix).dial_timeout(settings.dial_timeout).build()
}

#[cfg(feature = "redis")]
fn place(host: &Host) -> (&str, u16) {
    (&host.name, host.port)
}

#[cfg(feature = "redis")]
fn reach_redis(servers: &RedisServers) -> RedisBuilder {
    match servers {
        RedisServers::One(host) => Redis::tcp(&host.name, host.port),
        RedisServers::Unix(path) => Redis::unix(path),
        RedisServers::Sentinel { sentinels, service } => Redis::sentinel(sentinels.iter().map(place), service),
        RedisServers::Cluster(nodes) => Redis::cluster(nodes.iter().map(place)),
    }
}

#[cfg(feature = "redis")]
fn speak_redis(mut engine: RedisBuilder, credentials: &Credentials, options: &RedisOptions) -> RedisBuilder {
    if let Some(username) = &credentials.username {
        engine = engine.username(username);
    }
    if let Some(password) = &credentials.password {
        engine = engine.password(password.expose());
    }
    if let Some(protocol) = options.protocol {
        engine = engine.protocol(match protocol {
            Protocol::Resp2 => redis::Protocol::Resp2,
            Protocol::Resp3 => redis::Protocol::Resp3,
        });
    }
    let engine = engine.database(options.db).wait_replicas(options.wait_replicas);
    engine.restart_guard(options.restart_guard == Some(true))
}

#[cfg(feature = "redis")]
fn encrypt_redis(engine: RedisBuilder, files: &TlsFiles) -> Result<RedisBuilder> {
    let engine = engine.tls(read_ca(files)?);
    Ok(match read_identity(files)? {
        Some((certificate, key)) => engine.tls_identity(certificate, key),
        None => engine,
    })
}

#[cfg(feature = "redis")]
fn redlock(settings: &Settings, nodes: &[Node], options: &RedisOptions) -> Result<Redlock> {
    // The guard is the engine's own here, not that of each node.
    let each = RedisOptions { restart_guard: None, ..options.clone() };
    let builder = |node: &Node| {
        let node = speak_redis(Redis::tcp(&node.host.name, node.host.port), &node.credentials, &each);
        if options.tls { encrypt_redis(node, &settings.tls) } else { Ok(node) }
    };
    let nodes = nodes.iter().map(builder).collect::<Result<Vec<_>>>()?;
    let engine = Redlock::of(nodes).prefix(&settings.prefix).dial_timeout(settings.dial_timeout);
    if options.restart_guard == Some(false) { engine.without_restart_guard().build() } else { engine.build() }
}

#[cfg(feature = "etcd")]
fn etcd(settings: &Settings, hosts: &[Host], credentials: &Credentials, tls: bool) -> Result<EtcdBuilder> {
    let mut builder = Etcd::builder(hosts.iter().map(ToString::to_string))
        .prefix(&settings.prefix)
        .dial_timeout(settings.dial_timeout);
    if let Credentials { username: Some(name), password: Some(password) } = credentials {
        builder = builder.login(name, password.expose());
    }
    if tls {
        builder = builder.tls(read_ca(&settings.tls)?);
        if let Some((certificate, key)) = read_identity(&settings.tls)? {
            builder = builder.tls_identity(certificate, key);
        }
    }
    Ok(builder)
}

#[cfg(any(feature = "etcd", feature = "redis"))]
fn read_ca(files: &TlsFiles) -> Result<Option<Vec<u8>>> {
    files.ca.as_deref().map(|file| read_pem("tls_ca", file)).transpose()
}

/// Our certificate and its key.
#[cfg(any(feature = "etcd", feature = "redis"))]
fn read_identity(files: &TlsFiles) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    let Some((certificate, key)) = &files.identity else { return Ok(None) };
    Ok(Some((read_pem("tls_cert", certificate)?, read_pem("tls_key", key)?)))
}

#[cfg(any(feature = "etcd", feature = "redis"))]
fn read_pem(field: &str, file: &std::path::Path) -> Result<Vec<u8>> {
    let refuse = |e| Error::new(ErrorKind::Config, format!("{field}: {}: {e}", file.display()));
    std::fs::read(file).map_err(refuse)
}

/// These engines have no server to share with others, so nothing to keep apart by a prefix.
fn refuse_prefix(settings: &Settings) -> Result<()> {
    if settings.prefix.is_empty() {
        return Ok(());
    }
    let driver = settings.target.driver();
    Err(Error::new(ErrorKind::Config, format!("prefix: the {driver} engine has none")))
}

#[cfg(any(test, not(all(feature = "etcd", feature = "redis"))))]
fn not_built_in(driver: Driver) -> Error {
    let error = Error::new(ErrorKind::Unsupported, format!("the {driver} engine is not part of this build"));
    let feature = match driver {
        Driver::Redlock => "redis",
        _ => driver.as_str(),
    };
    error.with_help(format!("turn on the feature \"{feature}\" of the crate distlock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_is_not_built_in_names_its_feature() {
        for (driver, feature) in [(Driver::Redis, "redis"), (Driver::Redlock, "redis"), (Driver::Etcd, "etcd")] {
            let error = not_built_in(driver);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(&format!("feature \"{feature}\"")), "{error}");
        }
    }
}
