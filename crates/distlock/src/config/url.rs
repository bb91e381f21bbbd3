//! Reads the one URL that says where the locks live.
//!
//! Written by hand: a general parser takes no URL with several hosts and credentials for each. No fault repeats a
//! part of the URL, except schemes and names of options that look like names.

use std::time::Duration;

use crate::config::limits::{self, check_history};
use crate::config::names::current_name;
use crate::config::registry::schemes;
use crate::engines::shared::host::{is_plain_name, percent_decode};
use crate::engines::shared::row::{EngineAddress, Scheme};
use crate::engines::shared::settings::check_prefix;
use crate::engines::shared::url_parts::{COMMON_OPTIONS, UrlParts};
use crate::types::error::Result;
use crate::types::history::MAX_HISTORY;

/// A URL that was understood.
#[derive(Debug)]
pub(crate) struct ParsedUrl {
    pub(crate) address: Box<dyn EngineAddress>,
    pub(crate) prefix: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) history: Option<u32>,
}

/// Reads a URL. The fault says which part is wrong.
pub(crate) fn parse(url: &str) -> Result<ParsedUrl, String> {
    if let Some(at) = url.find(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("a space or control character at byte {at}"));
    }
    let known = || schemes().map(|scheme| format!("{}://", scheme.name)).collect::<Vec<_>>().join(" ");
    let (name, rest) = url.split_once("://").ok_or_else(|| format!("no scheme; known are {}", known()))?;
    let scheme = schemes().find(|scheme| scheme.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let name = if is_plain_name(name) { format!(" {name:?}") } else { String::new() };
        format!("an unknown scheme{name}; known are {}", known())
    })?;
    let (hosts, after_hosts) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if rest.contains('#') || (!scheme.allows_at_in_path && after_hosts.contains('@')) {
        // Most likely a password that ends the hosts too early, so nothing that follows may be repeated.
        return Err("an '@' or '#' after the hosts; in a user name or password write %2F for '/', %3F for '?', \
                    %23 for '#', %40 for '@'"
            .into());
    }
    let (path, query) = after_hosts.split_once('?').unwrap_or((after_hosts, ""));
    let mut parts =
        UrlParts { tls: scheme.tls, hosts, path, prefix: None, ttl: None, history: None, options: Vec::new() };
    read_options(scheme, query, &mut parts)?;
    let address = (scheme.read)(&mut parts)?;
    Ok(ParsedUrl { address, prefix: parts.prefix, ttl: parts.ttl, history: parts.history })
}

/// Reads the common options into `parts`, and collects those that the engine reads.
fn read_options<'a>(scheme: &Scheme, query: &'a str, parts: &mut UrlParts<'a>) -> Result<(), String> {
    let mut seen = Vec::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let name = current_name(name);
        let known = [&COMMON_OPTIONS, scheme.options].concat();
        if !known.contains(&name) {
            let name = if is_plain_name(name) { format!("option {name:?}") } else { "an option".into() };
            return Err(format!("{name} is not known here; known are {}", known.join(", ")));
        }
        if seen.contains(&name) {
            return Err(format!("option {name:?} is given twice"));
        }
        seen.push(name);
        // Another separator than '&', most likely, which would make one value of several options.
        if value.contains('=') {
            return Err(format!("option {name:?}: an '=' in the value; options have '&' between them, or write %3D"));
        }
        let value = percent_decode(value);
        value.and_then(|value| set_option(parts, name, value)).map_err(|fault| format!("option {name:?}: {fault}"))?;
    }
    Ok(())
}

fn set_option<'a>(parts: &mut UrlParts<'a>, name: &'a str, value: String) -> Result<(), String> {
    match name {
        "prefix" => {
            check_prefix(&value)?;
            parts.prefix = Some(value);
        }
        "default_ttl" => parts.ttl = Some(limits::TTL.parse(&value)?),
        "history" => {
            let most = value.parse().map_err(|_| format!("not a whole number from 0 to {MAX_HISTORY}"))?;
            parts.history = Some(check_history(most)?);
        }
        _ => parts.options.push((name, value)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
