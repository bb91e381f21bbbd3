//! The host names that clients may use.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A host name that clients may use, without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

impl std::str::FromStr for HostName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<HostName, Self::Err> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let fits = (1..=253).contains(&text.len()) && text.bytes().all(is_good);
        if fits { Ok(HostName(text.to_ascii_lowercase())) } else { Err("write a host name without a port") }
    }
}

/// Whether the Host header `header` is an address, `localhost` or one of `names`.
///
/// A foreign page can point its own name here (DNS rebinding), and would then have the same origin; it cannot use an
/// address or a name that is not its own.
pub(crate) fn is_ours(header: &str, names: &[HostName]) -> bool {
    let Some(host) = without_port(header) else { return false };
    if let Some(inner) = host.strip_prefix('[') {
        return inner.strip_suffix(']').is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok());
    }
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.parse::<Ipv4Addr>().is_ok() || names.iter().any(|name| name.0 == host)
}

fn without_port(header: &str) -> Option<&str> {
    let end = if header.starts_with('[') { header.find(']')? + 1 } else { header.find(':').unwrap_or(header.len()) };
    let (host, port) = header.split_at(end);
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_localhost_and_given_names_are_accepted() {
        let names = ["Locks.example.com".parse().unwrap()];
        for ours in
            ["127.0.0.1:7411", "localhost", "LOCALHOST:1", "[::1]:80", "[::1]", "10.0.0.7", "locks.example.com:443"]
        {
            assert!(is_ours(ours, &names), "{ours}");
        }
        let others = [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7411",
            "127.0.0.1:7411@evil.example",
            "[::1",
            "[evil]:1",
            "localhost:",
            "localhost:x",
            "127.1",
            "locks.example.com.",
        ];
        for other in others {
            assert!(!is_ours(other, &names), "{other}");
        }
        assert!("a:1".parse::<HostName>().is_err() && "".parse::<HostName>().is_err());
    }
}
