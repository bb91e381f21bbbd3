//! A checked configuration: every default is filled in, and nothing contradicts.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::config::fields::{Config, refuse};
use crate::config::limits::{self, check_history};
use crate::config::registry::{Driver, ROWS};
use crate::config::url::{self, ParsedUrl};
use crate::engines::shared::host::Credentials;
use crate::engines::shared::row::{EngineAddress, WithoutUrl};
use crate::engines::shared::settings::{EngineSettings, TlsFiles, check_prefix};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::DEFAULT_MAX_RETRIES;
use crate::types::secret::Secret;

const MAX_PASSWORD_BYTES: u64 = 64 * 1024;

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The engine and where its locks live.
    pub(crate) address: Box<dyn EngineAddress>,
    /// What the engine is opened with.
    pub(crate) engine: EngineSettings,
    pub(crate) retry_interval: Duration,
    pub(crate) max_retries: u32,
}

impl Config {
    /// Checks everything that can be checked without reaching a server. Reads `password_file`, if there is one.
    ///
    /// # Errors
    /// Kind `Config`, naming the field and what is accepted.
    pub fn check(&self) -> Result<()> {
        self.validate().map(drop)
    }

    /// Checks every field and fills in defaults. Reads `password_file` last.
    ///
    /// # Errors
    /// Kind `Config`, naming the field and what is accepted.
    pub(crate) fn validate(&self) -> Result<Settings> {
        if let Some(fault) = &self.fault {
            return Err(Error::new(ErrorKind::Config, fault.clone()));
        }
        let ParsedUrl { mut address, prefix, ttl, history } = self.address()?;
        let prefix = self.prefix.clone().or(prefix).unwrap_or_default();
        check_prefix(&prefix).map_err(|fault| refuse("prefix", fault))?;
        let resolve = |field: &str, bounds: limits::Bounds, length: Option<Duration>| {
            bounds.resolve(length).map_err(|fault| refuse(field, fault))
        };
        let default_ttl = resolve("default_ttl", limits::TTL, self.default_ttl.or(ttl))?;
        let retry_interval = resolve("retry_interval", limits::RETRY_INTERVAL, self.retry_interval)?;
        let dial_timeout = resolve("dial_timeout", limits::DIAL_TIMEOUT, self.dial_timeout)?;
        let history = check_history(self.history.or(history).unwrap_or_default());
        let history = history.map_err(|fault| refuse("history", fault))?;
        let tls = self.tls_files(&*address)?;
        self.fill_credentials(&mut *address)?;
        let max_retries = self.max_retries.unwrap_or(DEFAULT_MAX_RETRIES);
        let engine = EngineSettings { prefix, default_ttl, history, dial_timeout, tls };
        Ok(Settings { address, engine, retry_interval, max_retries })
    }

    /// Returns the engine's address, from `url` or from `driver` and `endpoints`.
    fn address(&self) -> Result<ParsedUrl> {
        match (&self.url, self.driver, self.endpoints.as_slice()) {
            (Some(_), _, [_, ..]) => Err(refuse("endpoints", "given together with url; one of them is enough")),
            (Some(url), driver, []) => {
                let parsed = url::parse(url).map_err(|fault| refuse("url", fault))?;
                let engine = parsed.address.row().name;
                match driver {
                    Some(driver) if driver.as_str() != engine => {
                        Err(refuse("driver", format_args!("{driver}, but the scheme of url means {engine}")))
                    }
                    _ => Ok(parsed),
                }
            }
            (None, Some(driver), endpoints) => self.address_of(driver, endpoints),
            (None, None, [_, ..]) => Err(refuse("driver", "missing; endpoints do not say what they are")),
            (None, None, []) => Err(refuse("url", "missing; set url, or driver and endpoints")
                .with_help("for locks inside this process: mem://")),
        }
    }

    fn address_of(&self, driver: Driver, endpoints: &[String]) -> Result<ParsedUrl> {
        match (&driver.row().without_url, endpoints) {
            (WithoutUrl::Default(address), []) => {
                Ok(ParsedUrl { address: address(), prefix: None, ttl: None, history: None })
            }
            (WithoutUrl::Default(_), _) => Err(refuse("endpoints", format_args!("the {driver} driver has none"))),
            (WithoutUrl::Endpoints { .. }, []) => {
                Err(refuse("endpoints", format_args!("missing; the {driver} driver needs them")))
            }
            (WithoutUrl::Endpoints { plain, tls }, endpoints) => {
                let url = url_of([plain, tls], endpoints, self.tls_field().is_some());
                url.and_then(|url| url::parse(&url)).map_err(|fault| refuse("endpoints", fault))
            }
        }
    }

