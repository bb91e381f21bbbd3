//! Who is measured, and in which scenarios.

use std::path::PathBuf;

/// The program that runs a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    Python,
    JavaScript,
    Go,
}

/// Where the programs of the other languages are; `None` when they cannot be had.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// A Python interpreter that has the libraries.
    pub(crate) python: Option<PathBuf>,
    /// A directory with `node_modules`.
    pub(crate) node: Option<PathBuf>,
    /// The Go worker.
    pub(crate) go: Option<PathBuf>,
}

impl Programs {
    pub(crate) fn has(&self, language: Language) -> bool {
        match language {
            Language::Rust => true,
            Language::Python => self.python.is_some(),
            Language::JavaScript => self.node.is_some(),
            Language::Go => self.go.is_some(),
        }
    }
}

/// The servers of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Redis,
    Redlock,
    Etcd,
}

/// What the contestants do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// So many processes with so many tasks each take and release locks, each task its own.
    Own { tasks: usize },
    /// The same with one lock for all.
    Shared { processes: usize, tasks: usize },
    /// One process keeps locks.
    Held,
    /// The holder is killed, and another process waits.
    Killed,
}

/// A row of the plan.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) engine: Engine,
    pub(crate) load: Load,
    /// The names of the contestants as workers know them; a lower bound is first.
    pub(crate) contestants: &'static [&'static str],
}

pub(crate) const SCENARIOS: [Scenario; 14] = [
    Scenario { name: "redis/alone", engine: Engine::Redis, load: Load::Own { tasks: 1 }, contestants: ON_REDIS },
    Scenario { name: "redis/tasks", engine: Engine::Redis, load: Load::Own { tasks: 64 }, contestants: ON_REDIS },
    Scenario {
        name: "redis/contended",
        engine: Engine::Redis,
        load: Load::Shared { processes: 1, tasks: 64 },
        contestants: IN_A_QUEUE,
    },
    Scenario {
        name: "redis/processes",
        engine: Engine::Redis,
        load: Load::Shared { processes: 8, tasks: 1 },
        contestants: IN_A_QUEUE,
    },
    Scenario {
        name: "redis/held",
        engine: Engine::Redis,
        load: Load::Held,
        contestants: &["raw-redis", "distlock", "rslock", "distributed-lock", "python-redis-lock", "node-redlock"],
    },
    Scenario {
        name: "redis/killed",
        engine: Engine::Redis,
        load: Load::Killed,
        contestants: &["distlock", "rslock", "distributed-lock", "redis-py", "python-redis-lock", "node-redlock"],
    },
    Scenario { name: "redlock/alone", engine: Engine::Redlock, load: Load::Own { tasks: 1 }, contestants: ON_REDLOCK },
    Scenario { name: "redlock/tasks", engine: Engine::Redlock, load: Load::Own { tasks: 64 }, contestants: ON_REDLOCK },
    Scenario { name: "etcd/alone", engine: Engine::Etcd, load: Load::Own { tasks: 1 }, contestants: ON_ETCD },
    Scenario { name: "etcd/tasks", engine: Engine::Etcd, load: Load::Own { tasks: 64 }, contestants: ON_ETCD },
    Scenario {
        name: "etcd/contended",
        engine: Engine::Etcd,
        load: Load::Shared { processes: 1, tasks: 64 },
        contestants: &["etcd-queue", "distlock-etcd", "go-mutex"],
    },
    Scenario {
        name: "etcd/processes",
        engine: Engine::Etcd,
        load: Load::Shared { processes: 8, tasks: 1 },
        contestants: &["etcd-queue", "distlock-etcd", "go-mutex"],
    },
    Scenario { name: "etcd/held", engine: Engine::Etcd, load: Load::Held, contestants: &["distlock-etcd", "go-mutex"] },
    Scenario {
        name: "etcd/killed",
        engine: Engine::Etcd,
        load: Load::Killed,
        contestants: &["distlock-etcd", "go-mutex"],
    },
];

const ON_REDIS: &[&str] =
    &["raw-redis", "distlock", "rslock", "distributed-lock", "redis-py", "python-redis-lock", "node-redlock"];
const IN_A_QUEUE: &[&str] =
    &["raw-queue", "distlock", "rslock", "distributed-lock", "redis-py", "python-redis-lock", "node-redlock"];
const ON_REDLOCK: &[&str] = &["raw-redlock", "distlock-redlock", "rslock-redlock", "node-redlock"];
const ON_ETCD: &[&str] = &["raw-etcd", "distlock-etcd", "go-mutex"];

/// Returns the program of a contestant.
pub(crate) fn language(contestant: &str) -> Language {
    match contestant {
        "redis-py" | "python-redis-lock" => Language::Python,
        "node-redlock" => Language::JavaScript,
        "go-mutex" => Language::Go,
        _ => Language::Rust,
    }
}
