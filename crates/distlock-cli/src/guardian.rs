//! A process that kills the child when the wrapper cannot: because it was killed, or stopped past the lease's end.
//!
//! PR_SET_PDEATHSIG reaches the direct child only, and nothing in the kernel ends a child whose parent is stopped. The
//! guardian is a copy of the wrapper in a process group of its own, with two descriptors and no other duty. It reads from a
//! pipe whom to kill; the pipe's end means that the wrapper is gone. A timer on CLOCK_BOOTTIME, which the wrapper sets
//! ahead as the lease is renewed, means that the lease is over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::sys;

/// Whom to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A process group.
    Group(Pid),
    /// One process.
    Process(Pid),
}

impl Target {
    /// Sends `signal`. Gone already is as good as killed.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = match self {
            Target::Group(pid) => kill_process_group(pid, signal),
            Target::Process(pid) => kill_process(pid, signal),
        };
    }

    /// A group is a negative number, as for kill(2); zero dismisses the guardian.
    pub(crate) fn encode(self) -> [u8; 4] {
        match self {
            Target::Group(pid) => (-pid.as_raw_nonzero().get()).to_ne_bytes(),
            Target::Process(pid) => pid.as_raw_nonzero().get().to_ne_bytes(),
        }
    }

    fn decode(bytes: [u8; 4]) -> Option<Target> {
        match i32::from_ne_bytes(bytes) {
            number @ 1.. => Pid::from_raw(number).map(Target::Process),
            number => Pid::from_raw(number.saturating_neg()).map(Target::Group),
        }
    }
}

/// The wrapper's end of a guardian. Dropping it kills the target.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: Pid,
    control: OwnedFd,
    timer: OwnedFd,
}

impl Guardian {
    /// Starts a guardian that has nobody to kill yet.
    pub(crate) fn start() -> io::Result<Guardian> {
        let (orders, control) = pipe_with(PipeFlags::CLOEXEC)?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let pid = sys::fork_watcher(orders.as_fd(), timer.as_fd(), watch)?;
        // Out of reach of signals to our group. Done from here, since whatever the guardian does by itself may come too
        // late: it need not have run at all when the command already does.
        rustix::process::setpgid(Some(pid), Some(pid))?;
        Ok(Guardian { pid, control, timer })
    }

    /// Its process id, to tell it from the child's descendants.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Where to write whom to kill. The child does it itself before it becomes the command: were it left to the wrapper,
    /// there would be a moment in which the command runs and nobody would kill it.
    pub(crate) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Sets when to kill, from now; `None`: not by time.
    pub(crate) fn kill_after(&self, left: Option<Duration>) -> io::Result<()> {
        // All zero would mean "never".
        let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
        let it_value =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
        Ok(())
    }

    /// Ends the guardian without killing anybody.
    pub(crate) fn dismiss(self) {
        // Should it be gone already, then there is nobody to dismiss.
        let _ = rustix::io::write(&self.control, &0_i32.to_ne_bytes());
    }
}

/// The guardian's life. System calls only: it is the copy of a process whose other threads are missing.
fn watch(control: BorrowedFd<'_>, timer: BorrowedFd<'_>) {
    let _ = rustix::thread::set_name(c"distlock-guard");
    let mut target = None;
    loop {
        let mut ready =
            [PollFd::from_borrowed_fd(control, PollFlags::IN), PollFd::from_borrowed_fd(timer, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        let [orders_ready, timer_ready] = ready.map(|it| !it.revents().is_empty());
        if orders_ready {
            let mut order = [0; 4];
            match rustix::io::read(control, &mut order) {
                Ok(4) if order == [0; 4] => return,
                Ok(4) => target = Target::decode(order),
                Err(rustix::io::Errno::INTR) => {}
                _ => return kill(target),
            }
        } else if timer_ready && rustix::io::read(timer, &mut [0; 8]).is_ok() {
            // Reading fails when the timer was set ahead just now.
            kill(target);
        }
    }
}

fn kill(target: Option<Target>) {
    if let Some(target) = target {
        target.signal(Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_survives_the_pipe_and_zero_is_none() {
        let pid = Pid::from_raw(4711).unwrap();
        for target in [Target::Group(pid), Target::Process(pid)] {
            assert_eq!(Target::decode(target.encode()), Some(target));
        }
        assert_eq!(Target::decode([0; 4]), None);
    }
}
