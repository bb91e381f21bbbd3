//! The log of the test process.

use std::sync::OnceLock;

use crate::log_kit::Log;

/// Returns the log of the process, from the first call on: all its tests write to it.
pub(crate) fn begin() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    let begin = || {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
        subscriber.with_writer(move || writer.clone()).init();
        log
    };
    LOG.get_or_init(begin).clone()
}

/// Returns the lines that contain `words`.
pub(crate) fn lines(log: &Log, words: &str) -> Vec<String> {
    log.text().lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
}
