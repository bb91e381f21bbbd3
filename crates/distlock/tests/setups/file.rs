//! The file engine, for the conformance suite.

use std::path::PathBuf;

use distlock::AttemptId;
use distlock::backend::Backend;
use distlock::backend::file::FileBackend;
use distlock_testkit::Setup;

/// The file engine in its own directory.
pub(crate) struct FileSetup {
    dir: PathBuf,
}

impl Setup for FileSetup {
    type Engine = FileBackend;

    async fn start() -> Self {
        FileSetup { dir: std::env::temp_dir().join(format!("distlock-conformance-{}", AttemptId::random())) }
    }

    async fn client(&self) -> FileBackend {
        FileBackend::in_dir(&self.dir).expect("a directory")
    }

    /// The lock files stay, because they contain the counters; holders, waiters and queues do not.
    async fn leftovers(&self) -> Vec<String> {
        let locks = self.client().await.list("").await.expect("listed");
        let queues = std::fs::read_dir(&self.dir).expect("the directory").map(|entry| entry.expect("an entry").path());
        let queues = queues.filter(|path| path.extension().is_some_and(|extension| extension == "q"));
        locks.iter().map(|lock| format!("{lock:?}")).chain(queues.map(|path| path.display().to_string())).collect()
    }
}

impl Drop for FileSetup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
