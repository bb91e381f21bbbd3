//! The keys of one lock.

use crate::types::error::{Error, Result};
use crate::types::key::Key;

/// The lock's own key and its companions, all in one slot of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engines) struct Names {
    pub(in crate::engines) lock: String,
}

/// What the companions end in.
const SUFFIXES: [&str; 5] = [QUEUE_SUFFIX, ":w", FENCE_SUFFIX, ":h", ":e"];
/// What the key of a lock's queue ends in.
pub(in crate::engines) const QUEUE_SUFFIX: &str = ":q";
/// What the key of a fence ends in.
pub(in crate::engines) const FENCE_SUFFIX: &str = ":f";
/// What the restart guard's key ends in.
const CANARY_SUFFIX: &str = ":g";
/// What the key of a lock's history ends in.
pub(in crate::engines) const HISTORY_SUFFIX: &str = ":j";
/// What the key of a lock's ticks ends in.
const TICKS_SUFFIX: &str = ":t";

/// Behind a name that is a tag and nothing else. No name has it: braces that are not one tag are refused.
const NO_MORE: &str = "{}";

/// The key of the restart guard for all locks behind a prefix.
pub(in crate::engines) fn canary(prefix: &str) -> String {
    format!("{{{prefix}distlock}}{CANARY_SUFFIX}")
}

/// Which key is the fence of a lock, where its last token is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engines) enum Fences {
    /// One for each lock, in its hash slot of a cluster.
    OfLock,
    /// One for all locks behind a prefix: this key.
    OfPrefix(String),
}

impl Fences {
    /// Returns one fence for all locks behind `prefix`.
    pub(in crate::engines) fn of_prefix(prefix: &str) -> Fences {
        Fences::OfPrefix(format!("{{{prefix}distlock}}{FENCE_SUFFIX}"))
    }
}

impl Names {
    /// The lock's key is its name behind the prefix and nothing else: that is where other libraries look, too.
    pub(in crate::engines) fn new(prefix: &str, key: &Key) -> Result<Names> {
        let mut lock = String::with_capacity(prefix.len() + key.as_str().len());
        lock.push_str(prefix);
        lock.push_str(key.as_str());
        if !may_be_lock(&lock) {
            return Err(Error::invalid(
                "key",
                "a name with a {tag} must not end in :q, :w, :f, :h, :e, :g, :j or :t here",
            )
            .with_help("these are keys beside another lock"));
        }
        Ok(Names { lock })
    }

    /// How many keys there are.
    pub(in crate::engines) const KEYS: usize = 1 + SUFFIXES.len();

    /// Adds how many keys a script gets, and the keys.
    pub(in crate::engines) fn fill(&self, command: &mut redis::Cmd, fences: &Fences) {
        command.arg(Names::KEYS);
        self.keys(command, fences);
    }

    /// Adds the keys.
    pub(in crate::engines) fn keys(&self, command: &mut redis::Cmd, fences: &Fences) {
        command.arg(&self.lock);
        let mut key = self.companion("");
        let stem = key.len();
        for suffix in SUFFIXES {
            match fences {
                Fences::OfPrefix(fence) if suffix == FENCE_SUFFIX => command.arg(fence),
                _ => {
                    key.truncate(stem);
                    key.push_str(suffix);
                    command.arg(&key)
                }
            };
        }
    }

    pub(in crate::engines) fn queue(&self) -> String {
        self.companion(":q")
    }

    pub(in crate::engines) fn waiters(&self) -> String {
        self.companion(":w")
    }

    /// The lock's own fence, which names its channel in a cluster.
    pub(in crate::engines) fn fence(&self) -> String {
        self.companion(FENCE_SUFFIX)
    }

    /// Who is inside, when several are.
    pub(in crate::engines) fn holders(&self) -> String {
        self.companion(":h")
    }

    /// When their leases end.
    pub(in crate::engines) fn leases(&self) -> String {
        self.companion(":e")
    }

