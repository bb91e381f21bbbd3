//! Something that a rule found.

use std::fmt;

/// What a rule says about a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The file, from the workspace's root.
    pub(super) path: String,
    /// The line, from 1 on.
    pub(super) line: usize,
    /// The rule's short name, for exceptions.
    pub(super) rule: &'static str,
    /// What is wrong, and what would be right.
    pub(super) message: String,
}

impl Finding {
    /// A finding at a line.
    pub(super) fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Finding { path: path.into(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { path, line, rule, message } = self;
        write!(f, "{path}:{line}: {rule}: {message}")
    }
}
