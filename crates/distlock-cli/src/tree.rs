//! The processes below this one.
//!
//! The wrapper is a "subreaper": whoever is orphaned below it becomes its child, so that nobody gets out of sight by
//! leaving the process group.

use std::collections::HashSet;

use rustix::process::Pid;

/// The children of `parent`, zombies included. Empty when the kernel does not tell (it was built without
/// CONFIG_PROC_CHILDREN), or the process is gone.
fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else {
        return Vec::new();
    };
    let lists = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| parse(&list)).collect()
}

fn parse(list: &str) -> Vec<Pid> {
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)).collect()
}

/// Everybody below this process except `guardian`.
pub(crate) fn descendants(guardian: Pid) -> Vec<Pid> {
    let mut seen = HashSet::from([guardian]);
    let mut found = Vec::new();
    let mut next = vec![rustix::process::getpid()];
    while let Some(parent) = next.pop() {
        for child in children_of(parent) {
            if seen.insert(child) {
                found.push(child);
                next.push(child);
            }
        }
    }
    found
}

/// Those of [`descendants`] that are still in this process's session. Whoever made a session of its own is a daemon that
/// means to outlive the job.
pub(crate) fn descendants_in_session(guardian: Pid) -> Vec<Pid> {
    let own = session_of(rustix::process::getpid());
    let mut found = descendants(guardian);
    found.retain(|pid| session_of(*pid) == own);
    found
}

/// The session of a process, 0 when its leader is outside of this PID namespace (as in a container that was entered from
/// outside). getsid(2) says the same 0, which is no process id, and rustix's `getsid` takes it for one.
fn session_of(process: Pid) -> Option<u32> {
    session_in(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Behind the command's name, which is in parentheses and may hold anything: state, parent, process group, session.
fn session_in(stat: &str) -> Option<u32> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::session_in;

    #[test]
    fn the_session_is_found_behind_any_name() {
        assert_eq!(session_in("12 (cat) S 1 12 7 0 -1"), Some(7));
        assert_eq!(session_in("12 (a) S 9 9 9) R 1 12 0 0 -1"), Some(0));
        assert_eq!(session_in(""), None);
    }
}
