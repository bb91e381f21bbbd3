//! The word that `acquire` prints and that `renew` and `release` want back.

use std::fmt;
use std::str::FromStr;

use distlock::{AttemptId, FencingToken};

/// How many of the secret's digits name the holder's socket. The rest is what only the holder and its caller know.
const PUBLIC_DIGITS: usize = 16;

/// Finds and authenticates a hold: `<fencing token>.<128 random bits in hex>`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HoldToken {
    /// The number for the protected resource.
    pub fencing: FencingToken,
    secret: AttemptId,
}

impl HoldToken {
    /// A token for a new hold.
    #[must_use]
    pub fn new(fencing: FencingToken) -> HoldToken {
        HoldToken { fencing, secret: AttemptId::random() }
    }

    /// The name of the holder's socket. Whoever lists the directory does not learn the token from it.
    #[must_use]
    pub fn socket_name(&self) -> String {
        let mut digits = self.secret.to_string();
        digits.truncate(PUBLIC_DIGITS);
        digits
    }
}

impl fmt::Display for HoldToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.fencing, self.secret)
    }
}

impl fmt::Debug for HoldToken {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldToken({}.…)", self.fencing)
    }
}

impl FromStr for HoldToken {
    type Err = String;

    fn from_str(text: &str) -> Result<HoldToken, String> {
        let parsed = text.split_once('.').and_then(|(fencing, secret)| {
            Some(HoldToken { fencing: fencing.parse().ok()?, secret: secret.parse().ok()? })
        });
        // Not repeated in the message: it may be a secret with a letter missing.
        parsed.ok_or_else(|| "not a token that `distlock acquire` printed".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_that_can_be_read_back() {
        let token = HoldToken::new(FencingToken::new(7));
        let word = token.to_string();
        assert!(word.starts_with("7.") && word.len() == 2 + 32, "{word}");
        assert_eq!(word.parse::<HoldToken>().unwrap(), token);
        assert_ne!(HoldToken::new(FencingToken::new(7)), token);
    }

    #[test]
    fn neither_the_sockets_name_nor_debug_output_gives_the_secret_away() {
        let token = HoldToken::new(FencingToken::new(7));
        let secret = &token.to_string()[2 + PUBLIC_DIGITS..];
        assert!(!token.socket_name().contains(secret) && !format!("{token:?}").contains(secret));
        assert_eq!(token.socket_name().len(), PUBLIC_DIGITS);
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("7.{}0", "0".repeat(32));
        for text in ["", "7", "7.", ".", "x.y", "7.xyz", "../7", "-7.00000000000000000000000000000000", &long] {
            assert!(text.parse::<HoldToken>().is_err(), "{text}");
        }
    }
}
