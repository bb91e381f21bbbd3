//! Where a lock's keys lie: `prefix + name + "/" + lease in hex + "-" + a number`, and `"-" + mode` unless it is
//! exclusive.
//!
//! Go's `concurrency.Mutex` and `etcdctl lock` look at the keys below `name/` and at nothing but the order in which
//! they were made, so they queue with us. Names nest there: a waiter for `a` also counts the keys of `a/b`. So a slash
//! in a name is escaped, unless names are to be taken verbatim.

use crate::types::key::Key;
use crate::types::mode::{AskedMode, Mode};
use crate::types::tick::Tick;

/// How the modes other than the exclusive one are called in a key.
const SHARED: &str = "shared";
const ENTRY: &str = "entry";
const SLOT: &str = "slot";
/// Before the number of slots of a claim that resizes the semaphore. Clients that know nothing of resizing read the same
/// number, and disagree with every other.
const RESIZES: &str = "0";
/// What the keys of ticks begin with, behind the prefix. No name of a lock has such braces.
const TICKS: &[u8] = b"{}ticks/";

/// The layout of one client's keys.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) prefix: String,
    pub(crate) verbatim: bool,
}

/// A key of a lock, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: Key,
    /// Whether it is in our own layout, and not in that of Go's client.
    pub(crate) is_ours: bool,
}

impl Names {
    /// What all keys of the lock begin with, and no key of another.
    pub(crate) fn lock(&self, key: &Key) -> Vec<u8> {
        let mut lock = self.all(key.as_str());
        lock.push(b'/');
        lock
    }

    /// What the keys of all locks begin with whose names begin with `start`.
    pub(crate) fn all(&self, start: &str) -> Vec<u8> {
        let mut all = self.prefix.clone();
        for c in start.chars() {
            match c {
                '/' if !self.verbatim => all.push_str("%2F"),
                '%' if !self.verbatim => all.push_str("%25"),
                c => all.push(c),
            }
        }
        all.into_bytes()
    }

    /// The key of one attempt. Two of one lease must not have the same number at the same time: an attempt that makes a
    /// key that is there already takes it for its own.
    pub(crate) fn place(lock: &[u8], lease: i64, number: u32, asked: AskedMode) -> Vec<u8> {
        let mut key = lock.to_vec();
        key.extend_from_slice(format!("{lease:x}-{number:x}").as_bytes());
        match asked.mode {
            Mode::Exclusive => {}
            Mode::Shared => key.extend_from_slice(format!("-{SHARED}").as_bytes()),
            Mode::Reentrant => key.extend_from_slice(format!("-{ENTRY}").as_bytes()),
            Mode::Slot { of } => {
                let resizes = if asked.resizes { RESIZES } else { "" };
                key.extend_from_slice(format!("-{SLOT}{resizes}{of}").as_bytes());
            }
        }
        key
    }

    /// What the keys of all entries begin with that an owner has in the lock at `lock`, once the first of them was made
    /// at `created`. No name of a lock has such braces.
    pub(crate) fn inside(lock: &[u8], created: i64) -> Vec<u8> {
        let name = lock.strip_suffix(b"/").unwrap_or(lock);
        [name, format!("{{}}{created:x}/").as_bytes()].concat()
    }

    /// What the keys of all histories begin with.
    pub(crate) fn histories(&self) -> Vec<u8> {
        format!("{}{{}}history/", self.prefix).into_bytes()
    }

    /// What the keys of a lock's history begin with: apart from all locks, so that who lists those does not read it.
    pub(crate) fn history_key(&self, key: &Key) -> Vec<u8> {
        let lock = self.lock(key);
        [&self.histories(), &lock[self.prefix.len()..]].concat()
    }

    /// What the keys of all ticks begin with, of locks whose names begin with `start`.
    pub(crate) fn all_ticks(&self, start: &str) -> Vec<u8> {
        let lock = self.all(start);
        [self.prefix.as_bytes(), TICKS, &lock[self.prefix.len()..]].concat()
    }

    /// What the keys of a lock's ticks begin with.
    pub(crate) fn ticks_of(&self, key: &Key) -> Vec<u8> {
        let mut ticks = self.all_ticks(key.as_str());
        ticks.push(b'/');
        ticks
    }

