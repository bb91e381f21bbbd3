//! Lists and kills the descendants of a process.
//!
//! The guardian, and the wrapper above it, are subreapers: a process that is orphaned below a subreaper becomes its
//! child. No descendant gets out of sight by leaving its process group, its session or its parent.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::iter::successors;
use std::path::Path;
use std::sync::LazyLock;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::process::{getpid, kill_process, pidfd_open, pidfd_send_signal, test_kill_process};

/// How many passes [`kill`] and [`is_clear`] make at most. The next pass finds a process that was forked during the
/// last one; a fork bomb that outruns this many passes is left to the next call.
const MAX_PASSES: usize = 32;

/// More generations than exist; a longer chain changed while it was followed.
const MAX_GENERATIONS: usize = 4_096;

/// More than the kernel returns of a list in one read.
const LIST_BYTES: usize = 8 << 10;

/// Which descendants are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The descendants in this process's session. A process that made its own session is a daemon that is meant to
    /// outlive the job.
    Session,
    /// All descendants.
    Everything,
}

/// The state of a process, as /proc/PID/stat shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessStat {
    is_living: bool,
    parent: Option<Pid>,
    /// 0 when the session leader is outside this PID namespace, as in a container that was entered from outside.
    /// getsid(2) returns the same 0, which is not a process id, but rustix's `getsid` takes it for one.
    session: u32,
}

impl ProcessStat {
    /// Returns `None` when the process is gone or hidden from this user. An error says nothing about the process.
    fn of(process: Pid) -> io::Result<Option<ProcessStat>> {
        match read_whole(format!("/proc/{process}/stat").as_ref()) {
            Ok(stat) => ProcessStat::parse(&stat).map(Some).ok_or_else(|| ErrorKind::InvalidData.into()),
            Err(error) => or_gone(error),
        }
    }

    /// Whether the process is in `reach`, where `own` is this process's session.
    fn is_in(self, reach: Reach, own: Option<u32>) -> bool {
        reach == Reach::Everything || Some(self.session) == own
    }

    /// Parses the fields behind the command's name, which is in parentheses and may contain any character: state,
    /// parent, process group, session, and as the eighteenth the number of threads.
    fn parse(stat: &str) -> Option<ProcessStat> {
        let (_, behind_name) = stat.rsplit_once(')')?;
        let fields: Vec<_> = behind_name.split_ascii_whitespace().collect();
        let has_ended = matches!(*fields.first()?, "Z" | "X" | "x");
        // The first thread of a process may end before the others: the process is then listed as a zombie.
        let threads = fields.get(17).and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
        let parent = fields.get(1)?.parse().ok().and_then(Pid::from_raw);
        Some(ProcessStat { is_living: !has_ended || threads > 1, parent, session: fields.get(3)?.parse().ok()? })
    }
}

/// Returns nothing when the error means that the process is gone or hidden, and the error when it is this process's
/// own (no descriptor left).
fn or_gone<T: Default>(error: io::Error) -> io::Result<T> {
    let is_gone = error.raw_os_error() == Some(Errno::SRCH.raw_os_error());
    let is_gone = is_gone || matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied);
    if is_gone { Ok(T::default()) } else { Err(error) }
}

/// Whether /proc lists the descendants of this process. It does not without /proc, and the /proc of another PID
/// namespace, which `unshare --pid` leaves mounted, lists unrelated processes.
pub(crate) fn is_visible() -> bool {
    static IS_VISIBLE: LazyLock<bool> = LazyLock::new(|| {
        let name = fs::read_link("/proc/self").ok();
        let is_ours = name.as_deref().and_then(Path::to_str).and_then(parse) == Some(getpid());
        // The process ids may be equal by chance. NSpid lists one number per namespace, from that of /proc down to the
        // process's own.
        let status = read_whole("/proc/self/status".as_ref()).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        is_ours && numbers.is_none_or(|numbers| numbers.split_ascii_whitespace().count() == 1)
    });
    *IS_VISIBLE
}

/// Whether the process exists and has not ended. Requires visible processes.
pub(crate) fn is_living(process: Pid) -> bool {
    // A process whose state cannot be read is taken to be alive.
    ProcessStat::of(process).map_or(true, |entry| entry.map_or_else(|| is_hidden(process), |entry| entry.is_living))
}

/// Whether the process exists but runs as another user and is hidden from /proc (`hidepid`).
fn is_hidden(process: Pid) -> bool {
    test_kill_process(process) == Err(Errno::PERM)
}

