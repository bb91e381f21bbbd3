//! The options of a console, and their validation.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::access::AccessToken;
use crate::host::HostName;

/// The default address.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7411);

/// The options of a console.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address; port 0 is any free one. Default: [`DEFAULT_LISTEN`].
    pub listen: SocketAddr,
    /// Host names that browsers may use, besides `localhost` and addresses.
    pub hosts: Vec<HostName>,
    /// The token that gives access.
    pub token: AccessToken,
    /// Refuse every change. Default: no.
    pub read_only: bool,
    /// Append breaks to this file, one JSON object per line.
    pub audit_file: Option<PathBuf>,
    /// The certificate chain and its key, both PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Accept other machines without encryption. Default: no.
    pub insecure_listen: bool,
}

impl Options {
    /// Returns the defaults.
    #[must_use]
    pub fn new(token: AccessToken) -> Options {
        Options {
            listen: DEFAULT_LISTEN,
            hosts: Vec::new(),
            token,
            read_only: false,
            audit_file: None,
            tls: None,
            insecure_listen: false,
        }
    }

    /// Refuses options that would send the token over a network in clear text.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        if self.listen.ip().is_loopback() || self.tls.is_some() || self.insecure_listen {
            return Ok(());
        }
        Err(Refused::new(format!(
            "{} can be reached from other machines, and the token would cross the network unencrypted; give \
             --tls-cert and --tls-key, or --insecure-listen behind a proxy that encrypts",
            self.listen
        )))
    }
}

/// Why a console does not start.
#[derive(Debug)]
pub struct Refused(String);

impl Refused {
    pub(crate) fn new(message: impl Into<String>) -> Refused {
        Refused(message.into())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_may_go_without_encryption_by_default() {
        let at = |listen: &str| Options { listen: listen.parse().unwrap(), ..Options::new(AccessToken::random()) };
        for good in ["127.0.0.1:0", "127.9.9.9:80", "[::1]:7411"] {
            assert!(at(good).check().is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:7411", "10.0.0.1:80", "[::]:7411"] {
            let refused = at(bad).check().unwrap_err().to_string();
            assert!(refused.contains(bad) && refused.contains("--tls-cert"), "{refused}");
            assert!(Options { insecure_listen: true, ..at(bad) }.check().is_ok());
            assert!(Options { tls: Some(("c".into(), "k".into())), ..at(bad) }.check().is_ok());
        }
    }
}
