//! The token that `acquire` prints and that `renew` and `release` require.

use std::fmt;
use std::str::FromStr;

use distlock::{AttemptId, FencingToken};

/// How many of the secret's digits form the socket's name. Only the holder and its caller know the other digits.
const PUBLIC_DIGITS: usize = 16;

/// Finds and authenticates a hold: `<fencing token>.<128 random bits in hex>`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HoldToken {
    /// The fencing token for the protected resource.
    pub fencing: FencingToken,
    secret: AttemptId,
}

impl HoldToken {
    /// Creates a token for a new hold.
    #[must_use]
    pub fn new(fencing: FencingToken) -> HoldToken {
        HoldToken { fencing, secret: AttemptId::random() }
    }

    /// Returns the name of the holder's socket. A directory listing does not reveal the token.
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
    /// Prints the token without its secret.
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
    fn a_token_parses_to_what_was_printed() {
        let token = HoldToken::new(FencingToken::new(7));
        let word = token.to_string();
        assert!(word.starts_with("7.") && word.len() == 2 + 32, "{word}");
        assert_eq!(word.parse::<HoldToken>().unwrap(), token);
        assert_ne!(HoldToken::new(FencingToken::new(7)), token);
    }

    #[test]
    fn socket_name_and_debug_output_do_not_reveal_the_secret() {
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
