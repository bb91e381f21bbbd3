//! A text that must not be printed.

use std::fmt;

/// A password: its `Debug` is `***`, it has no `Display`, and only [`Secret::expose`] returns it.
///
/// ```
/// use distlock::Secret;
///
/// let password = Secret::from("open sesame");
/// assert_eq!(format!("{password:?}"), "***");
/// assert_eq!(password.expose(), "open sesame");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the text itself, to send it to the server. Never log it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Secret(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
