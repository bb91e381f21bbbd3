//! Where a run takes place: the servers of an engine, and what can be done to them.

mod cluster;
mod etcd;
mod file;
mod redis;
mod sentinel;

use crate::engine::Engine;
use crate::fault::Fault;

/// The servers of an engine and the links to them.
pub(crate) trait Arena: Send {
    /// How a worker reaches them.
    fn url(&self, worker: usize) -> String;

    /// The network namespace that a worker belongs in, if not in ours; packets can be lost only if there is one.
    fn namespace(&self, _worker: usize) -> Option<String> {
        None
    }

    /// The server that a lock is on, where each lock is on one of several.
    fn server_of(&self, _lock: usize) -> Option<usize> {
        None
    }

    /// A fault begins.
    fn begin(&mut self, fault: Fault);

    /// A fault is over: everything is as it should be.
    fn end(&mut self, fault: Fault);

    /// What is left of locks; what must stay (a counter, say) is not counted.
    fn leftovers(&mut self) -> Vec<String>;
}

/// Starts the servers of `engine`.
pub(crate) fn of(engine: Engine) -> Box<dyn Arena> {
    match engine {
        Engine::Redis => Box::new(redis::Redis::alone()),
        Engine::Redlock => Box::new(redis::Redis::quorum()),
        Engine::Sentinel => Box::new(sentinel::Sentinel::start()),
        Engine::Cluster => Box::new(cluster::Cluster::start()),
        Engine::Etcd => Box::new(etcd::Etcd::start()),
        Engine::File => Box::new(file::File::start()),
    }
}
