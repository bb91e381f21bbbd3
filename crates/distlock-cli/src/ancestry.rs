//! The locks that ancestors of this process hold, as the environment lists them.
//!
//! `DISTLOCK_CHAIN` lists them, outermost first, as `token@engine#name` with `%XX` for separators. Only the chain
//! lists all of them: the other variables describe the innermost lock.
//!
//! One lock can have many names: a path may be relative, absolute or through a link, and a server has addresses and
//! aliases. So names cannot decide whether an ancestor holds a lock. `DISTLOCK_CHAIN_HOLDERS` lists the same holds as
//! the engine shows them, as `token=owner=pid=host`: an ancestor holds the lock if one of these is its holder. Names
//! are compared only for ancestors of a version that did not set that variable.

use std::ffi::OsString;

use distlock::{FencingToken, Holder, Key, Process};

/// The variable with the chain.
pub const CHAIN: &str = "DISTLOCK_CHAIN";
/// The variable with the holders of the chain.
pub const CHAIN_HOLDERS: &str = "DISTLOCK_CHAIN_HOLDERS";

/// One lock of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLink {
    /// The engine's URL, without secrets.
    pub engine: String,
    /// The lock.
    pub name: String,
    /// The token it was granted with.
    pub token: FencingToken,
}

/// One hold of the chain, as the engine shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderId {
    /// The token it was granted with.
    pub token: FencingToken,
    /// The owner.
    pub owner: String,
    /// The process id of the `distlock` process that holds it.
    pub pid: u32,
    /// The host of that process.
    pub host: String,
}

impl HolderId {
    /// Returns the id of a hold of this process.
    #[must_use]
    pub fn of_this_process(token: FencingToken, owner: &str) -> HolderId {
        let process = Process::current();
        HolderId { token, owner: owner.into(), pid: process.pid, host: process.host.clone() }
    }

    fn is(&self, holder: &Holder) -> bool {
        holder.token == Some(self.token)
            && holder.record.as_ref().is_some_and(|record| {
                record.owner.as_str() == self.owner
                    && record.process.pid == self.pid
                    && record.process.host == self.host
            })
    }
}

/// The locks that ancestors held when they started this process. Only the engine knows whether they still do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ancestry {
    chain: Vec<ChainLink>,
    holders: Vec<HolderId>,
}

impl Ancestry {
    /// Reads both variables from the environment `inherited`.
    #[must_use]
    pub fn read(inherited: impl Fn(&str) -> Option<OsString>) -> Ancestry {
        let text = |name| inherited(name).unwrap_or_default().to_string_lossy().into_owned();
        Ancestry::parse(&text(CHAIN), &text(CHAIN_HOLDERS))
    }

    /// Parses both variables. Skips malformed entries: any process may set a variable.
    #[must_use]
    pub fn parse(chain: &str, holders: &str) -> Ancestry {
        Ancestry {
            chain: chain.split(' ').filter_map(parse_link).collect(),
            holders: holders.split(' ').filter_map(parse_holder).collect(),
        }
    }

    /// Whether no ancestor holds a lock.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty() && self.holders.is_empty()
    }

    /// Whether `holder`, which `engine` shows as a holder of `name`, is an ancestor.
    #[must_use]
    pub fn has(&self, holder: &Holder, engine: &str, name: &Key) -> bool {
        let by_name =
            |held: &ChainLink| holder.token == Some(held.token) && held.engine == engine && held.name == name.as_str();
        self.holders.iter().any(|ancestor| ancestor.is(holder)) || self.chain.iter().any(by_name)
    }

    /// Returns the ancestry of a child that runs under one more lock.
    #[must_use]
    pub fn with(&self, held: ChainLink, holder: HolderId) -> Ancestry {
        Ancestry {
            chain: self.chain.iter().cloned().chain([held]).collect(),
            holders: self.holders.iter().cloned().chain([holder]).collect(),
        }
    }

    /// Returns the variables for the child's environment.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let link = |held: &ChainLink| format!("{}@{}#{}", held.token, escape(&held.engine), escape(&held.name));
        let holder = |it: &HolderId| format!("{}={}={}={}", it.token, escape(&it.owner), it.pid, escape(&it.host));
        let chain: Vec<String> = self.chain.iter().map(link).collect();
        let holders: Vec<String> = self.holders.iter().map(holder).collect();
        [(CHAIN, chain.join(" ")), (CHAIN_HOLDERS, holders.join(" "))]
    }
}

fn parse_link(link: &str) -> Option<ChainLink> {
    let (token, rest) = link.split_once('@')?;
    let (engine, name) = rest.split_once('#')?;
    Some(ChainLink { engine: unescape(engine)?, name: unescape(name)?, token: token.parse().ok()? })
}

