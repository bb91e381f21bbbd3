//! The parts of a URL behind its scheme, as an engine reads them.

use std::path::PathBuf;
use std::time::Duration;

use crate::engines::shared::host::{Credentials, Host, ServerAddress, percent_decode};

/// The options that the URL of any engine may have.
pub(crate) const COMMON_OPTIONS: [&str; 3] = ["prefix", "default_ttl", "history"];

/// A URL behind its scheme. The common options are checked already; an engine reads the rest.
///
/// It has no `Debug`: the hosts may have passwords before them.
pub(crate) struct UrlParts<'a> {
    /// Whether the scheme means encrypted connections.
    pub(crate) tls: bool,
    pub(crate) hosts: &'a str,
    /// With its leading slash, if there is one.
    pub(crate) path: &'a str,
    pub(crate) prefix: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) history: Option<u32>,
    /// The engine's own options with their decoded values, each at most once.
    pub(crate) options: Vec<(&'a str, String)>,
}

impl UrlParts<'_> {
    /// Reads one of the engine's own options; `None` when the URL does not have it.
    pub(crate) fn option<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let value = self.options.iter().find(|(known, _)| *known == name);
        let parsed = value.map(|(_, value)| parse(value)).transpose();
        parsed.map_err(|fault| format!("option {name:?}: {fault}"))
    }

    /// Refuses hosts; `instead` is how to write the URL without any.
    pub(crate) fn no_hosts(&self, instead: &str) -> Result<(), String> {
        if self.hosts.is_empty() { Ok(()) } else { Err(format!("a host where none belongs; write {instead}")) }
    }

    /// Returns the path, which must be absolute, as a file name.
    pub(crate) fn file(&self) -> Result<PathBuf, String> {
        let path = percent_decode(self.path).map_err(|fault| format!("the path: {fault}"))?;
        match path.as_str() {
            "" => Err("the path is empty".into()),
            path if path.contains('\0') => Err("the path has a zero byte".into()),
            path => Ok(path.into()),
        }
    }

    /// Returns the credentials before an empty host, as if it were `host`.
    pub(crate) fn with_host(&self, host: &str) -> Result<Credentials, String> {
        let mut servers = ServerAddress::parse_list(&format!("{}{host}", self.hosts), 1)?.into_iter();
        match (servers.next(), servers.next()) {
            (Some(server), None) => Ok(server.credentials),
            _ => Err("several hosts".into()),
        }
    }

    /// Returns several hosts behind one pair of credentials.
    pub(crate) fn cluster(&self, default_port: u16) -> Result<(Vec<Host>, Credentials), String> {
        let mut nodes = ServerAddress::parse_list(self.hosts, default_port)?.into_iter();
        let first = nodes.next().ok_or("the host is empty")?;
        let mut hosts = vec![first.host];
        for node in nodes {
            if node.credentials != Credentials::default() {
                return Err("credentials are written once, before the first host".into());
            }
            hosts.push(node.host);
        }
        Ok((hosts, first.credentials))
    }
}

/// Parses a whole number of 32 bits. `str::parse` alone would take "+1".
pub(crate) fn whole_number(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| format!("not a whole number from 0 to {}", u32::MAX))
}