    /// The key of the note of a tick.
    pub(crate) fn tick_key(&self, key: &Key, tick: &Tick) -> Vec<u8> {
        let mut note = self.ticks_of(key);
        // In hex: a name may have any text. No key of a lock ends like this.
        note.push(b't');
        tick.to_string().bytes().for_each(|byte| note.extend_from_slice(format!("{byte:02x}").as_bytes()));
        note
    }

    /// The lock's name, given the key of one of its ticks.
    pub(crate) fn lock_with_tick(&self, key: &[u8]) -> Option<Key> {
        let name = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(TICKS)?;
        let (name, _) = std::str::from_utf8(name).ok()?.rsplit_once('/')?;
        Key::new(if self.verbatim { name.to_owned() } else { unescape(name) }).ok()
    }

    /// Returns the mode in which `key` uses the lock at `lock`. Keys of other clients, and of locks below it, are
    /// exclusive.
    pub(crate) fn mode(lock: &[u8], key: &[u8]) -> Mode {
        let tail = key.strip_prefix(lock).and_then(|tail| std::str::from_utf8(tail).ok()).unwrap_or_default();
        parse_tail(tail).unwrap_or_default()
    }

    /// Returns the mode as the claim of `key` asks for it.
    pub(crate) fn asked(lock: &[u8], key: &[u8]) -> AskedMode {
        let mode = Names::mode(lock, key);
        let resizes = matches!(mode, Mode::Slot { of } if key.ends_with(format!("-{SLOT}{RESIZES}{of}").as_bytes()));
        AskedMode { mode, resizes }
    }

    /// Takes a key apart; `None` when no locker makes such keys.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Place> {
        let text = std::str::from_utf8(key).ok()?.strip_prefix(self.prefix.as_str())?;
        let (name, tail) = text.rsplit_once('/')?;
        let is_ours = parse_tail(tail).is_some();
        (is_ours || is_hex(tail, 16)).then_some(())?;
        let name = if self.verbatim { name.to_owned() } else { unescape(name) };
        Some(Place { key: Key::new(name).ok()?, is_ours })
    }
}

/// What is behind a lock's name in a key of ours; `None` when it is not ours.
fn parse_tail(tail: &str) -> Option<Mode> {
    let mut parts = tail.splitn(3, '-');
    let is_place = is_hex(parts.next()?, 16) && is_hex(parts.next()?, 8);
    is_place.then_some(())?;
    match parts.next() {
        None => Some(Mode::Exclusive),
        Some(SHARED) => Some(Mode::Shared),
        Some(ENTRY) => Some(Mode::Reentrant),
        Some(other) => {
            let of = other.strip_prefix(SLOT)?.parse().ok()?;
            let mode = Mode::Slot { of };
            mode.check().is_ok().then_some(mode)
        }
    }
}

