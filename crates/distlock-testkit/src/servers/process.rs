//! A process to kill, freeze and thaw.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::polling::eventually;
use super::spawner;

/// A child process. Dropping it kills it with SIGKILL and waits for its end.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `program`, after `configure` has set up the command; its output is appended to the file `log`.
    pub fn start(program: &Path, log: &Path, configure: impl FnOnce(&mut Command)) -> io::Result<Process> {
        let output = File::options().create(true).append(true).open(log)?;
        let mut command = spawner::tied(program);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        configure(&mut command);
        Ok(Process { child: spawner::spawn(command)?, log: log.to_owned(), ended: None })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill9(&mut self) {
        if self.ended.is_none() {
            // A frozen process dies of SIGKILL too.
            self.child.kill().expect("a process that was not waited for can be killed");
            self.ended = Some(self.child.wait().expect("a child can be waited for"));
        }
    }

    /// Freezes it with SIGSTOP; returns when all its threads have stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        eventually("a process to freeze", || self.is_frozen().then_some(()));
    }

    /// Thaws it with SIGCONT.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
        eventually("a process to thaw", || self.thread_states().iter().all(|state| *state != 'T').then_some(()));
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "the process {} is dead", self.pid());
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("a child that was not waited for can be signalled");
    }

    /// Returns its exit status; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended
    }

    /// Returns whether all its threads have stopped.
    pub fn is_frozen(&self) -> bool {
        let states = self.thread_states();
        !states.is_empty() && states.iter().all(|state| *state == 'T')
    }

    /// Returns its output.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn thread_states(&self) -> Vec<char> {
        let tasks = format!("/proc/{}/task", self.pid());
        let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).ok();
        // The state follows the program's name, which is in parentheses and may contain any character.
        let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        fs::read_dir(tasks).into_iter().flatten().flatten().filter_map(stat).filter_map(state).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::{Directory, find_program};

    fn sleeper(directory: &Directory) -> Process {
        let sleep = find_program("sleep", "coreutils");
        let log = directory.path().join("log");
        Process::start(&sleep, &log, |command| {
            command.arg("1000");
        })
        .unwrap()
    }

    fn is_alive(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn a_process_freezes_thaws_and_dies() {
        let directory = Directory::new();
        let mut process = sleeper(&directory);
        process.stop();
        assert_eq!(process.thread_states(), ['T']);
        process.cont();
        assert_ne!(process.thread_states(), ['T']);
        assert_eq!(process.ended(), None);
        process.kill9();
        assert!(process.ended().is_some() && !is_alive(process.pid()));
    }

    #[test]
    fn a_dropped_process_is_gone_also_when_it_was_frozen() {
        let directory = Directory::new();
        let process = sleeper(&directory);
        process.stop();
        let pid = process.pid();
        drop(process);
        assert!(!is_alive(pid));
    }

    #[test]
    fn a_process_outlives_the_thread_that_started_it() {
        let directory = Directory::new();
        let mut process = std::thread::scope(|scope| scope.spawn(|| sleeper(&directory)).join().unwrap());
        // A death signal would have arrived before join reported the end of its sender.
        assert_eq!(process.ended(), None);
        process.kill9();
    }

    #[test]
    fn a_killed_test_runner_takes_its_processes_along() {
        let directory = Directory::new();
        let (sh, pid_file) = (find_program("sh", "dash"), directory.path().join("pid"));
        // The shell takes the role of the runner; its child is tied to it as our children are to us.
        let script = format!("setpriv --pdeathsig KILL -- sleep 1000 & echo $! >{}; wait", pid_file.display());
        let log = directory.path().join("log");
        let mut runner = Process::start(&sh, &log, |command| {
            command.args(["-c", &script]);
        })
        .unwrap();
        // A zombie, which stays where orphans are not reaped, has an empty command line.
        let is_sleeping = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with("sleep"))
        };
        let pid = eventually("the runner's child", || {
            fs::read_to_string(&pid_file).ok()?.trim().parse().ok().filter(is_sleeping)
        });
        runner.kill9();
        eventually("the child's end", || (!is_sleeping(&pid)).then_some(()));
        assert!(!is_sleeping(&pid));
    }
}
