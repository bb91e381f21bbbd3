//! Removing passwords from text that is printed or passed to other programs.

use crate::config::url;
use crate::engines::shared::host::{Host, ServerAddress, is_plain_name};

/// Where in the value of a field a password may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hides {
    /// Nowhere: the field has no secret, or it is a file name.
    Nothing,
    /// Before the hosts of a URL.
    Url,
    /// Before the host of each item of a list.
    Endpoints,
    /// The value is a password.
    Password,
}

impl Hides {
    /// Returns the part of `value` that may be passed to another program.
    pub(crate) fn rest_of(self, value: &str) -> Option<String> {
        match self {
            Hides::Nothing => Some(value.into()),
            Hides::Url => Some(without_passwords(value)),
            Hides::Endpoints => Some(endpoints_without_passwords(value)),
            Hides::Password => None,
        }
    }
}

/// Returns a URL for printing, with its credentials as `***`.
///
/// It accepts any text. Of text that is not a valid URL of this library it hides too much rather than too little:
/// everything before the last `@`, because a password may contain any character; the path and the values of options;
/// and everything if the hosts do not look like hosts. A user name and a password of digits without a host
/// (`redis://user:1234`) cannot be distinguished from a host and its port.
///
/// ```
/// assert_eq!(distlock::redact("redis://app:secret@db:6379/2?ttl=30s"), "redis://***@db:6379/2?ttl=30s");
/// ```
#[must_use]
pub fn redact(url: &str) -> String {
    written(url, |rest| rest.rsplit_once('@').map_or(rest.into(), |(_, tail)| format!("***@{tail}")))
}

/// Returns a URL without its passwords, to pass it to another program. User names stay, so that a program with the
/// password from elsewhere reaches the same engine, and one without it is refused.
///
/// Text that is not a valid URL is returned as [`redact`] prints it.
///
/// ```
/// assert_eq!(distlock::without_passwords("redis://app:secret@db:6379/2?ttl=30s"), "redis://app@db:6379/2?ttl=30s");
/// ```
#[must_use]
pub fn without_passwords(url: &str) -> String {
    // An empty variable has no secret, and stays empty.
    if url.is_empty() { String::new() } else { written(url, with_users_only) }
}

/// Returns the scheme and, for a valid URL, `known` of the rest; otherwise as much of the rest as is safe.
fn written(url: &str, known: fn(&str) -> String) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) if url::parse(url).is_ok() => format!("{scheme}://{}", known(rest)),
        Some((scheme, rest)) if is_plain_name(scheme) => format!("{scheme}://{}", redact_rest(rest)),
        _ if url.contains('@') => redact_rest(url),
        _ => "***".into(),
    }
}

