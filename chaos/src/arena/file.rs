//! A directory of this machine.

use std::fs;
use std::path::PathBuf;

use distlock::backend::Backend;
use distlock::backend::file::FileBackend;
use distlock_testkit::servers::Directory;

use super::Arena;
use crate::fault::Fault;
use crate::worker::name;

/// The directory of the locks.
pub(crate) struct File(Directory);

impl File {
    pub(crate) fn start() -> File {
        File(Directory::new())
    }

    fn locks(&self) -> PathBuf {
        self.0.path().join("locks")
    }

    fn file_of(&self, lock: usize) -> PathBuf {
        self.locks().join(format!("{}.lock", name(lock)))
    }
}

impl Arena for File {
    fn url(&self, _worker: usize) -> String {
        format!("file://{}", self.locks().display())
    }

    fn begin(&mut self, fault: Fault) {
        // There is no file before the first lock is taken.
        let _ = match fault {
            Fault::RemoveFile { lock } => fs::remove_file(self.file_of(lock)),
            Fault::EmptyFile { lock } => {
                fs::File::options().write(true).truncate(true).open(self.file_of(lock)).map(drop)
            }
            other => unreachable!("{other:?} does not apply to files"),
        };
    }

    fn end(&mut self, _fault: Fault) {}

    fn leftovers(&mut self) -> Vec<String> {
        let engine = FileBackend::in_dir(self.locks()).expect("the directory of the locks");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let locks = runtime.block_on(engine.list("")).expect("locks can be listed");
        let entries = fs::read_dir(self.locks()).into_iter().flatten().flatten().map(|entry| entry.path());
        let queues = entries.filter(|path| path.extension().is_some_and(|extension| extension == "q"));
        locks.iter().map(|lock| format!("{lock:?}")).chain(queues.map(|path| path.display().to_string())).collect()
    }
}
