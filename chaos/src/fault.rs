//! The faults in processes, links and servers.

use std::fmt;
use std::time::Duration;

use distlock_testkit::netns::{Loss, Side};

use crate::engine::Engine;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A worker gets SIGKILL, and a new process replaces it.
    Kill {
        /// The worker.
        worker: usize,
    },
    /// A worker gets SIGSTOP, and SIGCONT after more than a lease.
    Pause {
        /// The worker.
        worker: usize,
    },
    /// The links from half of the workers to a server have trouble.
    Link {
        /// The server.
        server: usize,
        /// The half of the workers.
        side: usize,
        /// The kind of trouble.
        trouble: Trouble,
    },
    /// Packets between half of the workers and the servers are lost in the kernel, below TCP.
    Partition {
        /// How they are lost.
        how: Loss,
        /// The senders whose packets are lost.
        from: &'static [Side],
    },
    /// A server gets SIGSTOP, and SIGCONT later.
    Freeze {
        /// The server.
        server: usize,
    },
    /// A master of a cluster gets SIGSTOP, and SIGCONT later; the other masters run normally.
    HangMaster {
        /// The server.
        server: usize,
    },
    /// A server gets SIGKILL and is started again with its data.
    Restart {
        /// The server.
        server: usize,
    },
    /// A server gets SIGKILL and is started again without its data.
    Forget {
        /// The server.
        server: usize,
    },
    /// A server's data are deleted while it runs.
    Flush {
        /// The server.
        server: usize,
    },
    /// The wall clock of a server is set forward.
    ClockForward {
        /// The server.
        server: usize,
    },
    /// The wall clock of a server is set back.
    ClockBack {
        /// The server.
        server: usize,
        /// By how much.
        by: Duration,
    },
    /// The master or leader gets SIGKILL; it is restarted when another server has replaced it.
    KillLeader,
    /// The primary gets SIGKILL, and its synchronous replica is promoted; a new replica is started.
    Promote,
    /// Followers get SIGSTOP, and SIGCONT later.
    FreezeFollowers {
        /// How many: one of three leaves a majority, two do not; a synchronous replica is one.
        count: usize,
    },
    /// The file of a lock is removed.
    RemoveFile {
        /// The lock.
        lock: usize,
    },
    /// The file of a lock is emptied.
    EmptyFile {
        /// The lock.
        lock: usize,
    },
}

/// The trouble of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Replies are lost; requests arrive.
    NoReplies,
    /// Requests are lost.
    NoRequests,
    /// Nothing moves, and neither side gets an error.
    Silence,
    /// Requests arrive late, after their senders have given up.
    LateRequests,
    /// Everything is delayed by this time.
    Delay(Duration),
    /// Connections are reset.
    Cut,
    /// A connection is reset after this many bytes of replies.
    CutAfter(u64),
    /// New connections are refused, and the old ones are reset.
    Refused,
}

impl Fault {
    /// Returns the name under which the fault is counted.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Kill { .. } => "worker killed",
            Fault::Pause { .. } => "worker stopped for longer than its lease",
            Fault::Link { trouble, .. } => match trouble {
                Trouble::NoReplies => "replies lost",
                Trouble::NoRequests => "requests lost",
                Trouble::Silence => "link frozen",
                Trouble::LateRequests => "requests delivered late",
                Trouble::Delay(_) => "link slow",
                Trouble::Cut | Trouble::CutAfter(_) => "connections cut",
                Trouble::Refused => "connections refused",
            },
            Fault::Partition { .. } => "packets lost in the kernel",
            Fault::Freeze { .. } => "server frozen",
            Fault::HangMaster { .. } => "one master frozen",
            Fault::Restart { .. } => "server killed, restarted with its data",
            Fault::Forget { .. } => "server killed, restarted without its data",
            Fault::Flush { .. } => "server flushed",
            Fault::ClockForward { .. } => "server's clock set forward",
            Fault::ClockBack { .. } => "server's clock set back",
            Fault::KillLeader => "leader killed",
            Fault::Promote => "primary killed, replica promoted",
            Fault::FreezeFollowers { .. } => "followers frozen",
            Fault::RemoveFile { .. } => "lock file removed",
            Fault::EmptyFile { .. } => "lock file emptied",
        }
    }

    /// Returns whether a server of `engine` may lose data by the fault, or forget them early.
    pub(crate) fn loses_data(&self, engine: Engine) -> bool {
        match self {
            Fault::Forget { .. } | Fault::Flush { .. } | Fault::ClockForward { .. } => true,
            // Its replicas are not synchronous.
            Fault::KillLeader => engine == Engine::Sentinel,
            _ => false,
        }
    }

    /// Returns the affected server, if it is one server.
    pub(crate) fn server(&self) -> Option<usize> {
        match self {
            Fault::Link { server, .. } | Fault::HangMaster { server } => Some(*server),
            _ => None,
        }
    }

    /// Returns the affected worker, if it is one worker.
    pub(crate) fn worker(&self) -> Option<usize> {
        match self {
            Fault::Kill { worker } | Fault::Pause { worker } => Some(*worker),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self:?}", self.kind())
    }
}
