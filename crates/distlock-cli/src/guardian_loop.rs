//! The code that runs in the guardian process.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, waitid, waitpid};
use rustix::time::Timespec;

use crate::child::{self, Child, Outcome, Placement};
use crate::guardian::{GuardedCommand, GuardianEvent, Remaining};
use crate::sys::{self, SignalSet};
use crate::tree::{self, Reach};

/// How long to repeat the kill: a process in an uninterruptible system call ends later.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How often to check whether the killed processes have ended.
const KILL_POLL: Duration = Duration::from_millis(5);

/// How soon to retry events that did not fit into the pipe, and to check again for remaining processes: not all of
/// them end as children of the guardian.
const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The guardian's file descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors<'a> {
    /// One byte dismisses the guardian; the end of the pipe means that the wrapper is gone.
    pub(crate) control: &'a OwnedFd,
    /// Expires with the lease.
    pub(crate) timer: &'a OwnedFd,
    /// Readable when a child has ended or stopped.
    pub(crate) children: &'a OwnedFd,
    /// Where events are written.
    pub(crate) event_pipe: &'a OwnedFd,
}

/// Starts the command, and returns when no process is left to watch. Runs in a process of its own.
pub(crate) fn watch(guarded: GuardedCommand, descriptors: Descriptors<'_>) {
    let _ = rustix::thread::set_name(c"distlock-guard");
    // Terminal keys, signals to the wrapper's group and SIGPIPE must neither end nor stop the guardian.
    let _ = SignalSet::full().block();
    let GuardedCommand { command, placement, mask, reach } = guarded;
    // Orphaned descendants become children of the guardian.
    let ready = rustix::process::set_child_subreaper(Some(getpid()));
    let ready = ready.and_then(|()| match placement {
        // Signals to the wrapper's group do not reach the guardian.
        Placement::OwnGroup => rustix::process::setpgid(None, None),
        // With a parent in another group of the session, the command's group would not count as orphaned: Ctrl-Z would
        // then stop it even where no shell can continue it.
        Placement::Foreground => Ok(()),
    });
    let child = match ready.map_err(io::Error::from).and_then(|()| Child::spawn(command, placement, mask)) {
        Ok(child) => child,
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            return write_event(descriptors.event_pipe.as_fd(), GuardianEvent::Refused(number)).unwrap_or_default();
        }
    };
    // Readers of the command's descriptors wait for the command's end, not for the guardian's.
    sys::close_all_but(
        [descriptors.control, descriptors.timer, descriptors.children, descriptors.event_pipe].map(AsRawFd::as_raw_fd),
    );
    // Looks at /proc while the command starts rather than when it has ended.
    tree::is_visible();
    let pending = VecDeque::from([GuardianEvent::Started(child.pid)]);
    let mut guardian_loop =
        GuardianLoop { child, reach, descriptors, has_ended: false, remaining: Remaining::Unknown, pending };
    guardian_loop.run();
}

fn write_event(event_pipe: BorrowedFd<'_>, event: GuardianEvent) -> Result<(), Errno> {
    rustix::io::write(event_pipe, &event.encode()).map(drop)
}

struct GuardianLoop<'a> {
    child: Child,
    reach: Reach,
    descriptors: Descriptors<'a>,
    has_ended: bool,
    /// Which processes of the command remain.
    remaining: Remaining,
    /// Events that must be delivered; the pipe may have no room for them yet.
    pending: VecDeque<GuardianEvent>,
}

