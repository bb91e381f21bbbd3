//! Locks seen from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::contract::LockInfo;
use crate::engines::redis::client::{CONNECT_WAIT, Client};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::script::{BREAK, Reply, SHOW, garbled};
use crate::engines::redis::protocol::value;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::join_all::join_all;
use crate::engines::shared::listing::{self, Allowance};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// How many keys the server looks at in one step of a scan.
const SCAN_COUNT: usize = 1000;
/// How many locks are asked for at once: thousands one by one would take thousands of round trips.
pub(super) const AT_ONCE: usize = 64;
/// How many holders and waiters of one lock are shown.
const MOST_SHOWN: usize = 1000;

impl Client {
    pub(super) async fn list(&self, start: &str) -> Result<Vec<LockInfo>> {
        let (mut locks, mut allowance) = (Vec::new(), Allowance::new());
        listing::in_time(async {
            for server in self.servers.all().await? {
                let connection = server.main.connection(CONNECT_WAIT).await?;
                locks.extend(list(&connection, &self.options.prefix, start, &mut allowance).await?);
            }
            Ok(())
        })
        .await?;
        locks.sort_by(|one: &LockInfo, other| one.key.cmp(&other.key));
        Ok(locks)
    }

    /// Returns one lock; `None` when it has neither holder nor waiter.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        // A name that cannot be a lock here is no lock.
        let Ok(names) = self.names(key) else { return Ok(None) };
        let get = |_, connection: Arc<Connection>| async move { connection.get(&self.options.prefix, key).await };
        self.on_main(&names, get).await
    }

    /// Ends the hold with `token`.
    pub(super) async fn force_release(&self, key: &Key, token: FencingToken) -> Result<()> {
        let names = self.names(key)?;
        let names = &names;
        let force_release = |_, connection: Arc<Connection>| async move {
            let fill = |command: &mut redis::Cmd, nonce| {
                names.fill(command, &connection.fences);
                command.arg(nonce).arg(token.get());
            };
            let mut reply = connection.run(&BREAK, fill).await?;
            match reply.word()?.as_str() {
                "broken" => Ok(()),
                "not held" => Err(Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}"))),
                "foreign" => {
                    let kind = reply.word()?;
                    let message = format!("redis: the key holds a {kind} that is not ours");
                    Err(Error::new(ErrorKind::Foreign, message).with_help("the program that made it must remove it"))
                }
                _ => Err(garbled()),
            }
        };
        self.on_main(names, force_release).await
    }
}

impl Connection {
    /// Returns the locks of this server whose names begin with `start`.
    pub(in crate::engines) async fn list(&self, prefix: &str, start: &str) -> Result<Vec<LockInfo>> {
        list(self, prefix, start, &mut Allowance::new()).await
    }

    /// Returns one lock as this server sees it.
    pub(in crate::engines) async fn get(&self, prefix: &str, key: &Key) -> Result<Option<LockInfo>> {
        look(self, prefix, key).await.map(|(found, _)| found)
    }
}

/// Returns the locks whose names begin with `start`. A foreign key that only looks like a lock's name is not listed.
async fn list(connection: &Connection, prefix: &str, start: &str, allowance: &mut Allowance) -> Result<Vec<LockInfo>> {
    let ask = |scan: redis::Cmd| async move { connection.send(&scan).await };
    let look = |key: Key| async move { look(connection, prefix, &key).await };
    scan(prefix, start, allowance, ask, look).await
}

/// The same on a server that carries out what it is `ask`ed, and whose locks are as `look` says. Whatever else it has, a
/// page at a time is kept of that: in a cluster our fences alone may be millions.
async fn scan<A, L>(
    prefix: &str,
    start: &str,
    allowance: &mut Allowance,
    ask: impl Fn(redis::Cmd) -> A,
    look: impl Fn(Key) -> L,
) -> Result<Vec<LockInfo>>
where
    A: Future<Output = Result<Value>>,
    L: Future<Output = Result<(Option<LockInfo>, usize)>>,
{
    let is_ours =
        |lock: &LockInfo| lock.holder().is_some_and(|holder| holder.record.is_some()) || !lock.waiters.is_empty();
    let mut locks: BTreeMap<Key, LockInfo> = BTreeMap::new();
    let mut cursor = b"0".to_vec();
    loop {
        let (next, found) = read_page(ask(step(prefix, start, &cursor)).await?)?;
        let names = found.iter().filter_map(|stored| std::str::from_utf8(stored).ok());
        let names = names.filter_map(|stored| Names::lock_of(prefix, stored));
        // A scan may show a key again, and a lock has several.
        let is_new = |key: &Key| key.as_str().starts_with(start) && !locks.contains_key(key);
        let names: Vec<Key> = names.filter(is_new).collect::<BTreeSet<_>>().into_iter().collect();
        for some in names.chunks(AT_ONCE) {
            for found in join_all(some.iter().cloned().map(&look)).await {
                let (found, length) = found?;
                if let Some(lock) = found.filter(is_ours) {
                    let parts = 1 + lock.holders.len() + lock.waiters.len();
                    allowance.spend(parts, lock.key.as_str().len() + length)?;
                    locks.insert(lock.key.clone(), lock);
                }
            }
        }
        if next == b"0" {
            return Ok(locks.into_values().collect());
        }
        cursor = next;
    }
}

