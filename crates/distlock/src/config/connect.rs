//! From a URL or a configuration to a locker, and to an examination of its engine.

use crate::api::locker::Locker;
use crate::config::fields::Config;
use crate::config::settings::Settings;
use crate::core::family::check_runtime;
use crate::types::error::Result;
use crate::types::finding::Finding;

impl Locker {
    /// Returns a locker on the engine that `url` names: `mem://`, `file:///dir`, `redis://host`, `redlock://h1,h2,h3`,
    /// `etcd://h1,h2`, `postgres://user@host/database`.
    ///
    /// Every `mem://` of a process is the same store, and so is every `mem://name` with the same name.
    ///
    /// # Errors
    /// Kind `Config` if the URL is invalid, before anything is sent; `Unsupported` if the engine is not part of this
    /// build, naming its feature; `Unavailable` if it cannot be reached: there is no fallback to a weaker lock. Also
    /// kind `Config` outside a tokio runtime if the engine needs one: Redis, Redlock, etcd and PostgreSQL.
    pub async fn connect(url: &str) -> Result<Locker> {
        Locker::from_config(&Config::from_url(url)?).await
    }

    /// Returns a locker on the engine that `config` names, with its defaults.
    ///
    /// # Errors
    /// As [`connect`](Locker::connect), naming the invalid field.
    pub async fn from_config(config: &Config) -> Result<Locker> {
        let settings = config.validate()?;
        check_place(&settings)?;
        let locker = Locker::builder()
            .default_ttl(settings.engine.default_ttl)
            .retry_interval(settings.retry_interval)
            .max_retries(settings.max_retries)
            .history(settings.engine.history)
            .build_boxed(settings.address.open(&settings.engine)?)?;
        locker.ready().await?;
        Ok(locker)
    }
}

/// Examines the engine that `config` names for what makes locks there unsafe, slow or impossible.
///
/// It opens its own connections and leaves nothing behind; on Redis it writes temporary keys, and on etcd leases. A
/// question that the servers refuse is a [`Note`](crate::Severity::Note).
///
/// # Errors
/// Kind `Config` and `Unsupported`, as [`Locker::from_config`]. An engine that cannot be reached is a finding.
///
/// # Cancel safety
/// Dropping the future closes its connections; a temporary key expires within a millisecond, a lease with its TTL.
pub async fn examine(config: &Config) -> Result<Vec<Finding>> {
    let settings = config.validate()?;
    check_place(&settings)?;
    settings.address.examine(&settings.engine).await
}

/// Returns the commands that prepare the servers of the engine that `config` names; `None` if they need no preparation.
///
/// # Errors
/// Kind `Config`, naming the invalid field.
pub fn setup_sql(config: &Config) -> Result<Option<String>> {
    let settings = config.validate()?;
    settings.address.setup_sql(&settings.engine)
}

/// Prepares the servers of the engine that `config` names: on PostgreSQL, makes the engine's tables and functions or brings
/// them up to date. It can be repeated. Returns whether the engine needs that.
///
/// # Errors
/// Kind `Config` and `Unsupported`, as [`Locker::from_config`]; `Unavailable` and `Auth` if the servers cannot be reached or
/// refuse it.
///
/// # Cancel safety
/// Dropping the future closes its connection: all is done, or nothing.
pub async fn set_up(config: &Config) -> Result<bool> {
    let settings = config.validate()?;
    check_place(&settings)?;
    if settings.address.setup_sql(&settings.engine)?.is_none() {
        return Ok(false);
    }
    settings.address.set_up(&settings.engine).await.map(|()| true)
}

/// Refuses to open connections where no runtime would drive them.
fn check_place(settings: &Settings) -> Result<()> {
    let row = settings.address.row();
    if row.needs_runtime { check_runtime(row.name) } else { Ok(()) }
}
