//! The configuration as a user gives it, field by field.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::limits::{self, check_history};
use crate::config::names::{current_name, is_unknown_variable, variable, variables};
use crate::config::redact::{Hides, redact, redact_endpoint};
use crate::config::registry::Driver;
use crate::config::url;
use crate::config::value::Value;
use crate::engines::shared::row::WithoutUrl;
use crate::engines::shared::settings::check_prefix;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::secret::Secret;

/// The configuration of a locker: which engine, how to reach it, and the defaults of its locks.
///
/// # Default
/// Every field is absent; an engine must be named, everything else has a default. An empty text is an invalid value,
/// never an absent one.
///
/// # Sources
/// Text ([`from_toml`](Config::from_toml)), the environment ([`from_env`](Config::from_env)), one URL
/// ([`from_url`](Config::from_url)), any self-describing format of serde, or the fields one by one. Sources are
/// layered with [`or`](Config::or). A length of time is text with a unit (`"10s"`, `"250ms"`, `"1m 30s"`) or a number
/// of seconds (`10`, `0.25`).
///
/// # Secrets
/// Passwords appear in no `Debug` output and in no error of this crate, even if they were written into the wrong
/// field.
///
/// So deserializing a `Config` as part of your own structure never fails because of its contents: the error would be
/// the format's, and that of TOML prints the line. [`check`](Config::check), and everything that uses the
/// configuration, reports the error instead. *Limit:* text that is not valid TOML or JSON, such as an open quote, is
/// refused by its reader, in the reader's words. [`from_toml`](Config::from_toml) repeats no text in that case
/// either.
///
/// ```
/// use distlock::Config;
///
/// let mut config = Config::from_url("redlock://a,b,c?default_ttl=30s")?;
/// config.prefix = Some("jobs:".into());
/// config.check()?;
///
/// // One name everywhere: `?default_ttl=`, `default_ttl` and `DISTLOCK_DEFAULT_TTL`. The old one is accepted, with a warning.
/// assert_eq!(Config::from_url("mem://?ttl=30s")?.default_ttl, config.default_ttl);
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The engine. Needed with `endpoints`; with `url` it must agree with the scheme.
    pub driver: Option<Driver>,
    /// Where the locks live, in one line: `redis://user:password@host:6379/0?prefix=jobs:&default_ttl=30s`.
    pub url: Option<String>,
    /// The servers, instead of `url`: `host`, `host:port` or `user:password@host:port`. A scheme before it
    /// (`redis rediss http https etcd etcds`) says whether to use TLS; without one the TLS files say it. In the
    /// environment there are commas between them.
    pub endpoints: Vec<String>,
    /// The prefix of each lock's name in the engine; default: empty. At most 256 bytes without control characters and
    /// braces.
    pub prefix: Option<String>,
    /// The TTL of requests that do not set one. Absent or 0: 10 s; otherwise 100 ms to 24 h.
    pub default_ttl: Option<Duration>,
    /// The pause between two claims if the engine does not say when to claim again. Absent or 0: 100 ms; otherwise 1
    /// ms to 1 h.
    pub retry_interval: Option<Duration>,
    /// How many requests in a row may fail before a wait gives up on the engine. Absent: 8; 0: the first failure ends
    /// it.
    pub max_retries: Option<u32>,
    /// How many entries each lock keeps about who acquired, released, lost or broke it. Absent or 0: none are written;
    /// at most 10 000.
    pub history: Option<u32>,
    /// The timeout of a connection attempt. Absent: 5 s; otherwise 1 ms to 10 min.
    pub dial_timeout: Option<Duration>,
    /// The user name, for servers without one in the URL.
    pub username: Option<String>,
    /// The password, for servers without one in the URL.
    pub password: Option<Secret>,
    /// A file with the password, instead of `password`. One line end at the end of the file is ignored.
    pub password_file: Option<PathBuf>,
    /// A PEM file with the certificates to trust, instead of the system's.
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with the client's certificate; needs `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with the key of the client's certificate; needs `tls_cert`.
    pub tls_key: Option<PathBuf>,
    /// The error in the text that it was read from; [`check`](Config::check) returns it.
    pub(super) fault: Option<String>,
}

