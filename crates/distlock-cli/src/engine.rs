//! Opens the engine: flags override the environment, which overrides the file; without any, locks are on this machine.

use std::path::{Path, PathBuf};

use distlock::backend::Scope;
use distlock::backend::file::{FileBackend, default_dir, private_mount};
use distlock::{Config, Error, ErrorKind, Finding, Key, Locker, LockerBuilder, Severity, redact, without_passwords};
use tokio::time::timeout;

use crate::flags;
use crate::note::Note;

/// The merged settings of the command line, the environment and the configuration file.
#[derive(Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    scope: Option<flags::Scope>,
}

/// An open engine.
#[derive(Debug)]
pub struct Engine {
    /// The locker of this engine.
    pub locker: Locker,
    /// The engine's name, without secrets.
    pub name: String,
    keeps_history: bool,
    /// The directory of this machine's locks, when `--scope` requires that every process sees it.
    must_reach_host: Option<PathBuf>,
}

impl Engine {
    /// Refuses a lock of this machine that not all its processes can see, if `--scope` is given.
    ///
    /// # Errors
    /// Kind `Config`.
    pub fn check_reach(&self, key: &Key) -> Result<(), Error> {
        let Some(dir) = &self.must_reach_host else { return Ok(()) };
        let path = if key.as_str().contains('/') { Path::new(key.as_str()) } else { dir };
        match private_mount(path) {
            Some(from) => {
                let message = format!(
                    "--scope: {} is mounted from {} here, and other processes of this machine see another directory",
                    path.display(),
                    from.display()
                );
                Err(Error::new(ErrorKind::Config, message)
                    .with_help("create /run/distlock at boot, or set DISTLOCK_LOCK_DIR"))
            }
            None => Ok(()),
        }
    }

    /// Returns the note about a request whose reply is late.
    pub(crate) async fn answering(&self) -> Note {
        Note::Connecting { engine: self.name.clone() }
    }

    /// Returns the note about a release that takes long.
    pub(crate) async fn releasing(&self) -> Note {
        Note::Releasing { engine: self.name.clone() }
    }

    /// Writes pending history entries, where a history is kept. Call this before the process ends.
    pub async fn finish(&self) {
        if self.keeps_history {
            let _ = self.locker.close().await;
        }
    }
}

impl Settings {
    /// Reads all settings, and refuses invalid ones before anything is sent.
    ///
    /// # Errors
    /// Kind `Config`, naming the flag, the variable or the file.
    pub fn read(flags: &flags::Engine) -> Result<Settings, Error> {
        let mut flag = flags.url.as_deref().map_or_else(|| Ok(Config::default()), Config::from_url)?;
        flag.dial_timeout = flags.connect_timeout;
        let config = flag.or(Config::from_env()?).or(read_file(flags.config.as_deref())?);
        let settings = Settings { config, scope: flags.scope };
        if settings.is_local() {
            settings.check_local()?;
        } else {
            settings.config.check()?;
        }
        Ok(settings)
    }

    /// Opens the engine. A configured engine that cannot be reached is an error, never a lock of this machine.
    ///
    /// # Errors
    /// The engine's error; kind `Config` when its scope is smaller than `--scope`.
    pub async fn open(&self) -> Result<Engine, Error> {
        self.open_with(Locker::builder()).await
    }

    /// Opens the engine with a locker of `builder`, whose defaults the settings override.
    ///
    /// # Errors
    /// As [`open`](Settings::open).
    pub async fn open_with(&self, builder: LockerBuilder) -> Result<Engine, Error> {
        let engine = if self.is_local() { self.open_local(builder)? } else { self.open_configured(builder).await? };
        let (has, needs) = (engine.locker.capabilities().scope, self.scope.map(Scope::from));
        if needs.is_some_and(|needs| has < needs) {
            let message = format!("--scope: {} does not reach that far", engine.name);
            return Err(Error::new(ErrorKind::Config, message).with_help("name a server by --url or DISTLOCK_URL"));
        }
        if needs == Some(Scope::Host) && has == Scope::Host && !self.is_local() {
            self.refuse_unsafe().await?;
        }
        Ok(engine)
    }

    /// Refuses a directory that other processes of this machine do not see.
    async fn refuse_unsafe(&self) -> Result<(), Error> {
        let findings = distlock::examine(&self.config).await?;
        match findings.into_iter().find(|finding| finding.severity == Severity::Unsafe) {
            Some(Finding { place, found, fix, .. }) => {
                Err(Error::new(ErrorKind::Config, format!("--scope: {place}: {found}")).with_help(fix))
            }
            None => Ok(()),
        }
    }

    /// Returns the note about an engine that is slow to answer.
    pub(crate) async fn connecting(&self) -> Note {
        Note::Connecting { engine: self.name() }
    }

