//! The options of a console, and their validation.

use std::net::SocketAddr;
use std::path::PathBuf;

use distlock_http::{AccessToken, HostName, Refused, check_listen};

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
        check_listen(self.listen, self.tls.is_some(), self.insecure_listen)
    }
}