/// The names of the fields, and where in each a password may be. In the environment: upper case, after `DISTLOCK_`.
pub(super) const FIELDS: [(&str, Hides); 15] = [
    ("driver", Hides::Nothing),
    ("url", Hides::Url),
    ("endpoints", Hides::Endpoints),
    ("prefix", Hides::Nothing),
    ("default_ttl", Hides::Nothing),
    ("retry_interval", Hides::Nothing),
    ("max_retries", Hides::Nothing),
    ("history", Hides::Nothing),
    ("dial_timeout", Hides::Nothing),
    ("username", Hides::Nothing),
    ("password", Hides::Password),
    ("password_file", Hides::Nothing),
    ("tls_ca", Hides::Nothing),
    ("tls_cert", Hides::Nothing),
    ("tls_key", Hides::Nothing),
];

impl Config {
    /// Returns a configuration with this URL and nothing else. Nothing is connected.
    ///
    /// # Errors
    /// Kind `Config`, saying which part of the URL is wrong, and never repeating it.
    pub fn from_url(url: &str) -> Result<Config> {
        let mut config = Config::default();
        config.set("url", Value::Text(url.into())).map_err(|fault| refuse("url", fault))?;
        Ok(config)
    }

    /// Reads `DISTLOCK_URL`, `DISTLOCK_DEFAULT_TTL` and so on: each field's name in upper case behind `DISTLOCK_`.
    ///
    /// A variable with that prefix that is no setting is logged, and otherwise ignored: see
    /// [`unknown_vars`](Config::unknown_vars).
    ///
    /// # Errors
    /// Kind `Config`, naming the variable.
    pub fn from_env() -> Result<Config> {
        for name in Config::unknown_vars() {
            tracing::warn!(target: "distlock", "the variable {name} is no setting; it is ignored");
        }
        Config::from_vars(|name| std::env::var_os(name))
    }

