//! The file name of a lock, from which the key can be read back.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

use crate::types::key::Key;

/// The suffix of a lock's file. All other suffixes differ, so that no key's file collides with another file.
pub(crate) const LOCK: &str = ".lock";
/// The suffix of a lock's queue of tickets.
pub(crate) const QUEUE: &str = ".q";
/// The suffix of a lock's anchor.
pub(crate) const ANCHOR: &str = ".held";
/// The suffix of a lock's history.
pub(crate) const HISTORY: &str = ".log";
/// The suffix of the notes of a lock's ticks.
pub(crate) const TICKS: &str = ".ticks";
/// The suffix of the directory of a lock's shared holders.
pub(crate) const SHARED_HOLDERS: &str = ".in";
/// The suffix of a directory with the rest of a long name.
const MORE: &str = ".d";

/// The longest piece of a name in one path component: with its suffix it stays below the 255 bytes of most file
/// systems.
const PIECE: usize = 200;

/// Returns the path of `key`'s lock file below the lock directory.
///
/// Letters, digits and `_ - : @ + = , .` stay, the rest becomes `%XX`; a name too long for one component continues
/// inside a directory. Unlike a hash, that cannot collide and can be read back.
pub(crate) fn path_of(key: &Key) -> PathBuf {
    let name = escape(key.as_str());
    let mut path = PathBuf::new();
    let mut rest = name;
    while rest.len() > PIECE {
        let mut tail = rest.split_off(rest.floor_char_boundary_at(PIECE));
        path.push(format!("{rest}{MORE}"));
        if tail.starts_with('.') {
            // No piece of a name is a hidden file, as the name itself is none.
            tail.replace_range(..1, "%2E");
        }
        rest = tail;
    }
    path.push(format!("{rest}{LOCK}"));
    path
}

/// Returns the key whose lock file is at `path` below the lock directory; `None` for any other file.
pub(crate) fn key_of(path: &Path) -> Option<Key> {
    let mut name = String::new();
    let mut components = path.components().peekable();
    while let Some(Component::Normal(component)) = components.next() {
        let ending = if components.peek().is_some() { MORE } else { LOCK };
        name.push_str(component.to_str()?.strip_suffix(ending)?);
    }
    let key = Key::new(unescape(&name)?).ok()?;
    // One key, one file: a name that `path_of` does not return is another program's.
    (path_of(&key) == path).then_some(key)
}

/// Whether a directory of this name may hold the rest of long names.
pub(crate) fn goes_on(directory: &OsStr) -> bool {
    directory.to_str().is_some_and(|name| name.ends_with(MORE))
}

fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        if c.is_alphanumeric() || "_-:@+=,".contains(c) || (c == '.' && at > 0) {
            escaped.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a String cannot fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

fn unescape(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

/// `str::floor_char_boundary` is newer than the Rust version that this crate supports.
trait FloorCharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl FloorCharBoundary for str {
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ordinary_names_stay_readable() {
        assert_eq!(path_of(&Key::new("invoice:42").unwrap()), Path::new("invoice:42.lock"));
        assert_eq!(path_of(&Key::new("../a b").unwrap()), Path::new("%2E.%2Fa%20b.lock"));
        assert_eq!(path_of(&Key::new("日本").unwrap()), Path::new("日本.lock"));
    }

    #[test]
    fn odd_and_long_names_are_read_back_and_never_share_a_file() {
        let long = ["x".repeat(512), "/".repeat(512), "é".repeat(256), format!("{}y", "x".repeat(511))];
        let odd = [".", "..", "/", "%", "%2F", "a%2Fb", "a/b", "a", "A", "a.lock", "a.q", "a.d", "x.d/y", "*?'\"$ ~"];
        let odd = odd.into_iter().map(String::from).chain(["{t}", "\u{202e}", "🔒"].map(String::from));
        let mut seen = HashSet::new();
        for name in odd.chain(long) {
            let key = Key::new(&name).unwrap();
            let path = path_of(&key);
            assert_eq!(key_of(&path), Some(key), "{name}");
            for component in &path {
                assert!(component.len() <= 255 && !component.to_str().unwrap().starts_with('.'), "{component:?}");
            }
            assert!(seen.insert(path), "{name}");
        }
    }

    #[test]
    fn a_file_we_would_not_have_written_is_no_lock() {
        for path in
            ["a", "a.q", "%2f.lock", "%.lock", "%FF.lock", ".lock", ".a.lock", "a.d/b.lock", "a/b.lock", "%41.lock"]
        {
            assert_eq!(key_of(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn fuzz_every_name_is_read_back_and_never_shares_a_file() {
        distlock_testkit::fuzz("names.txt", |input| {
            let text = String::from_utf8_lossy(input);
            let mut seen = HashSet::new();
            for key in text.split('\n').filter_map(|line| Key::new(line).ok()).collect::<HashSet<_>>() {
                let path = path_of(&key);
                for component in path.components() {
                    let Component::Normal(name) = component else { panic!("{path:?}") };
                    assert!(name.len() <= 255 && !name.to_str().expect("text").starts_with('.'), "{path:?}");
                }
                assert_eq!(key_of(&path), Some(key));
                assert!(seen.insert(path));
            }
        });
    }

    #[test]
    fn fuzz_paths_of_strangers() {
        use std::os::unix::ffi::OsStrExt;
        distlock_testkit::fuzz("file_paths.txt", |input| {
            let path = Path::new(OsStr::from_bytes(input));
            assert!(key_of(path).is_none_or(|key| path_of(&key) == path));
        });
    }
}
