//! The commands that the scripts and connections use, and no others.

use crate::server::reply::Reply;
use crate::server::store::{Data, Store};

/// A time of the server's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) us: u64,
}

impl Now {
    pub(super) fn ms(self) -> u64 {
        self.us / 1000
    }
}

/// Executes a command on the data. Returns `None` for commands that are not about data.
pub(super) fn execute(store: &mut Store, now: Now, args: &[Vec<u8>]) -> Option<Reply> {
    store.expire(now.ms());
    let name = String::from_utf8_lossy(args.first()?).to_uppercase();
    let words: Vec<&[u8]> = args[1..].iter().map(Vec::as_slice).collect();
    Some(match (name.as_str(), words.as_slice()) {
        ("TIME", []) => {
            let part = |number: u64| Reply::text(number.to_string());
            Reply::Array(vec![part(now.us / 1_000_000), part(now.us % 1_000_000)])
        }
        ("EXISTS", keys) => count(keys, |key| store.get(key).is_some()),
        ("DEL", keys) => count(keys, |key| store.remove(key)),
        ("TYPE", [key]) => Reply::Status(store.get(key).map_or("none", Data::type_name)),
        ("PTTL", [key]) => Reply::Int(match store.ends(key) {
            None => -2,
            Some(None) => -1,
            Some(Some(ends)) => signed(ends - now.ms()),
        }),
        ("PEXPIRE", [key, ms, flags @ ..]) => expire(store, now, key, integer(ms)?, flags)?,
        ("GET", [key]) => with_text(store, key, |text| text.map_or(Reply::Nil, Reply::text)),
        ("MGET", keys) => {
            let text = |key: &&[u8]| match store.get(key) {
                Some(Data::Text(text)) => Reply::text(text.clone()),
                _ => Reply::Nil,
            };
            Reply::Array(keys.iter().map(text).collect())
        }
        ("INCR", [key]) => increase(store, key),
        ("GETRANGE", [key, from, to]) => {
            let (from, to) = (integer(from)?, integer(to)?);
            with_text(store, key, |text| Reply::text(slice(text.unwrap_or_default(), from, to)))
        }
        ("SETRANGE", [key, at, part]) => set_range(store, key, usize::try_from(integer(at)?).ok()?, part),
        ("SET", [key, text, flags @ ..]) => set(store, now, key, text, flags)?,
        ("HGET", [key, field]) => with_hash(store, key, |get| get(field)),
        ("HMGET", [key, fields @ ..]) => {
            with_hash(store, key, |get| Reply::Array(fields.iter().map(|field| get(field)).collect()))
        }
        ("HGETALL", [key]) => hash_all(store, key),
        ("HSET", [key, field, text]) => {
            edit_hash(store, key, |hash| hash.insert(field.to_vec(), text.to_vec()).is_none() as usize)
        }
        ("HDEL", [key, fields @ ..]) => {
            edit_hash(store, key, |hash| fields.iter().filter(|field| hash.remove(**field).is_some()).count())
        }
        ("ZADD", [key, flags @ .., score, member]) => sorted_add(store, key, flags, score, member)?,
        ("ZREM", [key, members @ ..]) => {
            edit_sorted(store, key, |sorted| members.iter().filter(|member| sorted.remove(**member).is_some()).count())
        }
        ("ZCARD", [key]) => with_sorted(store, key, |all| Reply::Int(signed(all.len() as u64))),
        ("ZSCORE", [key, member]) => with_sorted(store, key, |all| {
            let found = all.iter().find(|(_, name)| name == member);
            found.map_or(Reply::Nil, |(score, _)| Reply::text(score.to_string()))
        }),
        ("ZRANK", [key, member]) => with_sorted(store, key, |all| {
            let place = all.iter().position(|(_, name)| name == member);
            place.map_or(Reply::Nil, |place| Reply::Int(signed(place as u64)))
        }),
        ("ZRANGE", [key, from, to, flags @ ..]) => {
            let (from, to) = (integer(from)?, integer(to)?);
            with_sorted(store, key, |all| sorted_range(slice(all, from, to), !flags.is_empty()))
        }
        _ => return None,
    })
}

fn count(keys: &[&[u8]], mut happens: impl FnMut(&[u8]) -> bool) -> Reply {
    Reply::Int(signed(keys.iter().filter(|key| happens(key)).count() as u64))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number computed by a script may be sent as `1000.0`.
fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok()
}

/// Returns the elements from one index to another, inclusive; negative indices count from the end.
fn slice<T>(all: &[T], from: i64, to: i64) -> &[T] {
    let length = signed(all.len() as u64);
    let place = |at: i64| if at < 0 { (length + at).max(0) } else { at };
    let (from, to) = (place(from), if to < 0 { length + to } else { to }.min(length - 1));
    if from > to { &[] } else { &all[from as usize..=to as usize] }
}

fn expire(store: &mut Store, now: Now, key: &[u8], ms: i64, flags: &[&[u8]]) -> Option<Reply> {
    let ends = now.ms().saturating_add_signed(ms);
    let may = match (store.ends(key), flags) {
        (None, _) => false,
        (Some(_), []) => true,
        (Some(before), [b"GT"]) => before.is_some_and(|before| ends > before),
        _ => return None,
    };
    match may {
        true if ms <= 0 => drop(store.remove(key)),
        true => store.set_end(key, ends),
        false => {}
    }
    Some(Reply::Int(i64::from(may)))
}