    /// What has happened to the lock.
    pub(in crate::engines) fn history(&self) -> String {
        self.companion(HISTORY_SUFFIX)
    }

    /// The notes of its ticks.
    pub(in crate::engines) fn ticks(&self) -> String {
        self.companion(TICKS_SUFFIX)
    }

    fn companion(&self, suffix: &str) -> String {
        let mut key = String::with_capacity(self.lock.len() + 4);
        push_stem(&mut key, &self.lock);
        key.push_str(suffix);
        key
    }

    /// The lock's name, given the key of the lock or of its queue.
    pub(in crate::engines) fn lock_of(prefix: &str, stored: &str) -> Option<Key> {
        let lock = lock_beside(stored, QUEUE_SUFFIX).unwrap_or(stored);
        Key::new(lock.strip_prefix(prefix)?).ok()
    }

    /// The lock's name, given the key of its ticks.
    pub(in crate::engines) fn lock_with_ticks(prefix: &str, stored: &[u8]) -> Option<Key> {
        let lock = lock_beside(std::str::from_utf8(stored).ok()?, TICKS_SUFFIX)?;
        Key::new(lock.strip_prefix(prefix)?).ok()
    }
}

/// Returns the lock's key, given that of the companion with this suffix.
fn lock_beside<'a>(stored: &'a str, suffix: &str) -> Option<&'a str> {
    match stored.strip_suffix(suffix)? {
        stem if is_all_tag(stem) => Some(&stem[1..stem.len() - 1]),
        stem if stem.contains('{') => Some(stem.strip_suffix(NO_MORE).unwrap_or(stem)),
        _ => None,
    }
}

/// Returns whether a lock may have this key: it is not that of a companion.
pub(in crate::engines) fn may_be_lock(lock: &str) -> bool {
    let suffixes = SUFFIXES.iter().chain(&[CANARY_SUFFIX, HISTORY_SUFFIX, TICKS_SUFFIX]);
    !lock.contains('{') || !suffixes.into_iter().any(|suffix| lock.ends_with(suffix))
}

/// Adds the key of a companion to a text that begins with the lock's key, which ends at `lock_end`.
pub(in crate::engines) fn push_companion(text: &mut String, lock_end: usize, suffix: &str) {
    match text[..lock_end].contains('{') {
        // Without a second text for the key: this is done for every claim.
        false => {
            text.push('{');
            text.extend_from_within(..lock_end);
            text.push('}');
        }
        true => {
            let lock = text[..lock_end].to_owned();
            push_stem(text, &lock);
        }
    }
    text.push_str(suffix);
}

/// Adds what the companions of a lock begin with.
fn push_stem(key: &mut String, lock: &str) {
    if !lock.contains('{') {
        key.extend(["{", lock, "}"]);
    } else if is_all_tag(lock) {
        // As it is, it would be the companion of the lock that has the name between the braces.
        key.extend([lock, NO_MORE]);
    } else {
        key.push_str(lock);
    }
}

