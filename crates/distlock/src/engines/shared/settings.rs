//! What a configuration says about any engine, checked and with its defaults.

use std::path::PathBuf;
use std::time::Duration;

use crate::types::error::{Error, ErrorKind, Result};
use crate::types::owner::MAX_TEXT_BYTES;

/// The settings that an engine is opened and examined with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineSettings {
    /// Stands before each lock's name in the engine.
    pub(crate) prefix: String,
    pub(crate) default_ttl: Duration,
    /// How many history entries each lock keeps; 0: none.
    pub(crate) history: u32,
    pub(crate) dial_timeout: Duration,
    pub(crate) tls: TlsFiles,
}

impl EngineSettings {
    /// Refuses a prefix. An engine without a server shares it with no other user, so there is nothing to keep apart.
    pub(crate) fn refuse_prefix(&self, engine: &str) -> Result<()> {
        if self.prefix.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Config, format!("prefix: the {engine} engine has none")))
    }
}

/// Checks a prefix. Braces are refused: they would break the one hash tag that a key may have for Redis Cluster.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), String> {
    if prefix.len() > MAX_TEXT_BYTES {
        return Err(format!("{} bytes, at most {MAX_TEXT_BYTES} are accepted", prefix.len()));
    }
    match prefix.find(|c: char| c.is_control() || matches!(c, '{' | '}')) {
        Some(at) => Err(format!("a control character or a brace at byte {at}")),
        None => Ok(()),
    }
}

/// PEM files for connections with TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// `None`: the system's own certificates.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
impl TlsFiles {
    /// Reads the certificates to trust.
    pub(crate) fn read_ca(&self) -> Result<Option<Vec<u8>>> {
        self.ca.as_deref().map(|file| read_pem("tls_ca", file)).transpose()
    }

    /// Reads the client's certificate and its key.
    pub(crate) fn read_identity(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some((certificate, key)) = &self.identity else { return Ok(None) };
        Ok(Some((read_pem("tls_cert", certificate)?, read_pem("tls_key", key)?)))
    }
}

#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
fn read_pem(field: &str, file: &std::path::Path) -> Result<Vec<u8>> {
    let refuse = |e| Error::new(ErrorKind::Config, format!("{field}: {}: {e}", file.display()));
    std::fs::read(file).map_err(refuse)
}