/// In a valid URL, credentials are only before hosts and contain no comma.
fn with_users_only(rest: &str) -> String {
    let (hosts, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let nodes: Vec<String> = hosts.split(',').map(with_user_only).collect();
    format!("{}{tail}", nodes.join(","))
}

fn with_user_only(node: &str) -> String {
    match node.rsplit_once('@') {
        Some((credentials, host)) => match credentials.split(':').next() {
            Some(user) if !user.is_empty() => format!("{user}@{host}"),
            _ => host.to_owned(),
        },
        None => node.to_owned(),
    }
}

/// Returns a list of endpoints without passwords; redacted if the list is invalid.
fn endpoints_without_passwords(list: &str) -> String {
    let handed_on = |endpoint: &str| {
        let (scheme, rest) = endpoint.split_at(endpoint.find("://").map_or(0, |at| at + 3));
        let (node, slash) = rest.split_at(rest.strip_suffix('/').unwrap_or(rest).len());
        let is_plain = scheme.is_empty() || is_plain_name(&scheme[..scheme.len() - 3]);
        let is_node = is_plain && !node.contains(['/', '?', '#']) && ServerAddress::parse_list(node, 1).is_ok();
        is_node.then(|| format!("{scheme}{}{slash}", with_user_only(node)))
    };
    let endpoints: Option<Vec<String>> = list.split(',').map(handed_on).collect();
    endpoints.map_or_else(|| redact_rest(list), |endpoints| endpoints.join(","))
}

/// Returns an item of `endpoints`, which needs no scheme, for printing.
pub(crate) fn redact_endpoint(endpoint: &str) -> String {
    if endpoint.contains("://") { redact(endpoint) } else { redact_rest(endpoint) }
}

/// Redacts the part after the scheme of an invalid URL.
fn redact_rest(rest: &str) -> String {
    match rest.rsplit_once('@') {
        Some((_, tail)) => format!("***@{}", redact_tail(tail)),
        None => redact_tail(rest),
    }
}

fn redact_tail(tail: &str) -> String {
    let (hosts, more) = tail.split_at(tail.find(['/', '?', '#']).unwrap_or(tail.len()));
    let plain = hosts.is_empty() || hosts.split(',').all(|host| Host::parse(host, 1).is_ok());
    let (path, query) = more.split_once('?').map_or((more, None), |(path, query)| (path, Some(query)));
    let path = match path {
        "" | "/" => path,
        _ if path.starts_with('#') => "#***",
        _ => "/***",
    };
    match query {
        _ if !plain => "***".into(),
        None => format!("{hosts}{path}"),
        Some(query) => format!("{hosts}{path}?{}", query.split('&').map(redact_option).collect::<Vec<_>>().join("&")),
    }
}

fn redact_option(option: &str) -> String {
    match option.split_once('=') {
        Some((name, _)) if is_plain_name(name) => format!("{name}=***"),
        _ => "***".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_replaced_and_the_rest_stays_readable() {
        let cases = [
            ("redis://db:6379/2?ttl=30s", "redis://db:6379/2?ttl=30s"),
            ("redis://:pw@db", "redis://***@db"),
            ("rediss://app:pw@[::1]:7000/0", "rediss://***@[::1]:7000/0"),
            ("redlock://a:x@h1,b:y@h2,c:z@h3", "redlock://***@h3"),
            ("etcd://h1,h2:2379/locks/", "etcd://h1,h2:2379/locks/"),
            ("redis+unix:///run/redis.sock?db=1", "redis+unix:///run/redis.sock?db=1"),
            ("file:///var/lock", "file:///var/lock"),
            ("file:///a@b", "file://***@b"),
            ("mem://", "mem://"),
        ];
        for (url, printed) in cases {
            assert_eq!(redact(url), printed);
        }
    }

    #[test]
    fn what_is_no_proper_url_loses_too_much_rather_than_too_little() {
        let cases = [
            ("", "***"),
            ("hunter2", "***"),
            ("user:hunter2@db", "***@db"),
            ("//user:hunter2@db", "***@db"),
            ("redis:/user:hunter2@db", "***@db"),
            ("redis://user:hunter2", "redis://***"),
            ("redis://user:hunter/2s", "redis://***"),
            ("redis://user:hun/ter?2@db", "redis://***@db"),
            ("redis://user:hun#ter@2@:bad", "redis://***@***"),
            ("redis://db?password=hunter2&db=1", "redis://db?password=***&db=***"),
            ("redis://db?hunter2", "redis://db?***"),
            ("redis://db?prefix=a;password=hunter2", "redis://db?prefix=***"),
            ("redis://db#hunter2", "redis://db#***"),
            ("hunter2://db", "***"),
            ("redis://db/a\nb", "redis://db/***"),
            ("redis://db/hunter2", "redis://db/***"),
            ("redis://db?ttl=hunter2", "redis://db?ttl=***"),
            ("http://db:80/?x", "http://db:80/?***"),
        ];
        for (url, printed) in cases {
            assert_eq!(redact(url), printed, "{url:?}");
        }
    }

    #[test]
    fn what_is_handed_on_has_users_and_no_passwords() {
        let cases = [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://user:pw@h/0", "redis://user@h/0"),
            ("redis://user@h/0", "redis://user@h/0"),
            ("redis://user:p:w@h/0?ttl=5s", "redis://user@h/0?ttl=5s"),
            ("redis://:pw@h", "redis://h"),
            ("redlock://u:p1@h1,u:p2@h2:7000,h3/1", "redlock://u@h1,u@h2:7000,h3/1"),
            ("etcds://[::1]:2379,[::2]:2379/p", "etcds://[::1]:2379,[::2]:2379/p"),
            ("redis+unix:///run/r.sock?db=1", "redis+unix:///run/r.sock?db=1"),
            ("file:///a:b@c", "file:///a:b@c"),
            ("mem://", "mem://"),
            ("", ""),
        ];
        for (url, handed_on) in cases {
            assert_eq!(without_passwords(url), handed_on, "{url:?}");
        }
        let broken = [
            "hunter2",
            "redis://u:hunter2/x@h/0",
            "redis://u:a,hunter2@h1,h2",
            "redis://h?password=hunter2",
            "redis://u:hunter2",
        ];
        for url in broken {
            assert_eq!(without_passwords(url), redact(url), "{url:?}");
            assert!(!without_passwords(url).contains("hunter2"), "{url:?}");
        }
    }

    #[test]
    fn endpoints_that_are_handed_on_have_users_and_no_passwords() {
        let cases = [
            ("h", "h"),
            ("", ""),
            ("user:pw@h:7000", "user@h:7000"),
            (":pw@h", "h"),
            ("u:p1@h1,u:p:2@[::2]:7000,h3", "u@h1,u@[::2]:7000,h3"),
            ("https://u:p@h1:2379/,https://h2", "https://u@h1:2379/,https://h2"),
            ("u:hun,ter2@h", "***@h"),
            ("u:hun/ter2@h1,h2", "***@h1,h2"),
            ("u:hun@ter2@h", "***@h"),
            ("u:hunter2", "***"),
            ("hunter2://h", "***"),
        ];
        for (list, handed_on) in cases {
            assert_eq!(endpoints_without_passwords(list), handed_on, "{list:?}");
        }
    }

    #[test]
    fn an_endpoint_needs_no_scheme_to_be_printed() {
        assert_eq!(redact_endpoint("db:6379"), "db:6379");
        assert_eq!(redact_endpoint("app:pw@db:6379"), "***@db:6379");
        assert_eq!(redact_endpoint("https://app:pw@db:2379"), "https://***@db:2379");
        assert_eq!(redact_endpoint("app:pw"), "***");
    }
}
