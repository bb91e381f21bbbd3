//! A configuration that was checked: nothing in it is absent that has a default, and nothing contradicts.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::url::{self, Credentials, Parsed, Target};
use crate::config::{Config, Driver, Secret, duration, refuse};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::MAX_HISTORY;
use crate::types::options::DEFAULT_MAX_RETRIES;
use crate::types::owner::MAX_TEXT_BYTES;

const MAX_PASSWORD_BYTES: u64 = 64 * 1024;

/// What the core needs to open an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) target: Target,
    pub(crate) prefix: String,
    pub(crate) default_ttl: Duration,
    pub(crate) retry_interval: Duration,
    pub(crate) max_retries: u32,
    /// 0: none.
    pub(crate) history: u32,
    pub(crate) dial_timeout: Duration,
    pub(crate) tls: TlsFiles,
}

/// PEM files for connections with TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// `None`: the system's own certificates.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

impl Config {
    /// Checks every field and puts defaults in. `password_file` is read, and last.
    ///
    /// # Errors
    /// Kind `Config`, naming the field and what is accepted.
    pub(crate) fn validate(&self) -> Result<Settings> {
        if let Some(fault) = &self.fault {
            return Err(Error::new(ErrorKind::Config, fault.clone()));
        }
        let Parsed { mut target, prefix, ttl, history } = self.place()?;
        let prefix = self.prefix.clone().or(prefix).unwrap_or_default();
        check_prefix(&prefix).map_err(|fault| refuse("prefix", fault))?;
        let resolve = |field: &str, bounds: duration::Bounds, length: Option<Duration>| {
            bounds.resolve(length).map_err(|fault| refuse(field, fault))
        };
        let default_ttl = resolve("default_ttl", duration::TTL, self.default_ttl.or(ttl))?;
        let retry_interval = resolve("retry_interval", duration::RETRY_INTERVAL, self.retry_interval)?;
        let dial_timeout = resolve("dial_timeout", duration::DIAL_TIMEOUT, self.dial_timeout)?;
        let history = check_history(self.history.or(history).unwrap_or_default());
        let history = history.map_err(|fault| refuse("history", fault))?;
        let tls = self.tls_files(&target)?;
        self.fill_credentials(&mut target)?;
        let max_retries = self.max_retries.unwrap_or(DEFAULT_MAX_RETRIES);
        Ok(Settings { target, prefix, default_ttl, retry_interval, max_retries, history, dial_timeout, tls })
    }

    /// The engine, from `url` or from `driver` and `endpoints`.
    fn place(&self) -> Result<Parsed> {
        match (&self.url, self.driver, self.endpoints.as_slice()) {
            (Some(_), _, [_, ..]) => Err(refuse("endpoints", "given together with url; one of them is enough")),
            (Some(url), driver, []) => {
                let parsed = url::parse(url).map_err(|fault| refuse("url", fault))?;
                match driver {
                    Some(driver) if driver != parsed.target.driver() => {
                        let engine = parsed.target.driver();
                        Err(refuse("driver", format_args!("{driver}, but the scheme of url means {engine}")))
                    }
                    _ => Ok(parsed),
                }
            }
            (None, Some(driver), endpoints) => self.place_of(driver, endpoints),
            (None, None, [_, ..]) => Err(refuse("driver", "missing; endpoints do not say what they are")),
            (None, None, []) => Err(refuse("url", "missing; set url, or driver and endpoints")
                .with_help("for locks inside this process: mem://")),
        }
    }

    fn place_of(&self, driver: Driver, endpoints: &[String]) -> Result<Parsed> {
        let local = |target| match endpoints {
            [] => Ok(Parsed { target, prefix: None, ttl: None, history: None }),
            [_, ..] => Err(refuse("endpoints", format_args!("the {driver} driver has none"))),
        };
        match driver {
            Driver::Memory => return local(Target::Memory { name: None }),
            Driver::File => return local(Target::File { dir: None }),
            Driver::Redis | Driver::Redlock | Driver::Etcd => {}
        }
        if endpoints.is_empty() {
            return Err(refuse("endpoints", format_args!("missing; the {driver} driver needs them")));
        }
        let url = url_of(driver, endpoints, self.tls_field().is_some()).and_then(|url| url::parse(&url));
        url.map_err(|fault| refuse("endpoints", fault))
    }

    /// The first TLS field that is set.
    fn tls_field(&self) -> Option<&'static str> {
        let fields = [("tls_ca", &self.tls_ca), ("tls_cert", &self.tls_cert), ("tls_key", &self.tls_key)];
        fields.into_iter().find(|(_, file)| file.is_some()).map(|(name, _)| name)
    }

    fn tls_files(&self, target: &Target) -> Result<TlsFiles> {
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
        match (self.tls_field(), target.tls()) {
            // Whoever names these files believes that the connection is encrypted.
            (Some(field), Some(false)) => {
                Err(refuse(field, "given, but the connection is not encrypted; use rediss://, redlocks:// or etcds://"))
            }
            _ => Ok(TlsFiles { ca: self.tls_ca.clone(), identity }),
        }
    }

    /// Gives `username` and `password` to each server that has none of its own, and never mixes two users.
    fn fill_credentials(&self, target: &mut Target) -> Result<()> {
        if self.username.as_deref() == Some("") {
            return Err(refuse("username", "empty; leave it out for no user name"));
        }
        let password = self.read_password()?;
        let needs_a_name = target.driver() == Driver::Etcd;
        for credentials in target.credentials_mut() {
            if credentials.password.is_none() {
                self.complete(credentials, password.as_ref())?;
            }
            match credentials {
                Credentials { username: Some(_), password: None } => {
                    return Err(refuse("password", "missing; a user name is given"));
                }
                Credentials { username: None, password: Some(_) } if needs_a_name => {
                    return Err(refuse(
                        "username",
                        "missing; a password is given, and etcd knows no user without a name",
                    ));
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

/// Endpoints as the URL that means the same.
fn url_of(driver: Driver, endpoints: &[String], tls_files: bool) -> Result<String, String> {
    let schemes: [&[&str]; 2] = match driver {
        Driver::Etcd => [&["etcd", "http"], &["etcds", "https"]],
        Driver::Redlock => [&["redlock", "redis"], &["redlocks", "rediss"]],
        _ => [&["redis"], &["rediss"]],
    };
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

/// Reads a password. No fault repeats what is in the file, nor its name: some put the password itself there.
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

/// Refuses more entries of history than any engine should keep.
pub(crate) fn check_history(most: u32) -> Result<u32, String> {
    if most <= MAX_HISTORY { Ok(most) } else { Err(format!("{most} is not from 0 to {MAX_HISTORY}")) }
}

/// Braces would break the one tag that a key may have for Redis Cluster.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), String> {
    if prefix.len() > MAX_TEXT_BYTES {
        return Err(format!("{} bytes, at most {MAX_TEXT_BYTES} are accepted", prefix.len()));
    }
    match prefix.find(|c: char| c.is_control() || matches!(c, '{' | '}')) {
        Some(at) => Err(format!("a control character or a brace at byte {at}")),
        None => Ok(()),
    }
}