impl GuardianLoop<'_> {
    fn run(&mut self) {
        loop {
            self.write_pending();
            let mut ready = [self.descriptors.control, self.descriptors.timer, self.descriptors.children]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN));
            let is_busy = !self.pending.is_empty() || (self.has_ended && self.remaining != Remaining::Nothing);
            match poll(&mut ready, is_busy.then_some(&RETRY_INTERVAL)) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return self.kill(),
            }
            let [control, timer, children] = ready.map(|it| !it.revents().is_empty());
            if control {
                match rustix::io::read(self.descriptors.control, &mut [0; 1]) {
                    Ok(1) => return self.reap(),
                    Err(Errno::INTR) => {}
                    _ => return self.kill(),
                }
            }
            // The read fails when the wrapper has just moved the timer forward.
            if timer && rustix::io::read(self.descriptors.timer, &mut [0; 8]).is_ok() {
                self.kill();
            }
            if children {
                // The children are read with waitid: the kernel merges pending signals of one kind.
                let _ = rustix::io::read(self.descriptors.children, &mut [0; 1_024]);
            }
            self.check_children();
        }
    }

    /// Writes the pending events in order.
    fn write_pending(&mut self) {
        while let Some(event) = self.pending.front() {
            if write_event(self.descriptors.event_pipe.as_fd(), *event) == Err(Errno::AGAIN) {
                return;
            }
            self.pending.pop_front();
        }
    }

    /// Records how the command ended and which processes remain, and reaps orphans.
    fn check_children(&mut self) {
        let had_ended = self.has_ended;
        let outcome = if tree::is_visible() { self.check_by_lists() } else { self.check_by_reaping() };
        self.has_ended |= outcome.is_some();
        if self.has_ended {
            self.check_remaining();
        }
        // After the report on remaining processes, so that the wrapper does not wait for processes that have ended.
        if let Some(outcome) = outcome.filter(|_| !had_ended) {
            self.pending.push_back(GuardianEvent::Ended(outcome));
        }
    }

    fn check_by_lists(&mut self) -> Option<Outcome> {
        let look = |options| waitid(WaitId::Pid(self.child.pid), options | WaitIdOptions::NOHANG).ok().flatten();
        if let Some(signal) = look(WaitIdOptions::STOPPED).and_then(|status| status.stopping_signal()) {
            // May be dropped: the pipe is full only when the wrapper has left thousands unread.
            let _ = write_event(self.descriptors.event_pipe.as_fd(), GuardianEvent::Stopped(signal));
        }
        for orphan in tree::children_of(getpid()).unwrap_or_default() {
            if orphan != self.child.pid {
                let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
            }
        }
        // The command is not reaped: while it is a zombie, the kernel reuses neither its process id nor its group's
        // number.
        let status = look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        let code = |code| Outcome::Exited(u8::try_from(code).unwrap_or(u8::MAX));
        let killed = || Outcome::Killed(status.terminating_signal().unwrap_or(Signal::KILL.as_raw()));
        Some(status.exit_status().map_or_else(killed, code))
    }

    /// Does the same where children cannot be listed: it must reap every child to find those that have ended. The
    /// number of the command's group is not reused before its last process was reaped.
    fn check_by_reaping(&mut self) -> Option<Outcome> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let stopped = waitid(WaitId::Pid(self.child.pid), options).ok().flatten();
        if let Some(signal) = stopped.and_then(|status| status.stopping_signal()) {
            let _ = write_event(self.descriptors.event_pipe.as_fd(), GuardianEvent::Stopped(signal));
        }
        let mut outcome = None;
        while let Ok(Some((pid, how))) = child::next_ended() {
            if pid == self.child.pid {
                outcome = Some(how);
            }
        }
        self.child.is_reaped |= (self.has_ended || outcome.is_some()) && self.child.group_is_gone();
        outcome
    }

    /// Records when fewer processes remain than before. Nothing is reaped meanwhile.
    fn check_remaining(&mut self) {
        let is_clear = |reach| tree::is_clear(getpid(), reach, &[]);
        let remaining = match tree::is_visible() {
            true if tree::has_only(self.child.pid) || is_clear(Reach::Everything) => Remaining::Nothing,
            true if self.remaining == Remaining::Daemons || is_clear(Reach::Session) => Remaining::Daemons,
            // Without /proc, only the group's number shows whether its other processes have ended.
            false if self.child.is_reaped => Remaining::Nothing,
            _ => Remaining::Unknown,
        };
        if remaining < self.remaining {
            self.remaining = remaining;
            self.pending.push_back(GuardianEvent::Left(remaining));
        }
    }

    /// Reaps the command: it is not signalled any more.
    fn reap(&mut self) {
        let _ = waitpid(Some(self.child.pid), WaitOptions::NOHANG);
    }

    /// Kills all processes in reach and waits for their end.
    fn kill(&mut self) {
        let (me, start) = (getpid(), Instant::now());
        loop {
            // One call kills the whole group, so that no member can fork in between.
            self.child.signal(Signal::KILL);
            let refused: Vec<Pid> = tree::kill(me, self.reach);
            self.check_children();
            let is_done = match tree::is_visible() {
                true => tree::is_clear(me, self.reach, &refused),
                false => self.child.is_reaped,
            };
            if is_done || start.elapsed() > KILL_LIMIT {
                return;
            }
            std::thread::sleep(KILL_POLL);
        }
    }
}
