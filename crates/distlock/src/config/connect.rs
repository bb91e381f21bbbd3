//! From a URL or a configuration to a locker, and to an examination of its engine.

use crate::api::builder::LockerBuilder;
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
    /// Every `mem://` of a process is the same store, and so is every `mem://name` with the same name. The options of each
    /// URL are on the page of its engine in `docs/backends/`; all engines have `?default_ttl=`, those with servers also
    /// `?prefix=`.
    ///
    /// ```
    /// # use distlock::{ErrorKind, Locker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let locker = Locker::connect("mem://jobs?default_ttl=30s").await?;
    /// locker.lock("nightly").await?.unlock().await?;
    ///
    /// let mistake = Locker::connect("mem://jobs?default_tll=30s").await.unwrap_err();
    /// assert_eq!(mistake.kind(), ErrorKind::Config);
    /// # Ok(()) }
    /// ```
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
        Locker::builder().from_config(config).await
    }
}

#[cfg(feature = "blocking")]
impl crate::api::blocking::Blocking {
    /// Returns a locker on the engine that `url` names, as [`Locker::connect`], and blocks the thread until it is
    /// connected.
    ///
    /// # Errors
    /// As [`Locker::connect`]; kind `Config` inside a tokio runtime.
    pub fn connect(url: &str) -> Result<Self> {
        Self::build(Locker::builder(), url)
    }

    /// Returns the locker of `builder` on the engine that `url` names, as [`LockerBuilder::connect`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn build(builder: LockerBuilder, url: &str) -> Result<Self> {
        crate::api::blocking::refuse_runtime()?;
        let settings = builder.settings(&Config::from_url(url)?)?;
        let locker = Self::of(builder.open(&settings)?);
        locker.wait(locker.ready())?;
        Ok(locker)
    }
}

impl LockerBuilder {
    /// Returns a locker on the engine that `url` names, as [`Locker::connect`], with what was set here.
    ///
    /// What the URL says wins: the builder's TTL and history are the defaults of a URL without them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use distlock::{Event, Locker};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let locker = Locker::builder()
    ///     .default_ttl(Duration::from_secs(30))
    ///     .observer(|event: &Event<'_>| println!("{event:?}"))
    ///     .connect("mem://")
    ///     .await?;
    /// # locker.lock("a").await?.unlock().await }
    /// ```
    ///
    /// # Errors
    /// As [`Locker::connect`].
    pub async fn connect(self, url: &str) -> Result<Locker> {
        self.from_config(&Config::from_url(url)?).await
    }

    /// Returns a locker on the engine that `config` names, as [`Locker::from_config`], with what was set here.
    ///
    /// What the configuration says wins: TTL, retry interval, number of retries and history of the builder are the
    /// defaults of a configuration without them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use distlock::{Config, Locker};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// // As a service would: `Config::from_toml(&text)?.or(Config::from_env()?)`.
    /// let config = Config::from_vars(|name| match name {
    ///     "DISTLOCK_URL" => Some("mem://".into()),
    ///     "DISTLOCK_DEFAULT_TTL" => Some("30s".into()),
    ///     _ => None,
    /// })?;
    /// assert_eq!(config.default_ttl, Some(Duration::from_secs(30)));
    /// let locker = Locker::builder().history(100).from_config(&config).await?;
    /// let guard = locker.lock("invoice:42").await?;
    /// assert!(guard.remaining() > Some(Duration::from_secs(20)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Locker::from_config`].
    // The receiver is a builder that is used up.
    #[allow(clippy::wrong_self_convention)]
    pub async fn from_config(self, config: &Config) -> Result<Locker> {
        let settings = self.settings(config)?;
        check_place(&settings)?;
        let locker = self.open(&settings)?;
        locker.ready().await?;
        Ok(locker)
    }

