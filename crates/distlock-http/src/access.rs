//! The access token.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use subtle::ConstantTimeEq;

use crate::refused::Refused;

/// The fewest characters of a token from a file.
const SHORTEST: usize = 20;
/// A longer text is not a token but the wrong file.
const LONGEST: usize = 512;

/// The secret that gives access to the server. Debug output hides it.
#[derive(Clone)]
pub struct AccessToken(String);

impl AccessToken {
    /// Creates a token of 256 random bits.
    ///
    /// # Panics
    /// When the system has no random bytes.
    #[must_use]
    pub fn random() -> AccessToken {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        AccessToken(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads the token from a file, without the white space around it.
    ///
    /// # Errors
    /// When the file cannot be read, when users other than its owner and group may read it, or when it contains no
    /// token: 20 to 512 characters of ASCII letters, digits and `-._~+/=`.
    pub fn from_file(path: &Path) -> Result<AccessToken, Refused> {
        let refuse = |problem: &dyn fmt::Display| Refused::new(format!("the token file {}: {problem}", path.display()));
        let file = File::open(path).map_err(|error| refuse(&error))?;
        let mode = file.metadata().map_err(|error| refuse(&error))?.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(refuse(&format_args!(
                "every user may read or write it (mode {:03o}); chmod 600",
                mode & 0o777
            )));
        }
        let mut text = String::new();
        file.take(LONGEST as u64 + 64).read_to_string(&mut text).map_err(|error| refuse(&error))?;
        AccessToken::parse(text.trim()).ok_or_else(|| {
            refuse(&format_args!("a token is {SHORTEST} to {LONGEST} ASCII letters, digits and -._~+/="))
        })
    }

    fn parse(text: &str) -> Option<AccessToken> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        let fits = (SHORTEST..=LONGEST).contains(&text.len()) && text.bytes().all(is_good);
        fits.then(|| AccessToken(text.to_owned()))
    }

    /// Returns whether the token is `word`, in constant time.
    #[must_use]
    pub fn is(&self, word: &str) -> bool {
        self.0.as_bytes().ct_eq(word.as_bytes()).into()
    }

    /// Returns the secret itself, to print it once for the user.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_are_long_and_debug_output_hides_them() {
        let (one, other) = (AccessToken::random(), AccessToken::random());
        assert!(one.is(one.reveal()) && !one.is(other.reveal()) && one.reveal().len() == 64);
        for wrong in ["", &one.reveal()[1..], &format!("{}0", one.reveal())] {
            assert!(!one.is(wrong), "{wrong}");
        }
        assert!(!format!("{one:?}").contains(one.reveal()));
    }

    #[test]
    fn wrong_and_malformed_tokens_are_refused() {
        for bad in ["", "short", "with a space in the middle", &"x".repeat(513), "line\nbreak-in-the-middle-of-it"] {
            assert!(AccessToken::parse(bad).is_none(), "{bad:?}");
        }
        assert!(AccessToken::parse("abcdefghij0123456789").is_some());
    }

    #[test]
    fn a_token_file_that_every_user_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("distlock-token-{}", std::process::id()));
        std::fs::write(&path, "abcdefghij0123456789\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            AccessToken::from_file(&path)
        };
        let refused = with_mode(0o644).unwrap_err().to_string();
        assert!(refused.contains("chmod 600") && !refused.contains("abcdefghij"), "{refused}");
        assert!(with_mode(0o600).unwrap().is("abcdefghij0123456789"));
        std::fs::remove_file(&path).unwrap();
    }
}
