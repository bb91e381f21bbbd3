//! From a URL or a configuration to a locker: the only place that knows all engines.

use crate::backend::DynBackend;
#[cfg(feature = "etcd")]
use crate::backend::etcd::Etcd;
use crate::backend::memory::{Memory, Store};
use crate::config::{Config, Driver, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::locker::Locker;
use crate::url::Target;
#[cfg(feature = "etcd")]
use crate::url::{Credentials, Host};

impl Locker {
    /// A locker on the engine that `url` names: `mem://`, `file:///dir`, `redis://host`, `redlock://h1,h2,h3`,
    /// `etcd://h1,h2`.
    ///
    /// # Errors
    /// Kind `Config` when the URL is not acceptable, before anything is sent; `Unsupported` when the engine is not
    /// part of this build, naming its feature; `Unavailable` when it cannot be reached. Never a weaker lock instead.
    pub async fn connect(url: &str) -> Result<Locker> {
        Locker::from_config(&Config::from_url(url)?).await
    }

    /// A locker on the engine that `config` names, with its defaults.
    ///
    /// # Errors
    /// As [`connect`](Locker::connect), naming the field that is not acceptable.
    pub async fn from_config(config: &Config) -> Result<Locker> {
        let settings = config.validate()?;
        let locker = Locker::builder()
            .default_ttl(settings.default_ttl)
            .retry_interval(settings.retry_interval)
            .max_retries(settings.max_retries)
            .build_boxed(open(&settings)?)?;
        locker.ready().await?;
        Ok(locker)
    }
}

fn open(settings: &Settings) -> Result<Box<dyn DynBackend>> {
    match &settings.target {
        Target::Memory { name } => {
            refuse_prefix(settings)?;
            Ok(Box::new(Memory::on(&name.as_deref().map_or_else(Store::new, Store::named))))
        }
        #[cfg(feature = "etcd")]
        Target::Etcd { hosts, credentials, tls } => Ok(Box::new(etcd(settings, hosts, credentials, *tls)?)),
        other => Err(not_built_in(other.driver())),
    }
}

#[cfg(feature = "etcd")]
fn etcd(settings: &Settings, hosts: &[Host], credentials: &Credentials, tls: bool) -> Result<Etcd> {
    let mut builder = Etcd::builder(hosts.iter().map(ToString::to_string))
        .prefix(&settings.prefix)
        .dial_timeout(settings.dial_timeout);
    if let Credentials { username: Some(name), password: Some(password) } = credentials {
        builder = builder.login(name, password.expose());
    }
    if tls {
        let files = &settings.tls;
        builder = builder.tls(files.ca.as_deref().map(|file| read_pem("tls_ca", file)).transpose()?);
        if let Some((certificate, key)) = &files.identity {
            builder = builder.tls_identity(read_pem("tls_cert", certificate)?, read_pem("tls_key", key)?);
        }
    }
    builder.build()
}

#[cfg(feature = "etcd")]
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

fn not_built_in(driver: Driver) -> Error {
    let feature = if driver == Driver::Redlock { Driver::Redis } else { driver };
    Error::new(ErrorKind::Unsupported, format!("the {driver} engine is not part of this build"))
        .with_help(format!("turn on the feature \"{feature}\" of the crate distlock"))
}
