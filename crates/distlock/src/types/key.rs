//! The name of a lock.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::types::error::{Error, Result};

/// The longest name in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// The name of a lock: 1 to 512 bytes of text that every engine can store as it is.
///
/// Refused are control characters and stray braces. Braces mean something to Redis Cluster, so a name has none, or one
/// non-empty tag: `user:{42}:mail`. Any other bytes become a name through [`Key::escape`].
///
/// ```
/// use distlock::Key;
///
/// assert_eq!(Key::new("invoice:42")?.as_str(), "invoice:42");
/// assert!(Key::new("two\nlines").is_err());
///
/// let odd = Key::escape(b"two\nlines \xff {}")?;
/// assert_eq!(odd.as_str(), "two%0Alines %FF %7B%7D");
/// assert_eq!(odd.unescape(), b"two\nlines \xff {}");
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Takes `name` as it is.
    ///
    /// # Errors
    /// Kind `InvalidInput`, saying what is wrong with it.
    pub fn new(name: impl AsRef<str>) -> Result<Key> {
        let name = name.as_ref();
        match fault_of(name) {
            None => Ok(Key(name.into())),
            Some(fault) => Err(refuse(fault)),
        }
    }

    /// Makes a name of any bytes: control characters, braces, `%` and bytes that are not UTF-8 become `%XX`.
    ///
    /// Different bytes give different names, and [`Key::unescape`] returns the bytes.
    ///
    /// # Errors
    /// Kind `InvalidInput` when `bytes` is empty or its escaped form is longer than 512 bytes.
    pub fn escape(bytes: impl AsRef<[u8]>) -> Result<Key> {
        let mut name = String::new();
        for chunk in bytes.as_ref().utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() || matches!(c, '%' | '{' | '}') {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_escaped(&mut name, byte));
                } else {
                    name.push(c);
                }
            }
            chunk.invalid().iter().for_each(|byte| push_escaped(&mut name, *byte));
        }
        Key::new(name)
    }

    /// Returns the bytes that [`Key::escape`] was given. Text that is not an escape stays as it is.
    #[must_use]
    pub fn unescape(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len());
        let mut rest = self.0.as_bytes();
        while let [first, tail @ ..] = rest {
            let escaped = if *first == b'%' { tail.first_chunk().and_then(hex_byte) } else { None };
            bytes.push(escaped.unwrap_or(*first));
            rest = if escaped.is_some() { &tail[2..] } else { tail };
        }
        bytes
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn push_escaped(name: &mut String, byte: u8) {
    use fmt::Write;
    // Writing to a String cannot fail.
    let _ = write!(name, "%{byte:02X}");
}

fn hex_byte(digits: &[u8; 2]) -> Option<u8> {
    let digit = |d: u8| char::from(d).to_digit(16);
    u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()
}

fn refuse(fault: impl fmt::Display) -> Error {
    Error::invalid("key", fault).with_help("Key::escape makes a name of any bytes")
}

fn fault_of(name: &str) -> Option<String> {
    // Most names are short and plain: seen in one pass over their bytes.
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'{' && byte != b'}';
    if (1..=MAX_KEY_BYTES).contains(&name.len()) && name.bytes().all(is_plain) {
        return None;
    }
    if name.is_empty() {
        return Some("the name is empty".into());
    }
    if name.len() > MAX_KEY_BYTES {
        return Some(format!("the name has {} bytes, at most {MAX_KEY_BYTES} are allowed", name.len()));
    }
    if let Some(at) = name.find(char::is_control) {
        return Some(format!("the name {name:?} has a control character at byte {at}"));
    }
    if !braces_are_one_tag(name) {
        return Some(format!("the name {name:?} has braces that are not one {{tag}}"));
    }
    None
}

/// Redis Cluster hashes what stands between the first `{` and the next `}`, if that is not empty.
fn braces_are_one_tag(name: &str) -> bool {
    match (name.find('{'), name.find('}')) {
        (None, None) => true,
        (Some(open), Some(close)) => {
            open + 1 < close && !name[open + 1..].contains('{') && !name[close + 1..].contains('}')
        }
        _ => false,
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

impl FromStr for Key {
    type Err = Error;
    fn from_str(name: &str) -> Result<Key> {
        Key::new(name)
    }
}

impl TryFrom<&str> for Key {
    type Error = Error;
    fn try_from(name: &str) -> Result<Key> {
        Key::new(name)
    }
}

impl TryFrom<&String> for Key {
    type Error = Error;
    fn try_from(name: &String) -> Result<Key> {
        Key::new(name)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;
    fn try_from(name: String) -> Result<Key> {
        Key::new(name)
    }
}

impl TryFrom<&[u8]> for Key {
    type Error = Error;
    fn try_from(name: &[u8]) -> Result<Key> {
        match std::str::from_utf8(name) {
            Ok(name) => Key::new(name),
            Err(error) => Err(refuse(format_args!("the name is not UTF-8 at byte {}", error.valid_up_to()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::ErrorKind;

    #[test]
    fn bad_names_are_refused_with_the_reason() {
        let long = "x".repeat(513);
        let cases: [(&[u8], &str); 9] = [
            (b"", "empty"),
            (long.as_bytes(), "513 bytes"),
            (b"a\0b", "control character at byte 1"),
            (b"a\nb", "control character"),
            (b"{}", "braces"),
            (b"a}b{", "braces"),
            (b"{a}{b}", "braces"),
            (b"{a", "braces"),
            (b"a\xffb", "not UTF-8 at byte 1"),
        ];
        for (name, reason) in cases {
            let error = Key::try_from(name).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
            let text = error.to_string();
            assert!(text.starts_with("key: ") && text.contains(reason), "{text}");
        }
    }

    #[test]
    fn ordinary_and_odd_names_are_taken_as_they_are() {
        for name in ["a", "invoice:42", "a/b c", "日本語", "user:{42}:mail", "100%", &"x".repeat(512)] {
            assert_eq!(Key::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn every_byte_pair_survives_escaping_and_no_two_collide() {
        let mut seen = std::collections::HashSet::new();
        for pair in 0..=u16::MAX {
            let bytes = pair.to_be_bytes();
            let key = Key::escape(bytes).unwrap();
            assert_eq!(key.unescape(), bytes);
            assert!(seen.insert(key));
        }
    }

    #[test]
    fn escaping_does_not_lift_the_limits() {
        assert!(Key::escape("").is_err());
        assert!(Key::escape([0xff; 171]).is_err(), "171 bytes become 513");
        assert!(Key::escape([0xff; 170]).is_ok());
    }

    #[test]
    fn fuzz_any_bytes_become_a_name_and_come_back() {
        distlock_testkit::fuzz("names.txt", |input| {
            if let Ok(key) = Key::escape(input) {
                assert_eq!(key.unescape(), input);
                assert_eq!(Key::new(key.as_str()).expect("it is a name"), key);
            }
            let text = String::from_utf8_lossy(input);
            if let Ok(key) = Key::new(&*text) {
                assert_eq!(key.as_str(), text);
            }
        });
    }
}