    /// Returns the names of variables that begin with `DISTLOCK_` and are neither settings nor what `distlock run`
    /// sets for its command: most likely typing errors. Their values are not read.
    #[must_use]
    pub fn unknown_vars() -> Vec<String> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut unknown: Vec<_> =
            names.filter(|name| is_unknown_variable(name, FIELDS.iter().map(|(field, _)| *field))).collect();
        unknown.sort();
        unknown
    }

    /// Like [`from_env`](Config::from_env), with variables from `lookup`.
    ///
    /// # Errors
    /// Kind `Config`, naming the variable.
    pub fn from_vars(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config> {
        let mut config = Config::default();
        for (field, _) in FIELDS {
            let found = variables(field).find_map(|variable| Some((lookup(&variable)?, variable)));
            if let Some((value, variable)) = found {
                config.set(field, Value::Text(value)).map_err(|fault| refuse(&variable, fault))?;
            }
        }
        Ok(config)
    }

    /// Returns the changes to an environment that remove its passwords, so that it can be passed to another program:
    /// the variables of [`from_vars`](Config::from_vars) that contain a password, with the value without it, or
    /// `None` to remove the variable. Values are changed as [`without_passwords`](crate::without_passwords) does.
    ///
    /// ```
    /// use distlock::Config;
    ///
    /// let changes = Config::vars_without_passwords(|name| (name == "DISTLOCK_ENDPOINTS").then(|| "app:secret@db".into()));
    /// assert_eq!(changes, [("DISTLOCK_ENDPOINTS".to_owned(), Some("app@db".to_owned()))]);
    /// ```
    pub fn vars_without_passwords(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<(String, Option<String>)> {
        let mut changes = Vec::new();
        // Variables without secrets are not read: they need not even be text.
        for (field, hides) in FIELDS.into_iter().filter(|(_, hides)| *hides != Hides::Nothing) {
            let variable = variable(field);
            if let Some(value) = lookup(&variable) {
                let rest = hides.rest_of(&value.to_string_lossy());
                if rest.as_deref().map(OsStr::new) != Some(&value) {
                    changes.push((variable, rest));
                }
            }
        }
        changes
    }

    /// Returns this configuration with absent fields filled from `lower`: `flags.or(env).or(file)`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distlock::Config;
    ///
    /// let mut file = Config::from_url("redis://db")?;
    /// file.default_ttl = Some(Duration::from_secs(30));
    /// let config = Config::from_url("mem://")?.or(file);
    /// assert_eq!(config.url.as_deref(), Some("mem://"));
    /// assert_eq!(config.default_ttl, Some(Duration::from_secs(30)));
    /// # Ok::<(), distlock::Error>(())
    /// ```
    ///
    /// Fields that belong together stay together. A `url` hides the lower `driver`, `url` and `endpoints`, and its
    /// prefix, TTL and history count like fields; `endpoints` hide the lower `url` and `endpoints`; `password` and
    /// `password_file` hide both, and so do `tls_cert` and `tls_key`. A `url` of an engine without servers, which has no
    /// prefix, hides the lower `prefix`. A 0 is a value: it means the default.
    #[must_use]
    pub fn or(mut self, mut lower: Config) -> Config {
        // An invalid URL is refused when the configuration is used.
        if let Some(Ok(said)) = self.url.as_deref().map(url::parse) {
            self.prefix = self.prefix.or(said.prefix);
            self.default_ttl = self.default_ttl.or(said.ttl);
            self.history = self.history.or(said.history);
            // An engine without servers has no prefix: that of the lower source is for another engine.
            if let WithoutUrl::Default(_) = said.address.row().without_url {
                lower.prefix = None;
            }
        }
        if self.url.is_some() {
            (lower.driver, lower.url, lower.endpoints) = (None, None, Vec::new());
        }
        if !self.endpoints.is_empty() {
            (lower.url, lower.endpoints) = (None, Vec::new());
        }
        if self.password.is_some() || self.password_file.is_some() {
            (lower.password, lower.password_file) = (None, None);
        }
        if self.tls_cert.is_some() || self.tls_key.is_some() {
            (lower.tls_cert, lower.tls_key) = (None, None);
        }
        Config {
            driver: self.driver.or(lower.driver),
            url: self.url.or(lower.url),
            endpoints: if self.endpoints.is_empty() { lower.endpoints } else { self.endpoints },
            prefix: self.prefix.or(lower.prefix),
            default_ttl: self.default_ttl.or(lower.default_ttl),
            retry_interval: self.retry_interval.or(lower.retry_interval),
            max_retries: self.max_retries.or(lower.max_retries),
            history: self.history.or(lower.history),
            dial_timeout: self.dial_timeout.or(lower.dial_timeout),
            username: self.username.or(lower.username),
            password: self.password.or(lower.password),
            password_file: self.password_file.or(lower.password_file),
            tls_ca: self.tls_ca.or(lower.tls_ca),
            tls_cert: self.tls_cert.or(lower.tls_cert),
            tls_key: self.tls_key.or(lower.tls_key),
            fault: self.fault.or(lower.fault),
        }
    }

    /// Sets a field from a source and checks it as far as possible: only here the line or variable is known. The
    /// fault never repeats the value.
    pub(super) fn set(&mut self, field: &str, value: Value) -> Result<(), String> {
        let length = |bounds: limits::Bounds, value: Value| match value {
            Value::Number(seconds) => bounds.seconds(seconds).map(Some),
            value => bounds.parse(&value.text().unwrap_or_default()).map(Some),
        };
        let field = current_name(field);
        if let Value::Absent = value {
            return if FIELDS.iter().any(|(name, _)| *name == field) { Ok(()) } else { Err(unknown_field()) };
        }
        match field {
            "driver" => self.driver = Some(Driver::parse(&value.text()?)?),
            "url" => {
                let url = value.text()?;
                url::parse(&url)?;
                self.url = Some(url);
            }
            "endpoints" => self.endpoints = value.list()?,
            "prefix" => {
                let prefix = value.text()?;
                check_prefix(&prefix)?;
                self.prefix = Some(prefix);
            }
            "default_ttl" => self.default_ttl = length(limits::TTL, value)?,
            "retry_interval" => self.retry_interval = length(limits::RETRY_INTERVAL, value)?,
            "max_retries" => self.max_retries = Some(value.count()?),
            "history" => self.history = Some(check_history(value.count()?)?),
            "dial_timeout" => self.dial_timeout = length(limits::DIAL_TIMEOUT, value)?,
            "username" => self.username = Some(value.text()?),
            "password" => self.password = Some(value.text()?.into()),
            "password_file" => self.password_file = Some(value.os_text()?.into()),
            "tls_ca" => self.tls_ca = Some(value.os_text()?.into()),
            "tls_cert" => self.tls_cert = Some(value.os_text()?.into()),
            "tls_key" => self.tls_key = Some(value.os_text()?.into()),
            _ => return Err(unknown_field()),
        }
        Ok(())
    }
}

fn unknown_field() -> String {
    format!("no such field; known are {}", FIELDS.map(|(name, _)| name).join(", "))
}

pub(super) fn refuse(field: &str, fault: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("{field}: {fault}"))
}