    /// Returns a locker on the engine that `url` names without waiting for the engine: for services that must start
    /// before their engine is there. Requests find out whether it can be reached, and wait for it as they do after an
    /// outage; a wrong password shows then, too.
    ///
    /// ```
    /// # #[cfg(feature = "redis")]
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// // No server is there yet.
    /// let locker = distlock::Locker::builder().connect_lazy("redis://127.0.0.1:1/")?;
    /// assert!(locker.try_lock("invoice:42").await.is_err_and(|error| error.is_retryable()));
    /// # Ok(()) }
    /// # #[cfg(not(feature = "redis"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`Locker::connect`], except that an engine that cannot be reached is no error yet.
    pub fn connect_lazy(self, url: &str) -> Result<Locker> {
        self.from_config_lazy(&Config::from_url(url)?)
    }

    /// Returns a locker on the engine that `config` names without waiting for the engine, as
    /// [`connect_lazy`](LockerBuilder::connect_lazy).
    ///
    /// ```
    /// # #[cfg(feature = "etcd")]
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # use distlock::{Config, Locker};
    /// let mut config = Config::from_url("etcd://127.0.0.1:1")?;
    /// config.prefix = Some("jobs/".into());
    /// let locker = Locker::builder().from_config_lazy(&config)?;
    /// # drop(locker);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "etcd"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`Locker::from_config`], except that an engine that cannot be reached is no error yet.
    // The receiver is a builder that is used up.
    #[allow(clippy::wrong_self_convention)]
    pub fn from_config_lazy(self, config: &Config) -> Result<Locker> {
        let settings = self.settings(config)?;
        check_place(&settings)?;
        self.open(&settings)
    }

    /// Checks `config`, with the builder's defaults where it says nothing.
    fn settings(&self, config: &Config) -> Result<Settings> {
        self.check_defaults()?;
        let defaults = Config {
            default_ttl: Some(self.options.ttl),
            retry_interval: Some(self.options.retry_interval),
            max_retries: Some(self.options.max_retries),
            history: Some(self.history),
            ..Config::default()
        };
        config.clone().or(defaults).validate()
    }

    /// Returns a locker whose engine may not be connected yet.
    fn open(mut self, settings: &Settings) -> Result<Locker> {
        self.options.ttl = settings.engine.default_ttl;
        self.options.retry_interval = settings.retry_interval;
        self.options.max_retries = settings.max_retries;
        self.history = settings.engine.history;
        self.build_boxed(settings.address.open(&settings.engine)?)
    }
}

/// Examines the engine that `config` names for what makes locks there unsafe, slow or impossible.
///
/// It opens its own connections and leaves nothing behind; on Redis it writes temporary keys, and on etcd leases. A
/// question that the servers refuse is a [`Note`](crate::Severity::Note).
///
/// ```
/// use distlock::{Config, Severity};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// for finding in distlock::examine(&Config::from_url("mem://")?).await? {
///     println!("{}: {} {}", finding.severity, finding.found, finding.fix);
///     assert!(finding.severity < Severity::Unsafe);
/// }
/// # Ok(()) }
/// ```
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
/// They are for an administrator to run, where the program itself may not run [`set_up`].
///
/// ```
/// # #[cfg(feature = "postgres")] {
/// use distlock::{Config, setup_sql};
///
/// let sql = setup_sql(&Config::from_url("postgres://app@db/shop?schema=locks")?)?;
/// assert!(sql.is_some_and(|sql| sql.contains("locks")));
/// # }
/// assert_eq!(distlock::setup_sql(&distlock::Config::from_url("mem://")?)?, None);
/// # Ok::<(), distlock::Error>(())
/// ```
///
/// # Errors
/// Kind `Config`, naming the invalid field.
pub fn setup_sql(config: &Config) -> Result<Option<String>> {
    let settings = config.validate()?;
    settings.address.setup_sql(&settings.engine)
}

/// Prepares the servers of the engine that `config` names: on PostgreSQL, makes the engine's tables and functions or brings
/// them up to date. It can be repeated. Returns whether the engine needs that. In the shell: `distlock setup URL`.
///
/// ```no_run
/// # async fn f() -> distlock::Result<()> {
/// use distlock::{Config, Locker, set_up};
///
/// let config = Config::from_url("postgres://app@db/shop")?;
/// set_up(&config).await?; // once, or at every start
/// let locker = Locker::from_config(&config).await?;
/// # Ok(()) }
/// ```
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
