//! The servers of an engine during a run, and the faults that can be injected into them.

mod cluster;
mod etcd;
mod file;
mod postgres;
mod redis;
mod sentinel;

use crate::engine::Engine;
use crate::fault::Fault;

/// The servers of an engine and the links to them.
pub(crate) trait Arena: Send {
    /// Returns the URL for a worker.
    fn url(&self, worker: usize) -> String;

    /// Returns the network namespace of a worker, if it has its own; packets can be lost only there.
    fn namespace(&self, _worker: usize) -> Option<String> {
        None
    }

    /// Returns the server of a lock, where each lock is on one of several servers.
    fn server_of(&self, _lock: usize) -> Option<usize> {
        None
    }

    /// Begins a fault.
    fn begin(&mut self, fault: Fault);

    /// Ends a fault and restores the normal state.
    fn end(&mut self, fault: Fault);

    /// Returns the remaining state of locks, except state that must stay, such as a counter.
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
        Engine::Postgres => Box::new(postgres::Postgres::start()),
    }
}
