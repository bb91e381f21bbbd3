//! URLs without their secrets.

/// Takes the passwords out of a URL: those of each host in the authority, and query values that look like one.
///
/// The rest stays, so that a program that finds the URL in its environment talks to the same engine or fails loudly;
/// without any URL it would silently lock on this machine only.
#[must_use]
pub fn url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_string();
    };
    // A password may hold a bare '/' or '?', against the rules: what counts is the last '@', then the first of these.
    let hosts_from = rest.rfind('@').unwrap_or(0);
    let end = rest[hosts_from..].find(['/', '?', '#']).map_or(rest.len(), |at| hosts_from + at);
    let (authority, tail) = rest.split_at(end);
    let hosts: Vec<String> = authority.split(',').map(without_password).collect();
    format!("{scheme}://{}{}", hosts.join(","), without_secrets(tail))
}

/// Whether [`url`] would change it.
#[must_use]
pub fn has_secret(text: &str) -> bool {
    url(text) != text
}

fn without_password(host: &str) -> String {
    match host.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some(("", _)) => host.to_string(),
            Some((user, _)) => format!("{user}@{host}"),
            None => format!("{user}@{host}"),
        },
        // Part of a password with a bare comma in it must not pass for a host.
        None if !is_host(host) => "***".to_string(),
        None => host.to_string(),
    }
}

/// `name`, `name:port` or `[v6]:port`.
fn is_host(text: &str) -> bool {
    let after_name = text.rfind(']').map_or(text, |at| &text[at + 1..]);
    after_name.split_once(':').is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn without_secrets(tail: &str) -> String {
    let Some((path, query)) = tail.split_once('?') else {
        return tail.to_string();
    };
    let is_secret = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
        name.contains("pass") || name.contains("secret") || name.contains("token")
    };
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_secret(pair)).collect();
    if kept.is_empty() { path.to_string() } else { format!("{path}?{}", kept.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_go_and_everything_else_stays() {
        let cases = [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://user:pw@h/0", "redis://user@h/0"),
            ("redis://:pw@h", "redis://h"),
            ("redis://u:p/w?x@h/0?a=1", "redis://u@h/0?a=1"),
            ("redlock://u:p1@h1,u:p2@h2:7000,h3/x", "redlock://u@h1,u@h2:7000,h3/x"),
            ("redis://u:a,b@h1,h2", "redis://***,b@h1,h2"),
            ("etcds://[::1]:2379,[::2]:2379/p", "etcds://[::1]:2379,[::2]:2379/p"),
            ("redis+unix:///run/r.sock?password=pw&db=1", "redis+unix:///run/r.sock?db=1"),
            ("redis://h?Password=pw", "redis://h"),
            ("file:///var/lock", "file:///var/lock"),
            ("mem://", "mem://"),
            ("nonsense", "nonsense"),
        ];
        for (text, expected) in cases {
            assert_eq!(url(text), expected, "{text}");
            assert_eq!(has_secret(text), text != expected, "{text}");
        }
    }
}