    /// Returns the first TLS field that is set.
    fn tls_field(&self) -> Option<&'static str> {
        let fields = [("tls_ca", &self.tls_ca), ("tls_cert", &self.tls_cert), ("tls_key", &self.tls_key)];
        fields.into_iter().find(|(_, file)| file.is_some()).map(|(name, _)| name)
    }

    fn tls_files(&self, address: &dyn EngineAddress) -> Result<TlsFiles> {
        for (field, file) in [("tls_ca", &self.tls_ca), ("tls_cert", &self.tls_cert), ("tls_key", &self.tls_key)] {
            if file.as_deref() == Some(Path::new("")) {
                return Err(refuse(field, "the file name is empty"));
            }
        }
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (Some(_), None) => return Err(refuse("tls_key", "missing; tls_cert needs it")),
            (None, Some(_)) => return Err(refuse("tls_cert", "missing; tls_key needs it")),
            (None, None) => None,
        };
        match (self.tls_field(), address.tls()) {
            // A user who names these files believes that the connection is encrypted.
            (Some(field), Some(false)) => {
                let encrypted = encrypted_schemes();
                Err(refuse(field, format_args!("given, but the connection is not encrypted; use {encrypted}")))
            }
            _ => Ok(TlsFiles { ca: self.tls_ca.clone(), identity }),
        }
    }

    /// Completes the credentials of each server with `username` and `password`, and never mixes two users.
    fn fill_credentials(&self, address: &mut dyn EngineAddress) -> Result<()> {
        if self.username.as_deref() == Some("") {
            return Err(refuse("username", "empty; leave it out for no user name"));
        }
        let password = self.read_password()?;
        let (row, needs_password) = (address.row(), address.needs_password());
        for credentials in address.credentials_mut() {
            if credentials.password.is_none() {
                self.complete(credentials, password.as_ref())?;
            }
            match credentials {
                Credentials { username: Some(_), password: None } if needs_password => {
                    return Err(refuse("password", "missing; a user name is given"));
                }
                Credentials { username: None, password: Some(_) } if row.needs_username => {
                    let fault = format!("missing; a password is given, and {} knows no user without a name", row.name);
                    return Err(refuse("username", fault));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn complete(&self, credentials: &mut Credentials, password: Option<&Secret>) -> Result<()> {
        match (&credentials.username, &self.username) {
            (Some(named), Some(other)) if named != other => {
                return Err(refuse("username", "not the user whom the URL names without a password"));
            }
            (None, Some(username)) => credentials.username = Some(username.clone()),
            _ => {}
        }
        credentials.password = password.cloned();
        Ok(())
    }

    fn read_password(&self) -> Result<Option<Secret>> {
        match (&self.password, &self.password_file) {
            (Some(_), Some(_)) => Err(refuse("password_file", "given together with password; one of them is enough")),
            (Some(password), None) if password.expose().is_empty() => {
                Err(refuse("password", "empty; leave it out for no password"))
            }
            (Some(password), None) => Ok(Some(password.clone())),
            (None, Some(file)) => password_in(file).map(Some).map_err(|fault| refuse("password_file", fault)),
            (None, None) => Ok(None),
        }
    }
}

/// Returns the encrypted scheme of each engine that has one, as a list in words.
fn encrypted_schemes() -> String {
    let schemes = ROWS.iter().filter_map(|row| match row.without_url {
        WithoutUrl::Endpoints { tls: [first, ..], .. } => Some(format!("{first}://")),
        _ => None,
    });
    let schemes: Vec<_> = schemes.collect();
    schemes.split_last().map_or_else(String::new, |(last, others)| format!("{} or {last}", others.join(", ")))
}

/// Returns the URL that means the same as `endpoints`. `schemes` are those of plain and of encrypted connections.
fn url_of(schemes: [&[&str]; 2], endpoints: &[String], tls_files: bool) -> Result<String, String> {
    let mut hosts = Vec::new();
    let mut encrypted = None;
    for (i, endpoint) in endpoints.iter().enumerate() {
        let (scheme, host) = endpoint.split_once("://").map_or((None, endpoint.as_str()), |(s, h)| (Some(s), h));
        let host = host.strip_suffix('/').unwrap_or(host);
        if host.contains([',', '/', '?', '#']) {
            return Err(format!("host {}: not of the form user:password@host:port", i + 1));
        }
        let tls = match scheme {
            None => tls_files,
            Some(scheme) => {
                schemes.iter().position(|names| names.contains(&scheme)).ok_or_else(|| {
                    format!("host {}: a scheme that is not one of {}", i + 1, schemes.concat().join(", "))
                })? == 1
            }
        };
        if *encrypted.get_or_insert(tls) != tls {
            return Err(format!("host {}: some are to be encrypted and some are not", i + 1));
        }
        hosts.push(host);
    }
    let scheme = schemes[usize::from(encrypted == Some(true))][0];
    Ok(format!("{scheme}://{}", hosts.join(",")))
}

/// Reads a password. No fault repeats the content or the name of the file: some users put the password itself there.
fn password_in(file: &Path) -> Result<Secret, String> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|file| file.take(MAX_PASSWORD_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("the file cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_PASSWORD_BYTES {
        return Err(format!("the file is longer than {MAX_PASSWORD_BYTES} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8")?;
    // Editors and `echo` put one there.
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    if text.is_empty() { Err("the file is empty".into()) } else { Ok(text.into()) }
}
