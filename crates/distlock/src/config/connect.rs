//! From a URL or a configuration to a locker, and to an examination of its engine.

use crate::api::locker::Locker;
use crate::config::fields::Config;
use crate::config::settings::Settings;
use crate::core::family::check_runtime;
use crate::types::error::Result;
use crate::types::finding::Finding;

impl Locker {
    /// Returns a locker on the engine that `url` names: `mem://`, `file:///dir`, `redis://host`, `redlock://h1,h2,h3`,
    /// `etcd://h1,h2`.
    ///
    /// Every `mem://` of a process is the same store, and so is every `mem://name` with the same name.
    ///
    /// # Errors
    /// Kind `Config` if the URL is invalid, before anything is sent; `Unsupported` if the engine is not part of this
    /// build, naming its feature; `Unavailable` if it cannot be reached: there is no fallback to a weaker lock. Also
    /// kind `Config` outside a tokio runtime if the engine needs one: Redis, Redlock and etcd.
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

/// Refuses to open connections where no runtime would drive them.
fn check_place(settings: &Settings) -> Result<()> {
    let row = settings.address.row();
    if row.needs_runtime { check_runtime(row.name) } else { Ok(()) }
}