/// Writes the fields that are set, with the names of TOML; passwords are `***`. So what is written shows a
/// configuration, and is not one that connects if it had a password.
#[cfg(feature = "serde")]
impl serde::Serialize for Config {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let time = |time: &Option<Duration>| time.map(|time| humantime::format_duration(time).to_string());
        let file = |file: &Option<PathBuf>| file.as_ref().map(|file| file.display().to_string());
        let hidden = || "***".to_owned();
        // A value that is not an absolute path may be the password itself.
        let password_file = self
            .password_file
            .as_deref()
            .map(|file| if file.is_absolute() { file.display().to_string() } else { hidden() });
        let texts = [
            ("driver", self.driver.map(|driver| driver.to_string())),
            ("url", self.url.as_deref().map(redact)),
            ("prefix", self.prefix.clone()),
            ("default_ttl", time(&self.default_ttl)),
            ("retry_interval", time(&self.retry_interval)),
            ("dial_timeout", time(&self.dial_timeout)),
            ("username", self.username.clone()),
            ("password", self.password.as_ref().map(|_| hidden())),
            ("password_file", password_file),
            ("tls_ca", file(&self.tls_ca)),
            ("tls_cert", file(&self.tls_cert)),
            ("tls_key", file(&self.tls_key)),
        ];
        let mut map = serializer.serialize_map(None)?;
        for (name, text) in texts {
            if let Some(text) = text {
                map.serialize_entry(name, &text)?;
            }
        }
        for (name, number) in [("max_retries", self.max_retries), ("history", self.history)] {
            if let Some(number) = number {
                map.serialize_entry(name, &number)?;
            }
        }
        if !self.endpoints.is_empty() {
            let endpoints: Vec<_> = self.endpoints.iter().map(|endpoint| redact_endpoint(endpoint)).collect();
            map.serialize_entry("endpoints", &endpoints)?;
        }
        map.end()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A value that is not an absolute path may be the password itself.
        let password_file =
            self.password_file.as_deref().map(|file| if file.is_absolute() { file } else { "***".as_ref() });
        let endpoints: Vec<_> = self.endpoints.iter().map(|endpoint| redact_endpoint(endpoint)).collect();
        f.debug_struct("Config")
            .field("driver", &self.driver)
            .field("url", &self.url.as_deref().map(redact))
            .field("endpoints", &endpoints)
            .field("prefix", &self.prefix)
            .field("default_ttl", &self.default_ttl)
            .field("retry_interval", &self.retry_interval)
            .field("max_retries", &self.max_retries)
            .field("history", &self.history)
            .field("dial_timeout", &self.dial_timeout)
            .field("username", &self.username)
            .field("password", &self.password)
            .field("password_file", &password_file)
            .field("tls_ca", &self.tls_ca)
            .field("tls_cert", &self.tls_cert)
            .field("tls_key", &self.tls_key)
            .field("fault", &self.fault)
            .finish()
    }
}
