//! The processes below one, and their end.
//!
//! The guardian, and the wrapper above it, are "subreapers": a process that is orphaned below one becomes its child, so
//! that no process gets out of sight by leaving the process group, or the session, or its parent.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::iter::successors;
use std::path::Path;
use std::sync::LazyLock;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::process::{getpid, kill_process, pidfd_open, pidfd_send_signal, test_kill_process};

/// How often [`kill`] looks again at once. A process that was forked while the others were killed is found by the next
/// look; a bomb that outruns this many is for the next call.
const LOOKS: usize = 32;

/// More generations than there are; a chain that is longer was changed while it was followed.
const GENERATIONS: usize = 4_096;

/// More than the kernel gives of a list at once.
const LIST: usize = 8 << 10;

/// Which of the processes below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those in this process's session. One that made a session of its own is a daemon that means to outlive the job.
    Session,
    /// All of them.
    Everything,
}

/// What the kernel says about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    is_living: bool,
    parent: Option<Pid>,
    /// 0 when its leader is outside of this PID namespace (as in a container that was entered from outside). getsid(2)
    /// says the same 0, which is no process id, and rustix's `getsid` takes it for one.
    session: u32,
}

impl Entry {
    /// `None`: the process is gone, or the kernel hides it from us. An error says nothing about the process.
    fn of(process: Pid) -> io::Result<Option<Entry>> {
        match fs::read_to_string(format!("/proc/{process}/stat")) {
            Ok(stat) => Entry::parse(&stat).map(Some).ok_or_else(|| ErrorKind::InvalidData.into()),
            Err(error) => or_gone(error),
        }
    }

    /// Whether it is one of those in `reach`, seen from the session `own`.
    fn is_in(self, reach: Reach, own: Option<u32>) -> bool {
        reach == Reach::Everything || Some(self.session) == own
    }

    /// Behind the command's name, which is in parentheses and may hold anything: state, parent, process group, session,
    /// and as the eighteenth the number of threads.
    fn parse(stat: &str) -> Option<Entry> {
        let (_, behind_name) = stat.rsplit_once(')')?;
        let fields: Vec<_> = behind_name.split_ascii_whitespace().collect();
        let has_ended = matches!(*fields.first()?, "Z" | "X" | "x");
        // The first thread of a process may end before the others: it shows as a zombie then.
        let threads = fields.get(17).and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
        let parent = fields.get(1)?.parse().ok().and_then(Pid::from_raw);
        Some(Entry { is_living: !has_ended || threads > 1, parent, session: fields.get(3)?.parse().ok()? })
    }
}

/// Nothing, if the error means that the process is gone or hidden; the error, if it is one of ours (no descriptor left).
fn or_gone<T: Default>(error: io::Error) -> io::Result<T> {
    let is_gone = error.raw_os_error() == Some(Errno::SRCH.raw_os_error());
    let is_gone = is_gone || matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied);
    if is_gone { Ok(T::default()) } else { Err(error) }
}

/// Whether the kernel says what is below a process. Without /proc it does not, and a /proc of another PID namespace, which
/// `unshare --pid` leaves behind, tells of strangers.
pub(crate) fn is_visible() -> bool {
    static IS_VISIBLE: LazyLock<bool> = LazyLock::new(|| {
        let name = fs::read_link("/proc/self").ok();
        let is_ours = name.as_deref().and_then(Path::to_str).and_then(parse) == Some(getpid());
        // Numbers may be the same by chance. A process has one number for each namespace from that of /proc down to its own.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        is_ours && numbers.is_none_or(|numbers| numbers.split_ascii_whitespace().count() == 1)
    });
    *IS_VISIBLE
}

/// Whether the process is there and has not ended. For where processes are visible.
pub(crate) fn is_living(process: Pid) -> bool {
    // One of which nothing is known is taken to be there.
    Entry::of(process).map_or(true, |entry| entry.map_or_else(|| is_hidden(process), |entry| entry.is_living))
}

/// Whether the process is there and another user's, of whom /proc does not tell (`hidepid`).
fn is_hidden(process: Pid) -> bool {
    test_kill_process(process) == Err(Errno::PERM)
}

/// The children of `parent`, those that have ended included. None where processes are not visible.
///
/// The kernel reads the list in pieces, and finds its place again by counting: of a process that reaps its children
/// meanwhile one may be missing. None is missing from the caller's own.
pub(crate) fn children_of(parent: Pid) -> io::Result<Vec<Pid>> {
    static HAS_LISTS: LazyLock<bool> = LazyLock::new(|| fs::exists("/proc/thread-self/children").unwrap_or(false));
    if !is_visible() {
        return Ok(Vec::new());
    }
    // A kernel that was built without CONFIG_PROC_CHILDREN has no lists.
    if *HAS_LISTS { listed_children(parent) } else { sought_children(parent) }
}

fn listed_children(parent: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    let threads = match fs::read_dir(format!("/proc/{parent}/task")) {
        Ok(threads) => threads,
        Err(error) => return or_gone(error),
    };
    for thread in threads {
        let list = thread.and_then(|thread| read_list(&thread.path().join("children"))).or_else(or_gone)?;
        children.extend(list.split_ascii_whitespace().filter_map(parse));
    }
    Ok(children)
}

/// Reads in pieces as large as the kernel gives them: the fewer, the less can happen in between.
fn read_list(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut list, mut piece) = (Vec::new(), [0; LIST]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return String::from_utf8(list).map_err(|_| ErrorKind::InvalidData.into()),
            Ok(length) => list.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn sought_children(parent: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for process in fs::read_dir("/proc")? {
        if let Some(process) = process?.file_name().to_str().and_then(parse)
            && Entry::of(process)?.is_some_and(|entry| entry.parent == Some(parent))
        {
            children.push(process);
        }
    }
    Ok(children)
}

fn parse(number: &str) -> Option<Pid> {
    number.parse().ok().and_then(Pid::from_raw)
}

/// What a walk through the processes below one has found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look {
    /// Those in reach, the ones that have ended included.
    members: HashSet<Pid>,
    living: HashSet<Pid>,
}

