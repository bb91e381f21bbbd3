//! One server in a URL: `user:password@host:port`.

use std::fmt;
use std::net::Ipv6Addr;

use crate::types::error::Result;
use crate::types::secret::Secret;

/// A server's name or address, and its port. Names are in lower case and IPv6 addresses in canonical form, so that
/// two spellings of one host are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// A name, an IPv4 address, or an IPv6 address without its brackets.
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Host {
    /// Reads `name`, `name:port`, `[v6]` or `[v6]:port`. No fault repeats the text: a misplaced password may be where
    /// a host is expected.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Host, String> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or("an IPv6 address without its closing bracket")?;
                let address: Ipv6Addr =
                    address.parse().map_err(|_| "what stands in brackets is not an IPv6 address")?;
                (address.to_string(), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                (name.to_ascii_lowercase(), port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => default_port,
            None => return Err("text between the bracket and the port".into()),
            Some(port) if port.contains(':') => return Err("more than one ':'; an IPv6 address needs brackets".into()),
            Some(port) => parse_port(port)?,
        };
        if name.is_empty() {
            return Err("the host is empty".into());
        }
        if !text.starts_with('[') && !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
            return Err("the host has a character other than letters, digits, '-', '.' and '_'".into());
        }
        Ok(Host { name, port })
    }
}

fn parse_port(text: &str) -> Result<u16, String> {
    // `parse` alone would take "+1".
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let port = if digits { text.parse().ok().filter(|port| *port != 0) } else { None };
    port.ok_or_else(|| "the port is not a number from 1 to 65535".into())
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

/// The credentials for a server. Both are `None` if the server needs none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
}

impl Credentials {
    fn parse(text: &str) -> Result<Credentials, String> {
        if text.contains('@') {
            return Err("an '@' in the user name or password; write %40".into());
        }
        let (username, password) = text.split_once(':').unwrap_or((text, ""));
        let part = |what: &str, text: &str| match percent_decode(text) {
            Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            Err(fault) => Err(format!("the {what}: {fault}")),
        };
        Ok(Credentials {
            username: part("user name", username)?,
            password: part("password", password)?.map(Secret::from),
        })
    }
}

/// A server with its own credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    pub(crate) host: Host,
    pub(crate) credentials: Credentials,
}

impl ServerAddress {
    fn parse(text: &str, default_port: u16) -> Result<ServerAddress, String> {
        let (credentials, host) = match text.rsplit_once('@') {
            Some((credentials, host)) => (Credentials::parse(credentials)?, host),
            None => (Credentials::default(), text),
        };
        Ok(ServerAddress { host: Host::parse(host, default_port)?, credentials })
    }

    /// Reads servers with commas between them.
    pub(crate) fn parse_list(text: &str, default_port: u16) -> Result<Vec<ServerAddress>, String> {
        let nodes = text.split(',').enumerate();
        nodes
            .map(|(i, node)| {
                ServerAddress::parse(node, default_port).map_err(|fault| format!("host {}: {fault}", i + 1))
            })
            .collect()
    }
}

/// Returns whether a name from outside may be repeated in a message: it does not look like a password.
pub(crate) fn is_plain_name(name: &str) -> bool {
    (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'+'))
}

/// Decodes `%XX` in a part of a URL.
pub(crate) fn percent_decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|d| char::from(*d).to_digit(16));
        let escaped = digit(0).zip(digit(1)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(escaped.ok_or("a '%' without two hexadecimal digits; write %25 for '%'")?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8 after decoding".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        let cases = [
            ("db", "db:6379"),
            ("DB.example:1", "db.example:1"),
            ("10.0.0.1:65535", "10.0.0.1:65535"),
            ("[::1]", "[::1]:6379"),
            ("[2001:DB8:0::2]:7000", "[2001:db8::2]:7000"),
            ("my_db-1", "my_db-1:6379"),
        ];
        for (text, printed) in cases {
            assert_eq!(Host::parse(text, 6379).unwrap().to_string(), printed);
        }
        assert_eq!(Host::parse("[::1]:7", 1).unwrap(), Host { name: "::1".into(), port: 7 });
    }

    #[test]
    fn what_is_no_host_is_refused_with_the_part_that_is_wrong() {
        let cases = [
            ("", "the host is empty"),
            (":6379", "the host is empty"),
            (":bad", "the port is not"),
            ("db:", "the port is not"),
            ("db:0", "the port is not"),
            ("db:65536", "the port is not"),
            ("db:+1", "the port is not"),
            ("::1", "needs brackets"),
            ("[::1", "closing bracket"),
            ("[]", "not an IPv6"),
            ("[db]", "not an IPv6"),
            ("[::1]7", "between the bracket and the port"),
            ("d%62", "a character other than"),
            ("dé", "a character other than"),
        ];
        for (text, part) in cases {
            let fault = Host::parse(text, 6379).expect_err(text);
            assert!(fault.contains(part), "{text:?}: {fault}");
        }
    }

    #[test]
    fn each_node_has_its_own_decoded_credentials() {
        let nodes = ServerAddress::parse_list("a:p%40%2C%3A@h1,:x@h2,b@h3,:@h4,h5", 1).unwrap();
        let read = |node: &ServerAddress| {
            let Credentials { username, password } = node.credentials.clone();
            (username, password.map(|password| password.expose().to_owned()))
        };
        let expected = [(Some("a"), Some("p@,:")), (None, Some("x")), (Some("b"), None), (None, None), (None, None)];
        for (node, (username, password)) in nodes.iter().zip(expected) {
            assert_eq!(read(node), (username.map(Into::into), password.map(Into::into)), "{node:?}");
        }
        assert_eq!(nodes.len(), 5);
    }

    #[test]
    fn a_fault_says_which_host_and_which_part() {
        let cases = [
            ("h1,,h3", "host 2: the host is empty"),
            ("h1,u:a%zz@h2", "host 2: the password: a '%'"),
            ("u%f:a@h1", "host 1: the user name: a '%'"),
            ("u:a%ff@h1", "host 1: the password: not UTF-8"),
            ("u:p@q@h1", "host 1: an '@' in the user name or password; write %40"),
        ];
        for (text, part) in cases {
            let fault = ServerAddress::parse_list(text, 1).expect_err(text);
            assert!(fault.starts_with(part), "{text:?}: {fault}");
        }
    }
}