fn set(store: &mut Store, now: Now, key: &[u8], text: &[u8], flags: &[&[u8]]) -> Option<Reply> {
    let (mut ends, mut gets, mut only_new, mut flags) = (None, false, false, flags);
    while let [flag, rest @ ..] = flags {
        flags = match (*flag, rest) {
            (b"PX", [ms, rest @ ..]) => {
                ends = Some(now.ms().saturating_add_signed(integer(ms)?));
                rest
            }
            (b"KEEPTTL", rest) => {
                ends = store.ends(key).flatten();
                rest
            }
            (b"GET", rest) => {
                gets = true;
                rest
            }
            (b"NX", rest) => {
                only_new = true;
                rest
            }
            _ => return None,
        };
    }
    let before = with_text(store, key, |text| text.map_or(Reply::Nil, Reply::text));
    if gets && matches!(before, Reply::Error(_)) {
        return Some(before);
    }
    if only_new && store.get(key).is_some() {
        return Some(Reply::Nil);
    }
    store.set(key, text.to_vec(), ends);
    Some(if gets { before } else { Reply::Status("OK") })
}

fn with_text(store: &Store, key: &[u8], read: impl FnOnce(Option<&[u8]>) -> Reply) -> Reply {
    match store.get(key) {
        None => read(None),
        Some(Data::Text(text)) => read(Some(text)),
        Some(_) => Reply::wrong_type(),
    }
}

fn increase(store: &mut Store, key: &[u8]) -> Reply {
    let Data::Text(text) = store.edit(key, || Data::Text(b"0".to_vec())) else { return Reply::wrong_type() };
    let Some(number) = integer(text) else {
        return Reply::Error("ERR value is not an integer or out of range".into());
    };
    *text = (number + 1).to_string().into_bytes();
    Reply::Int(number + 1)
}

fn set_range(store: &mut Store, key: &[u8], at: usize, part: &[u8]) -> Reply {
    let Data::Text(text) = store.edit(key, || Data::Text(Vec::new())) else { return Reply::wrong_type() };
    text.resize(text.len().max(at + part.len()), 0);
    text[at..at + part.len()].copy_from_slice(part);
    Reply::Int(signed(text.len() as u64))
}

fn with_hash(store: &Store, key: &[u8], read: impl FnOnce(&dyn Fn(&[u8]) -> Reply) -> Reply) -> Reply {
    match store.get(key) {
        None => read(&|_| Reply::Nil),
        Some(Data::Hash(hash)) => read(&|field| hash.get(field).cloned().map_or(Reply::Nil, Reply::Bulk)),
        Some(_) => Reply::wrong_type(),
    }
}

fn hash_all(store: &Store, key: &[u8]) -> Reply {
    match store.get(key) {
        None => Reply::Array(Vec::new()),
        Some(Data::Hash(hash)) => {
            let pairs = hash.iter().flat_map(|(field, text)| [field, text]);
            Reply::Array(pairs.cloned().map(Reply::Bulk).collect())
        }
        Some(_) => Reply::wrong_type(),
    }
}

fn edit_hash(
    store: &mut Store,
    key: &[u8],
    change: impl FnOnce(&mut std::collections::BTreeMap<Vec<u8>, Vec<u8>>) -> usize,
) -> Reply {
    let Data::Hash(hash) = store.edit(key, || Data::Hash(Default::default())) else { return Reply::wrong_type() };
    let changed = change(hash);
    store.sweep(key);
    Reply::Int(signed(changed as u64))
}

/// Calls `read` with all members in order.
fn with_sorted(store: &Store, key: &[u8], read: impl FnOnce(&[(f64, &[u8])]) -> Reply) -> Reply {
    match store.get(key) {
        None => read(&[]),
        Some(Data::Sorted(sorted)) => {
            let mut all: Vec<_> = sorted.iter().map(|(member, score)| (*score, member.as_slice())).collect();
            all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(other.1)));
            read(&all)
        }
        Some(_) => Reply::wrong_type(),
    }
}

fn sorted_range(some: &[(f64, &[u8])], with_scores: bool) -> Reply {
    let entry = |(score, member): &(f64, &[u8])| {
        let score = with_scores.then(|| Reply::text(score.to_string()));
        std::iter::once(Reply::text(*member)).chain(score).collect::<Vec<_>>()
    };
    Reply::Array(some.iter().flat_map(entry).collect())
}

fn edit_sorted(
    store: &mut Store,
    key: &[u8],
    change: impl FnOnce(&mut std::collections::BTreeMap<Vec<u8>, f64>) -> usize,
) -> Reply {
    let Data::Sorted(sorted) = store.edit(key, || Data::Sorted(Default::default())) else {
        return Reply::wrong_type();
    };
    let changed = change(sorted);
    store.sweep(key);
    Reply::Int(signed(changed as u64))
}

fn sorted_add(store: &mut Store, key: &[u8], flags: &[&[u8]], score: &[u8], member: &[u8]) -> Option<Reply> {
    let score = number(score)?;
    let only_new = match flags {
        [] => false,
        [b"NX"] => true,
        _ => return None,
    };
    Some(edit_sorted(store, key, |sorted| {
        let is_new = !sorted.contains_key(member);
        if is_new || !only_new {
            sorted.insert(member.to_vec(), score);
        }
        usize::from(is_new)
    }))
}
