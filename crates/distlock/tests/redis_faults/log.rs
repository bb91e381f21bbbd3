//! What the library said, wherever in this process.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Everything that was logged since it was first asked for.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The log of the process: all its tests write to it.
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

    /// The lines in which `words` stand.
    pub(crate) fn lines(&self, words: &str) -> Vec<String> {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8_lossy(&text).lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