impl Look {
    /// Looks at all of them; `None` as soon as there is a living one that is not one of the `others`.
    fn past(others: Option<&[Pid]>, root: Pid, reach: Reach) -> io::Result<Option<Look>> {
        let own = Entry::of(getpid())?.map(|entry| entry.session);
        let mut look = Look::default();
        let mut seen = HashSet::from([root]);
        let mut next = vec![root];
        while let Some(parent) = next.pop() {
            for child in children_of(parent)?.into_iter().filter(|child| seen.insert(*child)) {
                next.push(child);
                let is_living = match Entry::of(child)? {
                    Some(entry) if entry.is_in(reach, own) => entry.is_living,
                    None if is_hidden(child) => true,
                    _ => continue,
                };
                look.members.insert(child);
                if is_living {
                    look.living.insert(child);
                    if others.is_some_and(|others| !others.contains(&child)) {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(look))
    }
}

/// How many processes below `root` have not ended, about: they come and go.
pub(crate) fn count(root: Pid, reach: Reach) -> usize {
    Look::past(None, root, reach).ok().flatten().map_or(0, |look| look.living.len())
}

/// Whether no process below `root` is left in `reach`, except those in `others`. A proof if `root` is the caller, which reaps
/// nothing meanwhile; of another one an opinion. What cannot be read is taken to be there.
///
/// One look is no proof: a process that was listed, living, may hand its work to a child and end before it is looked at.
/// The child is the caller's then, whose list was read before. But the process is seen dead in that look, and was not in
/// the one before: only two looks in a row that see the same are believed.
pub(crate) fn is_clear(root: Pid, reach: Reach, others: &[Pid]) -> bool {
    let mut last = None;
    for _ in 0..LOOKS {
        match Look::past(Some(others), root, reach) {
            Ok(Some(look)) if last.as_ref() == Some(&look) => return true,
            Ok(Some(look)) => last = Some(look),
            Ok(None) | Err(_) => return false,
        }
    }
    false
}

/// Kills the processes below `root`. Returns those that may not be killed: they became another user.
///
/// A parent is killed before its children, so that it does not see their end and start others. Killed processes take a
/// moment to end: the caller looks again.
pub(crate) fn kill(root: Pid, reach: Reach) -> Vec<Pid> {
    let own = Entry::of(getpid()).ok().flatten().map(|entry| entry.session);
    let mut killing = Killing { root, reach, own, tried: HashSet::new(), refused: Vec::new() };
    for _ in 0..LOOKS {
        let before = killing.tried.len();
        killing.walk();
        if killing.tried.len() == before {
            break;
        }
    }
    killing.refused
}

/// The end of the processes below one.
struct Killing {
    root: Pid,
    reach: Reach,
    own: Option<u32>,
    tried: HashSet<Pid>,
    refused: Vec<Pid>,
}

impl Killing {
    /// Kills each one as it is found: there may be thousands, and time is short.
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

    /// Kills `process`, found as a child of `parent`, and no stranger that got its number since.
    fn kill(&mut self, parent: Pid, process: Pid) -> Result<(), Errno> {
        // The handle is of the one that has the number now; only then is it asked whose child that one is.
        let handle = pidfd_open(process, PidfdFlags::empty());
        match Entry::of(process) {
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
    let parent = |process: &Pid| Entry::of(*process).ok().flatten().and_then(|entry| entry.parent);
    successors(Some(process), parent).take(GENERATIONS).skip(1).any(|parent| parent == root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_behind_any_name() {
        let pid = Pid::from_raw;
        let entry = |is_living, parent, session| Some(Entry { is_living, parent, session });
        assert_eq!(Entry::parse("12 (cat) S 1 12 7 0 -1"), entry(true, pid(1), 7));
        assert_eq!(Entry::parse("12 (a) S 9 9 9) R 3 12 0 0 -1"), entry(true, pid(3), 0));
        assert_eq!(Entry::parse("12 (a) Z 0 12 5 0 -1"), entry(false, None, 5));
        assert_eq!(Entry::parse(""), None);
    }

    #[test]
    fn a_zombie_with_other_threads_lives() {
        let stat = |threads| format!("12 (a) Z 1 12 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0");
        assert!(!Entry::parse(&stat(1)).unwrap().is_living);
        assert!(Entry::parse(&stat(2)).unwrap().is_living);
    }

    #[test]
    fn children_are_found_with_and_without_lists() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(listed_children(getpid()).unwrap().contains(&pid));
        assert!(sought_children(getpid()).unwrap().contains(&pid));
        assert!(Look::past(None, getpid(), Reach::Session).unwrap().unwrap().living.contains(&pid));
        assert!(!is_clear(getpid(), Reach::Session, &[]) && is_clear(pid, Reach::Everything, &[]));
        assert!(is_below(getpid(), pid) && !is_below(pid, getpid()));
        let mut killing =
            Killing { root: pid, reach: Reach::Everything, own: None, tried: HashSet::new(), refused: vec![] };
        assert_eq!((killing.kill(pid, pid), killing.tried.len()), (Ok(()), 0), "only what is below");
        killing.root = getpid();
        assert_eq!((killing.kill(getpid(), pid), killing.tried.len()), (Ok(()), 1));
        child.wait().unwrap();
        assert!(!is_living(pid));
    }
}