fn is_hex(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The first key behind all that begin with `prefix`; empty, which means all keys, for an empty prefix.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// Only what [`Names::all`] writes is an escape: a foreign name with another percent sign stays as it is.
fn unescape(name: &str) -> String {
    name.replace("%2F", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str, verbatim: bool) -> Names {
        Names { prefix: prefix.into(), verbatim }
    }

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn a_key_is_prefix_name_lease_and_number() {
        let lock = names("locks/", false).lock(&key("a/b"));
        assert_eq!(lock, b"locks/a%2Fb/");
        let place = Names::place(&lock, 0x1f, 10, Mode::Exclusive.into());
        assert_eq!(place, b"locks/a%2Fb/1f-a");
        assert_eq!(names("locks/", false).parse(&place), Some(Place { key: key("a/b"), is_ours: true }));
        assert_eq!(names("", true).lock(&key("a/b")), b"a/b/");
    }

    #[test]
    fn every_name_comes_back_and_no_two_share_a_place() {
        let all = ["a", "a/b", "a%2Fb", "a%252Fb", "%", "/", "//", "%25", "ä/日本", "%2F%25/%"];
        let mut seen = std::collections::HashSet::new();
        for name in all {
            let lock = names("p", false).lock(&key(name));
            let place = Names::place(&lock, 7, 0, Mode::Exclusive.into());
            assert_eq!(names("p", false).parse(&place).unwrap().key, key(name), "{name}");
            assert!(seen.insert(lock));
        }
    }

    #[test]
    fn a_key_tells_its_mode() {
        let names = names("", false);
        let lock = names.lock(&key("a"));
        for (mode, text) in [
            (Mode::Exclusive, "a/2a-1"),
            (Mode::Shared, "a/2a-1-shared"),
            (Mode::Reentrant, "a/2a-1-entry"),
            (Mode::Slot { of: 3 }, "a/2a-1-slot3"),
        ] {
            let place = Names::place(&lock, 0x2a, 1, mode.into());
            assert_eq!(place, text.as_bytes());
            assert_eq!(Names::asked(&lock, &place), mode.into());
            assert_eq!(names.parse(&place), Some(Place { key: key("a"), is_ours: true }));
        }
        for of in [3, 10, 1024] {
            let asked = AskedMode { mode: Mode::Slot { of }, resizes: true };
            let place = Names::place(&lock, 0x2a, 1, asked);
            assert_eq!(place, format!("a/2a-1-slot0{of}").as_bytes(), "as older clients read it");
            assert_eq!(Names::asked(&lock, &place), asked);
        }
        let inside = [Names::inside(&lock, 0x1f), b"000102030405060708090a0b0c0d0e0f".to_vec()].concat();
        assert_eq!(inside, b"a{}1f/000102030405060708090a0b0c0d0e0f");
        assert_eq!(names.parse(&inside), None, "an entry is no lock");
        let noted = [names.history_key(&key("a/b")), b"0000018bcfe56800.0001.0a".to_vec()].concat();
        assert_eq!(noted, b"{}history/a%2Fb/0000018bcfe56800.0001.0a");
        assert_eq!(names.parse(&noted), None, "nor is its history");
        for tick in [Tick::named("a/b").unwrap(), Tick::named("a").unwrap()] {
            let noted = names.tick_key(&key("a/b"), &tick);
            assert!(noted.starts_with(b"{}ticks/a%2Fb/t"), "{noted:?}");
            assert_eq!((names.parse(&noted), names.lock_with_tick(&noted)), (None, Some(key("a/b"))));
        }
        for other in ["a/2a", "a/readme", "a/b/2a-1-shared", "a/2a-1-shared-x", "a/2a-1-slot0", "a/2a-1-slot9999"] {
            assert_eq!(Names::mode(&lock, other.as_bytes()), Mode::Exclusive, "{other}");
        }
    }

    #[test]
    fn go_keys_are_known_and_strangers_are_not() {
        let names = names("", true);
        assert_eq!(names.parse(b"a/b/694d7c3b5a9f1c02"), Some(Place { key: key("a/b"), is_ours: false }));
        for other in
            ["config", "a/readme", "a/12-xyz", "a/12-", "a/12-123456789", "a/-1", "a/", "/12", "a/11112222333344445"]
        {
            assert_eq!(names.parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_of_it() {
        assert_eq!(end_of(b"a/"), b"a0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b""), b"\0");
    }

    #[test]
    fn fuzz_every_name_comes_back_and_no_queue_is_inside_another() {
        distlock_testkit::fuzz("names.txt", |input| {
            let text = String::from_utf8_lossy(input);
            let mut lines = text.split('\n');
            let escaped = names(lines.next().unwrap_or_default(), false);
            let keys: std::collections::BTreeSet<Key> = lines.filter_map(|line| Key::new(line).ok()).collect();
            let mut seen: Vec<Vec<u8>> = Vec::new();
            for key in keys {
                let lock = escaped.lock(&key);
                for mode in [Mode::Exclusive, Mode::Shared, Mode::Reentrant, Mode::Slot { of: 3 }] {
                    let place = Names::place(&lock, i64::MAX, u32::MAX, mode.into());
                    assert_eq!(escaped.parse(&place), Some(Place { key: key.clone(), is_ours: true }));
                    assert_eq!(Names::mode(&lock, &place), mode);
                }
                assert!(seen.iter().all(|other| !lock.starts_with(other) && !other.starts_with(&lock)), "{key:?}");
                seen.push(lock);
            }
        });
    }

    #[test]
    fn fuzz_keys_of_strangers() {
        distlock_testkit::fuzz("etcd_keys.txt", |input| {
            for verbatim in [false, true] {
                let place = names("locks/", verbatim).parse(input);
                distlock_testkit::assert_in_proportion(input, &place);
                // A verbatim name is the key without its end.
                assert!(
                    !verbatim || place.is_none_or(|place| input.starts_with(&names("locks/", true).lock(&place.key)))
                );
            }
            let end = end_of(input);
            assert!(end == [0] || end.as_slice() > input);
            let _ = Names::mode(b"locks/a/", input);
        });
    }
}