fn parse_holder(link: &str) -> Option<HolderId> {
    let mut fields = link.split('=');
    let mut next = || fields.next();
    let (token, owner, pid, host) = (next()?, next()?, next()?, next()?);
    let is_whole = next().is_none();
    let token = token.parse().ok()?;
    is_whole.then_some(HolderId { token, owner: unescape(owner)?, pid: pid.parse().ok()?, host: unescape(host)? })
}

fn escape(text: &str) -> String {
    text.replace('%', "%25").replace(' ', "%20").replace('#', "%23").replace('=', "%3D")
}

/// Reverses [`escape`]; `None` for an empty text and for invalid UTF-8.
fn unescape(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use distlock::{OwnerId, Record};

    use super::*;

    fn held(engine: &str, name: &str, token: u64) -> ChainLink {
        ChainLink { engine: engine.into(), name: name.into(), token: FencingToken::new(token) }
    }

    fn holder_id(owner: &str, token: u64) -> HolderId {
        HolderId { token: FencingToken::new(token), owner: owner.into(), pid: 7, host: "h=1 %".into() }
    }

    /// The holder as an engine shows it.
    fn shown(owner: &str, pid: u32, host: &str, token: u64) -> Holder {
        let process = Arc::new(Process { host: host.into(), pid, user: "u".into() });
        let record = Record::new(OwnerId::new(owner).unwrap(), process, None, SystemTime::UNIX_EPOCH);
        Holder::new(Some(Arc::new(record)), Some(FencingToken::new(token)))
    }

    fn read_back(ancestry: &Ancestry) -> Ancestry {
        let [(_, chain), (_, holders)] = ancestry.variables();
        Ancestry::parse(&chain, &holders)
    }

    /// Whether an ancestor of an older version, which set only the names, holds the lock.
    fn has_by_name(ancestry: &Ancestry, engine: &str, name: &str, token: u64) -> bool {
        let old = Ancestry { holders: Vec::new(), ..ancestry.clone() };
        old.has(&Holder::new(None, Some(FencingToken::new(token))), engine, &Key::new(name).unwrap())
    }

    #[test]
    fn a_chain_of_unusual_names_is_read_back_unchanged() {
        let chain = Ancestry::default()
            .with(held("redis://u@h/0?ttl=5s", "a b#c%20@d", 7), holder_id("me @#=%20", 7))
            .with(held("file:///run/x", "日本", 8), holder_id("日本", 8))
            .with(held("file:///run/x", "a", u64::MAX), holder_id("me", u64::MAX));
        let read = read_back(&chain);
        assert_eq!(read, chain);
        assert!(has_by_name(&read, "redis://u@h/0?ttl=5s", "a b#c%20@d", 7));
        assert!(!has_by_name(&read, "file:///run/x", "a b#c%20@d", 7), "another engine");
        assert!(!has_by_name(&read, "file:///run/x", "日本", 7), "another hold");
        let twice = read.with(held("file:///run/x", "a", 9), holder_id("me", 9));
        let both = [u64::MAX, 9].map(|token| has_by_name(&twice, "file:///run/x", "a", token));
        assert_eq!(both, [true, true], "two permits of a semaphore");
    }

    #[test]
    fn an_ancestor_is_recognized_by_its_hold_under_any_lock_name() {
        let ancestry = read_back(&Ancestry::default().with(held("file:///x", "./l", 7), holder_id("me", 7)));
        let name = Key::new("/tmp/l").unwrap();
        assert!(ancestry.has(&shown("me", 7, "h=1 %", 7), "file:///x/", &name));
        for other in [shown("me", 7, "h=1 %", 8), shown("me", 8, "h=1 %", 7), shown("me", 7, "h", 7)] {
            assert!(!ancestry.has(&other, "file:///x/", &name), "{other}");
        }
        assert!(!ancestry.has(&shown("you", 7, "h=1 %", 7), "file:///x/", &name));
        assert!(
            !ancestry.has(&Holder::new(None, Some(FencingToken::new(7))), "file:///x/", &name),
            "a holder without a record"
        );
    }

    #[test]
    fn malformed_entries_are_skipped() {
        for text in ["", " ", "x", "7@", "7@a", "seven@a#b", "@#", "7@a#%FF", "7=a=b=c", "7=a=1", "=a=1=c", "7=a=1=c=d"]
        {
            assert!(Ancestry::parse(text, text).is_empty(), "{text:?}");
        }
        assert!(has_by_name(&Ancestry::parse("junk 7@a#b", "junk"), "a", "b", 7));
        assert!(!Ancestry::parse("", "junk 7=a=1=h").is_empty());
    }
}
