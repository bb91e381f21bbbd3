//! What is done to processes, links and servers.

use std::fmt;
use std::time::Duration;

use distlock_testkit::netns::{Loss, Side};

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A worker gets SIGKILL, and another takes its place.
    Kill {
        /// Which one.
        worker: usize,
    },
    /// A worker gets SIGSTOP, and SIGCONT after more than a lease.
    Pause {
        /// Which one.
        worker: usize,
    },
    /// Half of the workers have trouble on their way to a server.
    Link {
        /// Which server.
        server: usize,
        /// Which half.
        side: usize,
        /// What is wrong.
        trouble: Trouble,
    },
    /// What half of the workers and the servers send each other is lost in the kernel, under their connections.
    Partition {
        /// How.
        how: Loss,
        /// Whose packets.
        from: &'static [Side],
    },
    /// A server gets SIGSTOP, and SIGCONT after a while.
    Freeze {
        /// Which one.
        server: usize,
    },
    /// A master of a cluster gets SIGSTOP, and SIGCONT after a while; the others are well.
    HangMaster {
        /// Which one.
        server: usize,
    },
    /// A server gets SIGKILL and is started again with its data.
    Restart {
        /// Which one.
        server: usize,
    },
    /// A server gets SIGKILL and is started again without its data.
    Forget {
        /// Which one.
        server: usize,
    },
    /// A server's data are deleted while it runs.
    Flush {
        /// Which one.
        server: usize,
    },
    /// The wall clock of a server is set forward.
    ClockForward {
        /// Which one.
        server: usize,
    },
    /// The wall clock of a server is set back.
    ClockBack {
        /// Which one.
        server: usize,
        /// By how much.
        by: Duration,
    },
    /// The master or leader gets SIGKILL; it is started again when another has taken its place.
    KillLeader,
    /// Servers that do not lead get SIGSTOP, and SIGCONT after a while.
    FreezeFollowers {
        /// How many: one leaves a majority, two do not.
        count: usize,
    },
    /// The file of a lock is removed.
    RemoveFile {
        /// Of which lock.
        lock: usize,
    },
    /// The file of a lock is emptied.
    EmptyFile {
        /// Of which lock.
        lock: usize,
    },
}

/// What is wrong with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Answers are lost; requests arrive.
    NoReplies,
    /// Requests are lost.
    NoRequests,
    /// Nothing moves, and nobody is told.
    Silence,
    /// Requests arrive late, when their senders have given up.
    LateRequests,
    /// Everything takes so much longer.
    Delay(Duration),
    /// Connections are reset.
    Cut,
    /// A connection is reset after so many bytes of answers.
    CutAfter(u64),
    /// No new connections, and the old ones are reset.
    Refused,
}

impl Fault {
    /// The row of the table that it is counted in.
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
            Fault::FreezeFollowers { .. } => "followers frozen",
            Fault::RemoveFile { .. } => "lock file removed",
            Fault::EmptyFile { .. } => "lock file emptied",
        }
    }

    /// The server that it is about, if it is about one.
    pub(crate) fn server(&self) -> Option<usize> {
        match self {
            Fault::Link { server, .. } | Fault::HangMaster { server } => Some(*server),
            _ => None,
        }
    }

    /// The worker that it is about, if it is about one.
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