    /// Returns the directory of this machine's locks, when no engine is configured.
    ///
    /// # Errors
    /// When there is no such directory.
    pub fn local_directory(&self) -> Result<Option<PathBuf>, Error> {
        if self.is_local() { default_dir().map(Some) } else { Ok(None) }
    }

    /// Returns the engine's name, without secrets.
    fn name(&self) -> String {
        match &self.config {
            // The command that runs under the lock sees the same name, whether the URL contains a password or not.
            Config { url: Some(url), .. } => redact(&without_passwords(url)),
            Config { driver: Some(driver), endpoints, .. } => format!("{driver} on {} endpoints", endpoints.len()),
            _ => "the configured engine".into(),
        }
    }

    /// Checks for what makes locks on the engine unsafe, slow or impossible.
    ///
    /// # Errors
    /// Kind `Config`. An engine that cannot be reached is a finding.
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        if self.is_local() {
            return distlock::examine(&Config::from_url(&format!("file://{}", default_dir()?.display()))?).await;
        }
        distlock::examine(&self.config).await
    }

    /// Returns the SQL that prepares the engine's servers; `None` if they need no preparation.
    ///
    /// # Errors
    /// Kind `Config`.
    pub fn setup_sql(&self) -> Result<Option<String>, Error> {
        if self.is_local() { Ok(None) } else { distlock::setup_sql(&self.config) }
    }

    /// Prepares the engine's servers. Returns whether they need that.
    ///
    /// # Errors
    /// The engine's error.
    pub async fn set_up(&self) -> Result<bool, Error> {
        if self.is_local() { Ok(false) } else { distlock::set_up(&self.config).await }
    }

    fn keeps_history(&self) -> bool {
        // Settings inside the URL count like those beside it.
        self.config.clone().or(Config::default()).history.is_some_and(|most| most > 0)
    }

    fn is_local(&self) -> bool {
        let Config { url, driver, endpoints, .. } = &self.config;
        url.is_none() && driver.is_none() && endpoints.is_empty()
    }

    /// Refuses settings about a server when none is named: they must not be ignored silently.
    fn check_local(&self) -> Result<(), Error> {
        let Config { prefix, username, password, password_file, tls_ca, tls_cert, .. } = &self.config;
        let fields = [
            ("prefix", prefix.is_some()),
            ("username", username.is_some()),
            ("password", password.is_some() || password_file.is_some()),
            ("tls_ca", tls_ca.is_some()),
            ("tls_cert", tls_cert.is_some()),
        ];
        match fields.iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(Error::new(ErrorKind::Config, format!("{field}: given, but no engine is named"))
                .with_help("set --url or DISTLOCK_URL")),
            None => Ok(()),
        }
    }

    fn open_local(&self, builder: LockerBuilder) -> Result<Engine, Error> {
        let dir = default_dir()?;
        let name = format!("file://{}", dir.display());
        let mut builder = builder.history(self.config.history.unwrap_or_default());
        if let Some(interval) = self.config.retry_interval.filter(|interval| !interval.is_zero()) {
            builder = builder.retry_interval(interval);
        }
        let must_reach_host = self.scope.map(|_| dir.clone());
        let locker = builder.build(FileBackend::host(dir))?;
        Ok(Engine { locker, name, keeps_history: self.keeps_history(), must_reach_host })
    }

    async fn open_configured(&self, builder: LockerBuilder) -> Result<Engine, Error> {
        let name = self.name();
        let limit = self.config.dial_timeout.unwrap_or(distlock::DEFAULT_DIAL_TIMEOUT);
        let opened = timeout(limit, builder.from_config(&self.config)).await;
        let locker = opened.unwrap_or_else(|_| Err(Error::unavailable(format!("no answer within {limit:?}"))));
        let locker = locker.map_err(|error| about(&name, error))?;
        Ok(Engine { locker, name, keeps_history: self.keeps_history(), must_reach_host: None })
    }
}

impl From<flags::Scope> for Scope {
    fn from(flag: flags::Scope) -> Scope {
        match flag {
            flags::Scope::Host => Scope::Host,
            flags::Scope::Cluster => Scope::Cluster,
        }
    }
}

/// Adds the engine's name to an error that does not contain it.
fn about(name: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unavailable => Error::unavailable(format!("{name} cannot be reached: {error}")).with_source(error),
        _ => error,
    }
}

fn read_file(flag: Option<&Path>) -> Result<Config, Error> {
    let found = flag.map(Path::to_owned).or_else(|| usual_files().into_iter().find(|file| file.exists()));
    let Some(file) = found else { return Ok(Config::default()) };
    let refuse =
        |problem: &dyn std::fmt::Display| Error::new(ErrorKind::Config, format!("{}: {problem}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|error| refuse(&error))?;
    Config::from_toml(&text).map_err(|error| refuse(&error))
}

fn usual_files() -> Vec<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    home.into_iter().chain([PathBuf::from("/etc")]).map(|dir| dir.join("distlock/config.toml")).collect()
}
