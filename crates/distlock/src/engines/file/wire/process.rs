//! Whether a process is there.

use rustix::process::{Pid, test_kill_process};

use crate::types::owner::Process;

/// Whether `process` lives, or may: a process of another container cannot be looked at.
pub(crate) fn is_alive(process: &Process) -> bool {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    // Every reply but "no such process" comes from one that is there.
    is_elsewhere(process) || pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Whether `process` is in a container: another host name on the same machine, whose process ids mean nothing here.
pub(crate) fn is_elsewhere(process: &Process) -> bool {
    process.host != Process::current().host
}
