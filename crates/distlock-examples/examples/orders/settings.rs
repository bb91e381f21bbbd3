//! What the service is told: by a TOML file, and by variables that win over it.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use distlock::Config;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// The instance, as others see it when it leads.
    pub(crate) name: String,
    pub(crate) listen: SocketAddr,
    /// The SQLite file.
    pub(crate) database: PathBuf,
    /// How many exports may run at a time, over all instances.
    pub(crate) exports: u32,
    /// How often the leader writes the summary.
    summary_every_s: u64,
    /// How long requests may go on after SIGTERM.
    grace_s: u64,
    /// Where the locks are; `DISTLOCK_URL` and so on win over it.
    pub(crate) locks: Config,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            name: format!("orders-{}", std::process::id()),
            listen: ([127, 0, 0, 1], 8080).into(),
            database: "orders.sqlite".into(),
            exports: 3,
            summary_every_s: 60,
            grace_s: 10,
            locks: Config::default(),
        }
    }
}

impl Settings {
    /// Reads `file`, if there is one, and then the variables of the process.
    pub(crate) fn load(file: Option<PathBuf>) -> Result<Settings, Box<dyn Error>> {
        let text = file.map(std::fs::read_to_string).transpose()?.unwrap_or_default();
        let mut settings = Settings::parse(&text, |name| std::env::var(name).ok())?;
        settings.locks = Config::from_env()?.or(settings.locks);
        Ok(settings)
    }

    /// Reads TOML, and `ORDERS_NAME`, `ORDERS_LISTEN` and `ORDERS_DATABASE` from `lookup`.
    pub(crate) fn parse(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, Box<dyn Error>> {
        // Not the whole error: it shows the line, which may have a password.
        let mut settings: Settings = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if let Some(name) = lookup("ORDERS_NAME") {
            settings.name = name;
        }
        if let Some(listen) = lookup("ORDERS_LISTEN") {
            settings.listen = listen.parse().map_err(|error| format!("ORDERS_LISTEN: {error}"))?;
        }
        if let Some(database) = lookup("ORDERS_DATABASE") {
            settings.database = database.into();
        }
        Ok(settings)
    }

    pub(crate) fn summary_every(&self) -> Duration {
        Duration::from_secs(self.summary_every_s)
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_s)
    }
}
