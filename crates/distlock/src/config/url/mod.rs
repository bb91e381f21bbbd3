//! Reads the one URL that says where the locks live.
//!
//! Written by hand: several hosts in one URL, each with its own credentials, are nothing that a general parser takes.
//! No fault ever repeats a part of the URL, except schemes and names of options that look like names.

mod host;
mod target;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use host::{Credentials, Host, Node};
pub(crate) use target::{Protocol, RedisOptions, RedisServers, Target};

use crate::config::{check_history, check_prefix, duration, is_plain_name};
use crate::types::error::Result;
use crate::types::history::MAX_HISTORY;

/// The options that any URL may have; each scheme takes some of them.
const OPTIONS: [&str; 6] = ["prefix", "ttl", "history", "restart_guard", "protocol", "db"];
/// And those of one set of servers with their replicas.
const REDIS_OPTIONS: [&str; 7] = ["prefix", "ttl", "history", "restart_guard", "wait_replicas", "protocol", "db"];

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const ETCD_PORT: u16 = 2379;

/// A URL that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) target: Target,
    pub(crate) prefix: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) history: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Memory,
    File,
    Redis,
    Unix,
    Sentinel,
    Cluster,
    Redlock,
    Etcd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Plain,
    Tls,
}

const SCHEMES: [(&str, Shape, Wire); 15] = [
    ("mem", Shape::Memory, Wire::Plain),
    ("file", Shape::File, Wire::Plain),
    ("redis", Shape::Redis, Wire::Plain),
    ("rediss", Shape::Redis, Wire::Tls),
    ("valkey", Shape::Redis, Wire::Plain),
    ("valkeys", Shape::Redis, Wire::Tls),
    ("redis+unix", Shape::Unix, Wire::Plain),
    ("redis+sentinel", Shape::Sentinel, Wire::Plain),
    ("rediss+sentinel", Shape::Sentinel, Wire::Tls),
    ("redis+cluster", Shape::Cluster, Wire::Plain),
    ("rediss+cluster", Shape::Cluster, Wire::Tls),
    ("redlock", Shape::Redlock, Wire::Plain),
    ("redlocks", Shape::Redlock, Wire::Tls),
    ("etcd", Shape::Etcd, Wire::Plain),
    ("etcds", Shape::Etcd, Wire::Tls),
];

impl Shape {
    fn options(self) -> &'static [&'static str] {
        match self {
            Shape::Memory | Shape::File => &["prefix", "ttl", "history"],
            Shape::Etcd => &["prefix", "ttl", "history", "names"],
            // A cluster has database 0 only.
            Shape::Cluster => &["prefix", "ttl", "history", "restart_guard", "wait_replicas", "protocol"],
            Shape::Redis | Shape::Unix | Shape::Sentinel => &REDIS_OPTIONS,
            Shape::Redlock => &OPTIONS,
        }
    }
}

/// Reads a URL. The fault says which part is wrong.
pub(crate) fn parse(url: &str) -> Result<Parsed, String> {
    if let Some(at) = url.find(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("a space or control character at byte {at}"));
    }
    let known = || SCHEMES.map(|(name, ..)| format!("{name}://")).join(" ");
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("no scheme; known are {}", known()))?;
    let found = SCHEMES.iter().find(|(name, ..)| name.eq_ignore_ascii_case(scheme));
    let (_, shape, wire) = *found.ok_or_else(|| {
        let name = if is_plain_name(scheme) { format!(" {scheme:?}") } else { String::new() };
        format!("an unknown scheme{name}; known are {}", known())
    })?;
    let parts = Parts::split(rest);
    if parts.fragment || (shape != Shape::File && parts.after_hosts.contains('@')) {
        // Most likely a password that ends the hosts too early, so nothing that follows may be repeated.
        return Err("an '@' or '#' after the hosts; in a user name or password write %2F for '/', %3F for '?', \
                    %23 for '#', %40 for '@'"
            .into());
    }
    let mut options = Options::parse(parts.query, shape)?;
    let target = build(shape, wire, &parts, &mut options)?;
    Ok(Parsed { target, prefix: options.prefix, ttl: options.ttl, history: options.history })
}

/// A URL behind its scheme.
struct Parts<'a> {
    hosts: &'a str,
    /// With its leading slash, if there is one.
    path: &'a str,
    query: &'a str,
    after_hosts: &'a str,
    fragment: bool,
}