/// Whether it is one tag and nothing else.
fn is_all_tag(text: &str) -> bool {
    let tag = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    tag.is_some_and(|tag| !tag.contains(['{', '}']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::shared::settings::check_prefix;
    use crate::types::error::ErrorKind;

    fn names(prefix: &str, key: &str) -> Names {
        Names::new(prefix, &Key::new(key).unwrap()).unwrap()
    }

    /// What Redis Cluster hashes of a key.
    fn hashed(key: &str) -> &str {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
        tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
    }

    #[test]
    fn companions_share_the_slot_of_the_lock() {
        let keys = ["a", "invoice:42", "a b", "user:{42}:mail", "{x}", "%7B", "a:q", "日本語"];
        for (prefix, key) in ["", "app:"].into_iter().flat_map(|prefix| keys.map(|key| (prefix, key))) {
            let names = names(prefix, key);
            let lock = format!("{prefix}{key}");
            assert_eq!(names.lock, lock, "verbatim");
            let companions = [names.queue(), names.waiters(), names.fence(), names.holders(), names.leases()];
            for companion in companions.iter().chain(&[names.history(), names.ticks()]) {
                assert_eq!(hashed(companion), hashed(&lock), "{companion} and {lock}");
            }
            let keys_with = |fences: &Fences| {
                let mut command = redis::cmd("EVALSHA");
                names.keys(&mut command, fences);
                let keys = command.args_iter().skip(1).map(|arg| match arg {
                    redis::Arg::Simple(key) => String::from_utf8(key.to_vec()).unwrap(),
                    other => panic!("{other:?}"),
                });
                keys.collect::<Vec<_>>()
            };
            let mut keys: Vec<_> = std::iter::once(lock).chain(companions).collect();
            assert_eq!(keys_with(&Fences::OfLock), keys, "in this order");
            let mut text = keys[0].clone();
            push_companion(&mut text, keys[0].len(), QUEUE_SUFFIX);
            assert_eq!(text, [keys[0].as_str(), &keys[1]].concat());
            keys[3] = format!("{{{prefix}distlock}}:f");
            assert_eq!(keys_with(&Fences::of_prefix(prefix)), keys, "with the fence of the prefix");
        }
    }

    #[test]
    fn a_name_is_found_again_from_the_keys() {
        for key in ["a", "invoice:42", "user:{42}:mail", "{x}", "a:q"] {
            let names = names("app:", key);
            for stored in [&names.lock, &names.queue()] {
                assert_eq!(Names::lock_of("app:", stored).unwrap().as_str(), key, "{stored}");
                assert_eq!(Names::lock_with_ticks("app:", stored.as_bytes()), None);
            }
            assert_eq!(Names::lock_with_ticks("app:", names.ticks().as_bytes()).unwrap().as_str(), key);
        }
        assert_eq!(Names::lock_of("app:", "other:a"), None);
    }

    #[test]
    fn a_name_in_braces_is_another_lock_than_the_name_alone() {
        let (alone, in_braces) = (names("", "x"), names("", "{x}"));
        assert_eq!([alone.queue(), in_braces.queue()], ["{x}:q", "{x}{}:q"]);
        assert_eq!(Names::lock_of("", "{x}{}:q").unwrap().as_str(), "{x}");
    }

    #[test]
    fn names_that_are_another_locks_queue_are_refused() {
        for key in ["{foo}:q", "{foo}:w", "{distlock}:f", "{foo}:h", "{foo}:e", "{foo}:j", "{foo}:t", &canary("")] {
            let error = Names::new("", &Key::new(key).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{key}");
        }
    }

    #[test]
    fn fuzz_every_name_is_found_again_and_no_two_locks_share_a_key() {
        let all = |names: &Names| {
            let companions = [names.queue(), names.waiters(), names.fence(), names.holders(), names.leases()];
            let more = [names.history(), names.ticks()];
            std::iter::once(names.lock.clone()).chain(companions).chain(more).collect::<Vec<_>>()
        };
        distlock_testkit::fuzz("names.txt", |input| {
            let text = String::from_utf8_lossy(input);
            let mut lines = text.split('\n');
            let Some(prefix) = lines.next().filter(|prefix| check_prefix(prefix).is_ok()) else { return };
            let locks = lines.filter_map(|line| Key::new(line).ok()).collect::<std::collections::BTreeSet<_>>();
            let mut seen = vec![canary(prefix)];
            for key in locks {
                let Ok(names) = Names::new(prefix, &key) else { continue };
                for stored in [&names.lock, &names.queue()] {
                    assert_eq!(Names::lock_of(prefix, stored), Some(key.clone()), "{stored}");
                }
                assert_eq!(Names::lock_with_ticks(prefix, names.ticks().as_bytes()), Some(key.clone()));
                let keys = all(&names);
                assert!(keys.iter().all(|key| hashed(key) == hashed(&names.lock) && !seen.contains(key)), "{keys:?}");
                seen.extend(keys);
            }
            let _ = Names::lock_of(prefix, &text);
        });
    }
}