/// Returns the children of `parent`, zombies included; no children where processes are not visible.
///
/// The kernel returns the list in pieces and finds its position again by counting: if `parent` reaps a child
/// meanwhile, another child may be missing. The caller's own list is complete.
pub(crate) fn children_of(parent: Pid) -> io::Result<Vec<Pid>> {
    static HAS_CHILD_LISTS: LazyLock<bool> =
        LazyLock::new(|| fs::exists("/proc/thread-self/children").unwrap_or(false));
    if !is_visible() {
        return Ok(Vec::new());
    }
    // A kernel built without CONFIG_PROC_CHILDREN has no child lists.
    if *HAS_CHILD_LISTS { listed_children(parent) } else { scanned_children(parent) }
}

fn listed_children(parent: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    let threads = match fs::read_dir(format!("/proc/{parent}/task")) {
        Ok(threads) => threads,
        Err(error) => return or_gone(error),
    };
    for thread in threads {
        let list = thread.and_then(|thread| read_whole(&thread.path().join("children"))).or_else(or_gone)?;
        children.extend(list.split_ascii_whitespace().filter_map(parse));
    }
    Ok(children)
}

/// Reads a file of /proc in the largest pieces that the kernel returns: fewer reads leave less time for changes in
/// between.
fn read_whole(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut list, mut piece) = (Vec::new(), [0; LIST_BYTES]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return String::from_utf8(list).map_err(|_| ErrorKind::InvalidData.into()),
            Ok(length) => list.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn scanned_children(parent: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for process in fs::read_dir("/proc")? {
        if let Some(process) = process?.file_name().to_str().and_then(parse)
            && ProcessStat::of(process)?.is_some_and(|entry| entry.parent == Some(parent))
        {
            children.push(process);
        }
    }
    Ok(children)
}

fn parse(number: &str) -> Option<Pid> {
    number.parse().ok().and_then(Pid::from_raw)
}

/// The descendants that one walk found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Walk {
    /// All descendants in reach, zombies included.
    members: HashSet<Pid>,
    living: HashSet<Pid>,
}