impl<'a> Parts<'a> {
    fn split(rest: &'a str) -> Parts<'a> {
        let (hosts, after_hosts) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (path, query) = after_hosts.split_once('?').unwrap_or((after_hosts, ""));
        Parts { hosts, path, query, after_hosts, fragment: rest.contains('#') }
    }

    fn no_hosts(&self, instead: &str) -> Result<(), String> {
        if self.hosts.is_empty() { Ok(()) } else { Err(format!("a host where none belongs; write {instead}")) }
    }

    /// The path, which must be absolute, as a file name.
    fn file(&self) -> Result<PathBuf, String> {
        let path = percent_decode(self.path).map_err(|fault| format!("the path: {fault}"))?;
        match path.as_str() {
            "" => Err("the path is empty".into()),
            path if path.contains('\0') => Err("the path has a zero byte".into()),
            path => Ok(path.into()),
        }
    }

    /// Several hosts behind one pair of credentials.
    fn shared(&self, default_port: u16) -> Result<(Vec<Host>, Credentials), String> {
        let mut nodes = Node::parse_list(self.hosts, default_port)?.into_iter();
        let first = nodes.next().ok_or("the host is empty")?;
        let mut hosts = vec![first.host];
        for node in nodes {
            if node.credentials != Credentials::default() {
                return Err("credentials are written once, before the first host".into());
            }
            hosts.push(node.host);
        }
        Ok((hosts, first.credentials))
    }
}

fn build(shape: Shape, wire: Wire, parts: &Parts<'_>, options: &mut Options) -> Result<Target, String> {
    let redis = |options: &Options, path: &str| -> Result<RedisOptions, String> {
        let Options { protocol, restart_guard, wait_replicas, .. } = *options;
        Ok(RedisOptions { tls: wire == Wire::Tls, db: options.db(path)?, protocol, restart_guard, wait_replicas })
    };
    Ok(match shape {
        Shape::Memory => Target::Memory { name: memory_name(parts)? },
        Shape::File => {
            parts.no_hosts("file:///dir")?;
            Target::File { dir: Some(parts.file()?) }
        }
        Shape::Redis => {
            let (hosts, credentials) = parts.shared(REDIS_PORT)?;
            let servers = RedisServers::One(only(hosts)?);
            Target::Redis { servers, credentials, options: redis(options, parts.path)? }
        }
        Shape::Unix => {
            // The path is taken, so a password comes as a field, and the database as an option.
            parts.no_hosts("redis+unix:///path")?;
            let servers = RedisServers::Unix(parts.file()?);
            Target::Redis { servers, credentials: Credentials::default(), options: redis(options, "")? }
        }
        Shape::Sentinel => {
            let (sentinels, credentials) = parts.shared(SENTINEL_PORT)?;
            let path = parts.path.strip_prefix('/').unwrap_or_default();
            let (service, db) = path.split_at(path.find('/').unwrap_or(path.len()));
            let service = percent_decode(service).map_err(|fault| format!("the service name: {fault}"))?;
            if service.is_empty() {
                return Err("the service name is missing; write redis+sentinel://host/service".into());
            }
            let servers = RedisServers::Sentinel { sentinels, service };
            Target::Redis { servers, credentials, options: redis(options, db)? }
        }
        Shape::Cluster => {
            let (hosts, credentials) = parts.shared(REDIS_PORT)?;
            let options = redis(options, parts.path)?;
            if options.db != 0 {
                return Err("a cluster has database 0 only".into());
            }
            Target::Redis { servers: RedisServers::Cluster(hosts), credentials, options }
        }
        Shape::Redlock => Target::Redlock { nodes: quorum(parts.hosts)?, options: redis(options, parts.path)? },
        Shape::Etcd => {
            let (hosts, credentials) = parts.shared(ETCD_PORT)?;
            options.prefix_from(parts.path)?;
            Target::Etcd { hosts, credentials, tls: wire == Wire::Tls, verbatim: options.verbatim }
        }
    })
}

fn memory_name(parts: &Parts<'_>) -> Result<Option<String>, String> {
    if !matches!(parts.path, "" | "/") {
        return Err("a path where none belongs; write mem://name".into());
    }
    if !parts.hosts.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        return Err("the name has a character other than letters, digits, '-', '.' and '_'".into());
    }
    Ok(Some(parts.hosts.to_owned()).filter(|name| !name.is_empty()))
}

fn only(hosts: Vec<Host>) -> Result<Host, String> {
    let count = hosts.len();
    let [host] = <[Host; 1]>::try_from(hosts).map_err(|_| {
        format!(
            "{count} hosts where one belongs; several need redis+sentinel://, redis+cluster:// or redlock://, \
             and a comma in a password is written %2C"
        )
    })?;
    Ok(host)
}

