//! Why a server does not start.

use std::fmt;

/// Why a server does not start.
#[derive(Debug)]
pub struct Refused(String);

impl Refused {
    /// Returns the refusal with its reason, for the user.
    pub fn new(message: impl Into<String>) -> Refused {
        Refused(message.into())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}