impl Walk {
    /// Walks all descendants of `root`. Returns `None` at the first living one that is not in `others`.
    fn without(others: Option<&[Pid]>, root: Pid, reach: Reach) -> io::Result<Option<Walk>> {
        let own = ProcessStat::of(getpid())?.map(|entry| entry.session);
        let mut walk = Walk::default();
        let mut seen = HashSet::from([root]);
        let mut next = vec![root];
        while let Some(parent) = next.pop() {
            for child in children_of(parent)?.into_iter().filter(|child| seen.insert(*child)) {
                next.push(child);
                let is_living = match ProcessStat::of(child)? {
                    Some(entry) if entry.is_in(reach, own) => entry.is_living,
                    None if is_hidden(child) => true,
                    _ => continue,
                };
                walk.members.insert(child);
                if is_living {
                    walk.living.insert(child);
                    if others.is_some_and(|others| !others.contains(&child)) {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(walk))
    }
}

/// Returns about how many descendants of `root` are alive: they come and go.
pub(crate) fn count(root: Pid, reach: Reach) -> usize {
    Walk::without(None, root, reach).ok().flatten().map_or(0, |walk| walk.living.len())
}

/// Whether no descendant of `root` is left in `reach`, except those in `others`. The result is exact if `root` is the
/// caller and reaps nothing meanwhile, and a guess for any other `root`. A process that cannot be read counts as
/// alive.
///
/// One walk is not enough: a process that was listed alive may fork a child and end before its state is read. The
/// child then belongs to the caller, whose list was read before. But that walk sees the process dead, and the walk
/// before saw it alive: so the result needs two equal walks in a row.
pub(crate) fn is_clear(root: Pid, reach: Reach, others: &[Pid]) -> bool {
    let mut last = None;
    for _ in 0..MAX_PASSES {
        match Walk::without(Some(others), root, reach) {
            Ok(Some(walk)) if last.as_ref() == Some(&walk) => return true,
            Ok(Some(walk)) => last = Some(walk),
            Ok(None) | Err(_) => return false,
        }
    }
    false
}

/// Whether this process has no descendant but `ended`, a child that it knows to have ended and has not reaped. `false` may
/// also mean that it cannot be seen.
///
/// One look is enough, unlike in [`is_clear`]: an ended process has no children any more, so every other descendant is
/// below another child of this process, or is one.
pub(crate) fn has_only(ended: Pid) -> bool {
    is_visible() && children_of(getpid()).is_ok_and(|children| children == [ended])
}

/// Kills the descendants of `root`. Returns those that cannot be killed because they run as another user.
///
/// A parent is killed before its children, so that it cannot see their end and start others. Killed processes take a
/// moment to end: the caller must look again.
pub(crate) fn kill(root: Pid, reach: Reach) -> Vec<Pid> {
    let own = ProcessStat::of(getpid()).ok().flatten().map(|entry| entry.session);
    let mut killing = KillRun { root, reach, own, tried: HashSet::new(), refused: Vec::new() };
    for _ in 0..MAX_PASSES {
        let before = killing.tried.len();
        killing.walk();
        if killing.tried.len() == before {
            break;
        }
    }
    killing.refused
}

/// One run of [`kill`] over all its passes.
struct KillRun {
    root: Pid,
    reach: Reach,
    own: Option<u32>,
    tried: HashSet<Pid>,
    refused: Vec<Pid>,
}

impl KillRun {
    /// Kills each descendant as it is found: there may be thousands, and time is short.
    fn walk(&mut self) {
        let mut seen = HashSet::from([self.root]);
        let mut next = vec![self.root];
        while let Some(parent) = next.pop() {
            for child in children_of(parent).unwrap_or_default().into_iter().filter(|child| seen.insert(*child)) {
                next.push(child);
                if !self.tried.contains(&child) && self.kill(parent, child) == Err(Errno::PERM) {
                    self.refused.push(child);
                }
            }
        }
    }

    /// Kills `process`, which was found as a child of `parent`, but not an unrelated process that has reused its
    /// number since.
    fn kill(&mut self, parent: Pid, process: Pid) -> Result<(), Errno> {
        // The handle pins the process that has the number now; its parent is checked after that.
        let handle = pidfd_open(process, PidfdFlags::empty());
        match ProcessStat::of(process) {
            Ok(Some(entry)) if entry.is_living && entry.is_in(self.reach, self.own) => {
                let is_child = entry.parent.is_some_and(|above| above == parent || above == self.root);
                if !is_child && !is_below(self.root, process) {
                    return Ok(());
                }
            }
            Ok(None) if is_hidden(process) => {
                self.tried.insert(process);
                return Err(Errno::PERM);
            }
            _ => return Ok(()),
        }
        self.tried.insert(process);
        match handle {
            Ok(handle) => pidfd_send_signal(handle, Signal::KILL),
            Err(Errno::SRCH) => Ok(()),
            // Linux before 5.3, a sandbox, or no descriptor left.
            Err(_) => kill_process(process, Signal::KILL),
        }
    }
}

fn is_below(root: Pid, process: Pid) -> bool {
    let parent = |process: &Pid| ProcessStat::of(*process).ok().flatten().and_then(|entry| entry.parent);
    successors(Some(process), parent).take(MAX_GENERATIONS).skip(1).any(|parent| parent == root)
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions};

    use super::*;

    #[test]
    fn parse_accepts_any_command_name() {
        let pid = Pid::from_raw;
        let entry = |is_living, parent, session| Some(ProcessStat { is_living, parent, session });
        assert_eq!(ProcessStat::parse("12 (cat) S 1 12 7 0 -1"), entry(true, pid(1), 7));
        assert_eq!(ProcessStat::parse("12 (a) S 9 9 9) R 3 12 0 0 -1"), entry(true, pid(3), 0));
        assert_eq!(ProcessStat::parse("12 (a) Z 0 12 5 0 -1"), entry(false, None, 5));
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn a_zombie_with_running_threads_is_living() {
        let stat = |threads| format!("12 (a) Z 1 12 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0");
        assert!(!ProcessStat::parse(&stat(1)).unwrap().is_living);
        assert!(ProcessStat::parse(&stat(2)).unwrap().is_living);
    }

    #[test]
    fn children_are_found_with_and_without_lists() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(listed_children(getpid()).unwrap().contains(&pid));
        assert!(scanned_children(getpid()).unwrap().contains(&pid));
        assert!(Walk::without(None, getpid(), Reach::Session).unwrap().unwrap().living.contains(&pid));
        assert!(!is_clear(getpid(), Reach::Session, &[]) && is_clear(pid, Reach::Everything, &[]));
        assert!(is_below(getpid(), pid) && !is_below(pid, getpid()));
        let mut killing =
            KillRun { root: pid, reach: Reach::Everything, own: None, tried: HashSet::new(), refused: vec![] };
        assert_eq!((killing.kill(pid, pid), killing.tried.len()), (Ok(()), 0), "not a descendant of the root");
        killing.root = getpid();
        assert_eq!((killing.kill(getpid(), pid), killing.tried.len()), (Ok(()), 1));
        child.wait().unwrap();
        assert!(!is_living(pid));
    }

    #[test]
    fn an_ended_child_is_the_only_one_when_no_other_is_left() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let mut living = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&ended);
        rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(!has_only(pid), "another child lives");
        living.kill().unwrap();
        rustix::process::waitid(WaitId::Pid(Pid::from_child(&living)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .unwrap();
        assert!(!has_only(pid), "another child is not reaped: it may have left children");
        living.wait().unwrap();
        // The other test of this file has a child at times.
        let start = std::time::Instant::now();
        while !has_only(pid) {
            assert!(start.elapsed().as_secs() < 20, "no other child is left");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        ended.wait().unwrap();
        assert!(!has_only(pid), "it was reaped");
    }
}