/// The nodes of a majority vote.
fn quorum(hosts: &str) -> Result<Vec<Node>, String> {
    let nodes = Node::parse_list(hosts, REDIS_PORT)?;
    let count = nodes.len();
    if count < 3 {
        return Err(format!("{count} nodes; below 3 no node may fail, so redlock takes 3, 5, 7 or 9"));
    }
    if count > 9 {
        return Err(format!("{count} nodes; each one costs a round trip per lock, so redlock takes 3, 5, 7 or 9"));
    }
    if count.is_multiple_of(2) {
        return Err(format!(
            "{count} nodes; an even one adds no failure that may be survived, so redlock takes 3, 5, 7 or 9"
        ));
    }
    for (i, node) in nodes.iter().enumerate() {
        // One server with two votes would be a majority that is none.
        if let Some(first) = nodes[..i].iter().position(|other| other.host == node.host) {
            return Err(format!("host {} is host {} again; each node has one vote", i + 1, first + 1));
        }
    }
    Ok(nodes)
}

#[derive(Default)]
struct Options {
    prefix: Option<String>,
    ttl: Option<Duration>,
    history: Option<u32>,
    restart_guard: Option<bool>,
    wait_replicas: u32,
    protocol: Option<Protocol>,
    db: Option<u32>,
    verbatim: bool,
}

impl Options {
    fn parse(query: &str, shape: Shape) -> Result<Options, String> {
        let mut options = Options::default();
        let mut seen = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !shape.options().contains(&name) {
                let name = if is_plain_name(name) { format!("option {name:?}") } else { "an option".into() };
                return Err(format!("{name} is not known here; known are {}", shape.options().join(", ")));
            }
            if seen.contains(&name) {
                return Err(format!("option {name:?} is given twice"));
            }
            seen.push(name);
            // Another separator than '&', most likely, which would make one value of several options.
            if value.contains('=') {
                return Err(format!(
                    "option {name:?}: an '=' in the value; options have '&' between them, or write %3D"
                ));
            }
            let value = percent_decode(value);
            value.and_then(|value| options.set(name, value)).map_err(|fault| format!("option {name:?}: {fault}"))?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "prefix" => {
                check_prefix(&value)?;
                self.prefix = Some(value);
            }
            "ttl" => self.ttl = Some(duration::TTL.parse(&value)?),
            "history" => {
                let most = value.parse().map_err(|_| format!("not a whole number from 0 to {MAX_HISTORY}"))?;
                self.history = Some(check_history(most)?);
            }
            "db" => self.db = Some(database(&value)?),
            "restart_guard" => match value.as_str() {
                "on" => self.restart_guard = Some(true),
                "off" => self.restart_guard = Some(false),
                _ => return Err("neither on nor off".into()),
            },
            "wait_replicas" => match value.parse() {
                Ok(count) => self.wait_replicas = count,
                Err(_) => return Err("not a number of replicas".into()),
            },
            "protocol" => match value.as_str() {
                "2" => self.protocol = Some(Protocol::Resp2),
                "3" => self.protocol = Some(Protocol::Resp3),
                _ => return Err("neither 2 nor 3".into()),
            },
            "names" => match value.as_str() {
                "escaped" => self.verbatim = false,
                "verbatim" => self.verbatim = true,
                _ => return Err("neither escaped nor verbatim".into()),
            },
            _ => return Err("not known".into()),
        }
        Ok(())
    }

    /// The database, from the option or from a path of `/db`.
    fn db(&self, path: &str) -> Result<u32, String> {
        match (self.db, path.strip_prefix('/').unwrap_or_default()) {
            (db, "") => Ok(db.unwrap_or_default()),
            (None, path) => database(path).map_err(|fault| format!("the path is to name a database: {fault}")),
            (Some(_), _) => Err("the database is given twice, as the path and as an option".into()),
        }
    }

    /// For etcd the path is the prefix, as it stands behind the first slash.
    fn prefix_from(&mut self, path: &str) -> Result<(), String> {
        let path = path.strip_prefix('/').unwrap_or_default();
        if path.is_empty() {
            return Ok(());
        }
        if self.prefix.is_some() {
            return Err("the prefix is given twice, as the path and as an option".into());
        }
        let prefix = percent_decode(path).and_then(|prefix| check_prefix(&prefix).map(|()| prefix));
        self.prefix = Some(prefix.map_err(|fault| format!("the path is to be a prefix: {fault}"))?);
        Ok(())
    }
}

fn database(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.ok_or_else(|| format!("not a whole number from 0 to {}", u32::MAX))
}

fn percent_decode(text: &str) -> Result<String, String> {
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
mod tests;
