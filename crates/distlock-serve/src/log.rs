//! What the daemon logs, each line with the client it is about.

use std::fmt;
use std::sync::Arc;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The client: its address, or its process id.
    pub client: String,
    /// The lock, if the line is about one.
    pub lock: Option<String>,
    /// What happened.
    pub message: String,
}

/// The receiver of log lines.
pub type LogSink = Arc<dyn Fn(&LogLine) + Send + Sync>;

/// The log.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) sink: LogSink,
    pub(crate) is_verbose: bool,
}

impl Log {
    /// Logs what an operator should know.
    pub(crate) fn say(&self, client: &impl fmt::Display, lock: Option<&distlock::Key>, message: impl Into<String>) {
        let line = LogLine { client: client.to_string(), lock: lock.map(ToString::to_string), message: message.into() };
        (self.sink)(&line);
    }

    /// Logs what happens all the time, if that is wanted.
    pub(crate) fn detail(&self, client: &impl fmt::Display, lock: Option<&distlock::Key>, message: &str) {
        if self.is_verbose {
            self.say(client, lock, message);
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("is_verbose", &self.is_verbose).finish_non_exhaustive()
    }
}
