//! The rules for addresses, host names, origins and tokens.

use std::net::SocketAddr;

use axum::http::HeaderMap;
use axum::http::header::{self, HeaderName};

use crate::access::AccessToken;
use crate::host::{self, HostName};
use crate::refused::Refused;

/// Refuses an address on which the token would cross a network in clear text.
///
/// # Errors
/// Names the address and the flags that help.
pub fn check_listen(listen: SocketAddr, is_encrypted: bool, insecure_listen: bool) -> Result<(), Refused> {
    if listen.ip().is_loopback() || is_encrypted || insecure_listen {
        return Ok(());
    }
    Err(Refused::new(format!(
        "{listen} can be reached from other machines, and the token would cross the network unencrypted; give \
         --tls-cert and --tls-key, or --insecure-listen behind a proxy that encrypts"
    )))
}

/// The token and the host names of a server.
#[derive(Debug)]
pub struct Gate {
    token: AccessToken,
    hosts: Vec<HostName>,
}

impl Gate {
    /// Returns the rules for this token and these host names, besides `localhost` and addresses.
    #[must_use]
    pub fn new(token: AccessToken, hosts: Vec<HostName>) -> Gate {
        Gate { token, hosts }
    }

    /// Returns the host of the request, if it is an address, `localhost` or one of the names.
    #[must_use]
    pub fn host<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        single_value(headers, header::HOST).filter(|host| host::is_ours(host, &self.hosts))
    }

    /// Returns whether the page that sent the request, which a browser names, is one of `host` itself. Another port of this
    /// machine is another origin. A request without an origin does not come from a page.
    #[must_use]
    pub fn is_same_origin(&self, host: &str, headers: &HeaderMap) -> bool {
        if !headers.contains_key(header::ORIGIN) {
            return true;
        }
        // A proxy may terminate TLS, so the scheme is not compared.
        let asking = single_value(headers, header::ORIGIN).and_then(|origin| origin.split_once("://"));
        asking.is_some_and(|(scheme, asking)| ["http", "https"].contains(&scheme) && asking == host)
    }

    /// Returns whether the request has the token. Cookies do not count: browsers send them to every port of the host, and
    /// so to other programs that listen there.
    #[must_use]
    pub fn has_token(&self, headers: &HeaderMap) -> bool {
        let word = single_value(headers, header::AUTHORIZATION).and_then(|word| word.strip_prefix("Bearer "));
        word.is_some_and(|word| self.token.is(word))
    }
}

/// Returns the header's value, if the header occurs exactly once.
fn single_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_may_go_without_encryption_by_default() {
        for good in ["127.0.0.1:0", "127.9.9.9:80", "[::1]:7411"] {
            assert!(check_listen(good.parse().unwrap(), false, false).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:7411", "10.0.0.1:80", "[::]:7411"] {
            let address = bad.parse().unwrap();
            let refused = check_listen(address, false, false).unwrap_err().to_string();
            assert!(refused.contains(bad) && refused.contains("--tls-cert"), "{refused}");
            assert!(check_listen(address, true, false).is_ok() && check_listen(address, false, true).is_ok());
        }
    }
}
