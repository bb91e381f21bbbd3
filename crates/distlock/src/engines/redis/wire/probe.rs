//! The questions that a connection asks first: which server it is, and what it refuses.

use redis::{Cmd, RedisError, RedisResult, Value};

use crate::engines::redis::error::{Stage, classify, classify_at};
use crate::engines::redis::wire::natives::Natives;
use crate::engines::redis::wire::options::Options;
use crate::engines::redis::wire::server_identity::ServerIdentity;
use crate::engines::redis::wire::socket::Socket;
use crate::types::error::{Error, ErrorKind, Result};

const PROBE: &str = include_str!("probe.lua");
/// The hash of no script.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// What the first replies of a server tell.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) identity: ServerIdentity,
    /// Why scripts may not publish, if they may not.
    pub(super) mute: Option<String>,
    pub(super) natives: Natives,
}

impl Probe {
    /// Asks the server at `place`.
    ///
    /// # Errors
    /// Kind `Config` when it is part of a cluster and `options` are for one server; `Unsupported` or `Auth` when it does
    /// not run scripts, or not those that the options need.
    pub(super) async fn ask(socket: &Socket, options: &Options, place: &str) -> Result<Probe> {
        // At once: none depends on another.
        let [hello, by_text, by_hash, listed] = questions(options).map(|question| socket.send(&question));
        let (hello, by_text) = (of_server(hello.value().await, place)?, of_server(by_text.value().await, place)?);
        let (by_hash, listed) = (of_server(by_hash.value().await, place)?, of_server(listed.value().await, place)?);
        let identity = hello.map(ServerIdentity::of_hello).unwrap_or_default();
        if identity.is_cluster == Some(true) && !options.is_cluster {
            return Err(is_cluster(options, place));
        }
        let by_text = match by_text {
            // The keys of the probe may be others than those of all locks that the user has a right to.
            Err(error) if error.code() == Some("NOPERM") => {
                of_server(socket.ask(&probe(options, [].iter())).await, place)?
            }
            reply => reply,
        };
        let refusals = by_text.map_err(|error| refused_script(options, place, &error))?;
        match by_hash {
            Err(error) if error.code() != Some("NOSCRIPT") => return Err(refused_script(options, place, &error)),
            _ => {}
        }
        let refusals: Vec<String> = redis::from_redis_value(refusals).unwrap_or_default();
        let [mute, info] = <[String; 2]>::try_from(refusals).unwrap_or_default();
        if !info.is_empty() {
            let text = format!("redis: {place} refuses INFO, without which a restart cannot be noticed: {info}");
            return Err(Error::new(ErrorKind::Auth, text));
        }
        let mut natives = Natives::default();
        for (native, trial) in Natives::trials(&options.prefix, listed) {
            let found = Natives::tried(native, socket.ask(&trial).await);
            if let Some(found) = found.map_err(|error| classify_at(place, &error, Stage::Opening))? {
                natives = found;
                break;
            }
        }
        // In a cluster other refusals come from nodes that do not serve the slot of the channel.
        let is_mute = if options.is_cluster { is_right(&mute) } else { !mute.is_empty() };
        Ok(Probe { identity, mute: is_mute.then_some(mute), natives })
    }
}

fn questions(options: &Options) -> [Cmd; 4] {
    let (first, second) = (format!("{}distlock-a", options.prefix), format!("{}distlock-b", options.prefix));
    let keys = if options.is_cluster { vec![] } else { vec![first, second] };
    let mut by_hash = redis::cmd("EVALSHA");
    by_hash.arg(NO_SCRIPT).arg(0);
    [redis::cmd("HELLO"), probe(options, keys.iter()), by_hash, Natives::question()]
}

/// Returns the call of the script that finds out what scripts may do. A cluster, also one that a proxy hides, refuses it
/// when `keys` are in different hash slots.
fn probe<'a>(options: &Options, keys: impl ExactSizeIterator<Item = &'a String>) -> Cmd {
    let (publish, channel) = match options.is_cluster {
        true => ("SPUBLISH", options.sharded_channel("{distlock}:f")),
        false => ("PUBLISH", options.channel()),
    };
    let mut command = redis::cmd("EVAL");
    command.arg(PROBE).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    command.arg(publish).arg(channel).arg(u8::from(options.needs_info));
    command
}

/// Returns the reply, which may be an error that the server sent.
fn of_server(reply: RedisResult<Value>, place: &str) -> Result<RedisResult<Value>> {
    match reply {
        Err(error) if error.is_io_error() => Err(classify_at(place, &error, Stage::Opening)),
        reply => Ok(reply),
    }
}

/// Returns whether a refusal is about a right of the user, or about a command that the server does not have.
pub(in crate::engines) fn is_right(refusal: &str) -> bool {
    // What 7.0 says of a right that a script lacks, and later versions.
    let of_rights = ["NOPERM", "executing the script can't", "ACL failure in script"];
    // Commands may also be renamed away. Some products put their name between these words.
    let is_unknown = refusal.contains("nknown") && refusal.contains("command");
    is_unknown || refusal.contains("find scripting engine") || of_rights.iter().any(|sign| refusal.contains(sign))
}

/// As [`is_right`], of an error that the server sent.
pub(in crate::engines) fn is_refused_right(error: &RedisError) -> bool {
    error.code() == Some("NOPERM") || error.detail().is_some_and(is_right)
}

fn refused_script(options: &Options, place: &str, error: &RedisError) -> Error {
    let text = error.detail().unwrap_or_default();
    let has_none = text.contains("nknown command") || text.contains("scripting engine");
    let kind = match error.code() {
        Some("CROSSSLOT") => return is_cluster(options, place),
        Some("NOPERM") => ErrorKind::Auth,
        _ if has_none => ErrorKind::Unsupported,
        _ => return classify(error, Stage::Opening),
    };
    Error::new(
        kind,
        format!(
            "redis: {place} runs no scripts for us, so no lock can be taken, renewed, released or listed there; only \
             `distlock doctor` works: {error}"
        ),
    )
}

fn is_cluster(options: &Options, place: &str) -> Error {
    let scheme = if options.encryption.is_some() { "rediss+cluster" } else { "redis+cluster" };
    let address = if place.contains('/') { "host:port" } else { place };
    let text = format!("redis: {place} is a node of a cluster, not a server with all keys: use {scheme}://{address}");
    Error::new(ErrorKind::Config, text)
}
