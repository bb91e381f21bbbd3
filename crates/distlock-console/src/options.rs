//! How a console is to be run, and what is refused before it listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::access::AccessToken;
use crate::host::HostName;

/// Where a console listens unless told otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7411);

/// How a console is to be run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen; port 0 is any free one. Default: [`DEFAULT_LISTEN`].
    pub listen: SocketAddr,
    /// Names besides `localhost` and addresses by which browsers may call it.
    pub hosts: Vec<HostName>,
    /// What lets visitors in.
    pub token: AccessToken,
    /// Refuse every change. Default: no.
    pub read_only: bool,
    /// Append breaks to this file, one JSON object a line.
    pub audit_file: Option<PathBuf>,
    /// Certificate chain and key, both PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Let others than this machine in without encryption. Default: no.
    pub insecure_listen: bool,
}

impl Options {
    /// The defaults.
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

    /// Refuses what would send the token over a network for everybody to read.
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
    fn only_loopback_goes_without_encryption_or_a_word() {
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
