//! Every case of the conformance suite on every set-up.

#[cfg(feature = "redis")]
#[path = "setups/redis.rs"]
mod redis_setups;

use std::path::PathBuf;

use distlock::AttemptId;
use distlock::backend::Backend;
use distlock::backend::file::FileBackend;
use distlock_testkit::{MemorySetup, Setup};

distlock_testkit::conformance! {
    memory: MemorySetup,
    file: FileSetup,
}

/// The file engine in a directory of its own.
struct FileSetup {
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

    /// The files of locks stay, for the counters in them; holders, waiters and queues do not.
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

#[cfg(feature = "redis")]
distlock_testkit::conformance! {
    redis: redis_setups::Server<redis_setups::Plain>,
    redis_resp2: redis_setups::Server<redis_setups::Resp2>,
    redis_prefix: redis_setups::Server<redis_setups::Prefix>,
    redis_acl: redis_setups::Server<redis_setups::Acl>,
    redis_no_channel: redis_setups::Server<redis_setups::NoChannel>,
}