/// Returns one step of a scan for the keys of locks whose names begin with `start`, with other keys among them.
fn step(prefix: &str, start: &str, cursor: &[u8]) -> redis::Cmd {
    let pattern = format!("*{}*", escape_glob(&format!("{prefix}{start}")));
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
    scan
}

/// Returns the next cursor and the keys that one step of a scan has found.
pub(super) async fn scan_keys(
    connection: &Connection,
    prefix: &str,
    start: &str,
    cursor: &[u8],
) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
    read_page(connection.send(&step(prefix, start, cursor)).await?)
}

/// One lock, and how long the text was that tells of it.
async fn look(connection: &Connection, prefix: &str, key: &Key) -> Result<(Option<LockInfo>, usize)> {
    // A name that cannot be a lock here is no lock.
    let Ok(names) = Names::new(prefix, key) else { return Ok((None, 0)) };
    let fill = |command: &mut redis::Cmd, nonce| {
        command.arg(5).arg(&names.lock).arg(names.queue()).arg(names.waiters());
        command.arg(names.holders()).arg(names.leases()).arg(nonce).arg(MOST_SHOWN);
    };
    let mut reply = connection.run(&SHOW, fill).await?;
    let length = reply.length();
    let now_us = reply.unsigned()?;
    let is_held = reply.word()? != "none";
    let held = reply.bytes()?;
    let ttl_left = read_left(&mut reply)?;
    let holders = match value::is_group(&held) {
        true => read_group(&mut reply, now_us)?,
        false => {
            reply.int()?;
            is_held.then(|| value::holder(&held, ttl_left, now_us)).into_iter().collect()
        }
    };
    let mut waiting = Vec::new();
    while !reply.is_empty() {
        waiting.extend(value::waiter(&reply.bytes()?).map(Arc::new));
    }
    let is_there = !holders.is_empty() || !waiting.is_empty();
    Ok((is_there.then(|| LockInfo::new(key.clone(), holders, waiting)), length))
}

fn read_left(reply: &mut Reply) -> Result<Option<Duration>> {
    Ok(u64::try_from(reply.int()?).ok().map(Duration::from_millis))
}

/// Reads the holders of a group, the one that entered first first.
fn read_group(reply: &mut Reply, now_us: u64) -> Result<Vec<Holder>> {
    let mut inside = Vec::new();
    for _ in 0..reply.unsigned()? {
        let entry = reply.bytes()?;
        let ttl_left = read_left(reply)?;
        inside.extend(value::group_holder(&entry, ttl_left, now_us));
    }
    inside.sort_by_key(|holder| (std::cmp::Reverse(holder.held_for), holder.token));
    Ok(inside)
}

fn read_page(page: Value) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
    redis::from_redis_value(page).map_err(|_| garbled())
}

/// The server's patterns know `*`, `?`, `[` and `\`.
fn escape_glob(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::SystemTime;

    use super::*;
    use crate::engines::shared::listing::in_time;
    use crate::types::owner::{OwnerId, Process, Record};

    /// A server whose list never ends: every page has `names` that nobody has heard before, which are locks if it says so.
    async fn list_for_ever(names: u64, are_locks: bool) -> (Result<Vec<LockInfo>>, u64) {
        let asked = Cell::new(0);
        let ask = |_| {
            asked.set(asked.get() + 1);
            let page = asked.get();
            assert!(page < 50_000, "it would go on for ever");
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let name = |number| Value::BulkString(format!("{page} {number}").into());
                let cursor = Value::BulkString(page.to_string().into());
                Ok(Value::Array(vec![cursor, Value::Array((0..names).map(name).collect())]))
            }
        };
        let waiter = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let waiter = Arc::new(waiter);
        let look = |key: Key| {
            let lock = are_locks.then(|| LockInfo::new(key, Vec::new(), vec![waiter.clone()]));
            async { Ok((lock, 0)) }
        };
        let outcome = in_time(scan("", "", &mut Allowance::of(1 << 20), ask, look)).await;
        (outcome, asked.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_always_has_more_keys_is_not_believed_for_ever() {
        let (outcome, pages) = list_for_ever(100, true).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Backend);
        assert!((40..60).contains(&pages), "as long as there is room: {pages}");
        for names in [0, 2] {
            let (outcome, pages) = list_for_ever(names, false).await;
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Backend);
            assert!(pages > 10_000, "as long as there is time, which keys of others take, and no room: {pages}");
        }
    }

    #[test]
    fn patterns_mean_the_text_itself() {
        assert_eq!(escape_glob("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
    }
}
