//! The guardian: a process between the wrapper and the command that ends the command when the wrapper cannot, because
//! the wrapper was killed or is stopped past the lease's end.
//!
//! The kernel does not end a command whose wrapper is stopped, and the descendants of a killed wrapper scatter. So the
//! guardian is the command's parent and a subreaper: every process that the command starts stays below it, in whatever
//! process group or session. It is a fork of the wrapper with all signals blocked, in its own process group unless the
//! command runs in the wrapper's.
//!
//! The end of the control pipe tells it that the wrapper is gone. A timer on CLOCK_BOOTTIME, which the wrapper moves
//! forward with each renewal, tells it that the lease is over. It reports the end of the command, and which of its
//! processes remain, through the event pipe: only the reaping process knows that. `guardian_loop` is the code that
//! runs in it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;

use crate::child::{Outcome, Placement};
use crate::guardian_loop;
use crate::sys::{self, SignalSet};
use crate::tree::Reach;

/// How long to wait for the end of a dismissed guardian.
const DISMISS_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The command that a guardian starts and ends.
#[derive(Debug)]
pub(crate) struct GuardedCommand {
    pub(crate) command: Command,
    pub(crate) placement: Placement,
    /// The signals that are blocked when the command starts.
    pub(crate) mask: SignalSet,
    /// Which descendants the guardian kills when the wrapper is gone or the lease is over.
    pub(crate) reach: Reach,
}

/// A report of the guardian about the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardianEvent {
    /// The command runs as this process.
    Started(Pid),
    /// The command cannot be started; the error's number.
    Refused(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command ended. Its process id is not reused before the guardian is dismissed.
    Ended(Outcome),
    /// Which processes of the command remain.
    Left(Remaining),
}

/// Which of its processes remain after a command has ended. It never grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Remaining {
    /// None.
    Nothing,
    /// Only processes that made a session of their own.
    Daemons,
    /// Perhaps others too.
    Unknown,
}

/// The length of an event in the pipe.
pub(crate) const EVENT_LENGTH: usize = 8;

/// How many events are read at once. The rest waits for the next read: a command must not keep the wrapper busy with
/// events.
const BATCH: usize = 64;

impl GuardianEvent {
    pub(crate) fn encode(self) -> [u8; EVENT_LENGTH] {
        let (kind, value) = match self {
            GuardianEvent::Started(pid) => (0, pid.as_raw_nonzero().get()),
            GuardianEvent::Refused(error) => (1, error),
            GuardianEvent::Stopped(signal) => (2, signal),
            GuardianEvent::Ended(Outcome::Exited(code)) => (3, i32::from(code)),
            GuardianEvent::Ended(Outcome::Killed(signal)) => (4, signal),
            GuardianEvent::Left(remaining) => (5, remaining as i32),
        };
        (i64::from(kind) << 32 | i64::from(value)).to_ne_bytes()
    }

    fn decode(bytes: [u8; EVENT_LENGTH]) -> Option<GuardianEvent> {
        let number = i64::from_ne_bytes(bytes);
        let value = i32::try_from(number & 0xffff_ffff).ok()?;
        match number >> 32 {
            0 => Pid::from_raw(value).map(GuardianEvent::Started),
            1 => Some(GuardianEvent::Refused(value)),
            2 => Some(GuardianEvent::Stopped(value)),
            3 => u8::try_from(value).ok().map(|code| GuardianEvent::Ended(Outcome::Exited(code))),
            4 => Some(GuardianEvent::Ended(Outcome::Killed(value))),
            5 => [Remaining::Nothing, Remaining::Daemons, Remaining::Unknown]
                .get(usize::try_from(value).ok()?)
                .copied()
                .map(GuardianEvent::Left),
            _ => None,
        }
    }
}

/// The wrapper's handle to its guardian. Dropping it kills the command.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: Pid,
    control: OwnedFd,
    timer: OwnedFd,
    events: AsyncFd<OwnedFd>,
}

impl Guardian {
    /// Starts a guardian, which starts the command and kills it after `left` unless [`Guardian::kill_after`] sets
    /// another time.
    pub(crate) fn start(guarded: GuardedCommand, left: Option<Duration>) -> io::Result<Guardian> {
        let (control_reader, control) = pipe_with(PipeFlags::CLOEXEC)?;
        // Non-blocking: neither process waits for the other, which may be stopped.
        let (events, event_pipe) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // Set before the command runs: the wrapper may be stopped right after the fork.
        set(&timer, left)?;
        let children = SignalSet::of(&[Signal::CHILD]).descriptor()?;
        let pid = sys::fork(|| {
            guardian_loop::watch(
                guarded,
                guardian_loop::Descriptors {
                    control: &control_reader,
                    timer: &timer,
                    children: &children,
                    event_pipe: &event_pipe,
                },
            );
        })?;
        Ok(Guardian { pid, control, timer, events: sys::readable(events)? })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the next events; `None` when the guardian is gone.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&self) -> io::Result<Option<Vec<GuardianEvent>>> {
        loop {
            let mut ready = self.events.readable().await?;
            match ready.try_io(|events| read_events(events.get_ref())) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(events) => return events,
                Err(_would_block) => {}
            }
        }
    }

    /// Returns the events that have arrived, without waiting; `None` when the guardian is gone.
    pub(crate) fn ready(&self) -> io::Result<Option<Vec<GuardianEvent>>> {
        match read_events(self.events.get_ref()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Some(Vec::new()))
            }
            events => events,
        }
    }

    /// Sets when the guardian kills, from now; `None`: no time limit.
    pub(crate) fn kill_after(&self, left: Option<Duration>) -> io::Result<()> {
        set(&self.timer, left)
    }

    /// Continues the guardian in case it was stopped: it must report how the command ends. Call this only before the
    /// guardian is reaped.
    pub(crate) fn wake(&self) {
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Ends the guardian without killing a process, and reaps it: the first process of a container, which would
    /// inherit it, may not reap orphans.
    pub(crate) fn dismiss(self) {
        // The write fails when the guardian is gone, and perhaps reaped.
        if rustix::io::write(self.control.as_fd(), &[0]).is_ok() {
            self.wake();
        }
        // No event is requested, so that only the end of the pipe is reported.
        let mut end = [PollFd::new(self.events.get_ref(), PollFlags::empty())];
        if poll(&mut end, Some(&DISMISS_WAIT)) == Ok(1) {
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

fn read_events(pipe: &OwnedFd) -> io::Result<Option<Vec<GuardianEvent>>> {
    let mut bytes = [0; EVENT_LENGTH * BATCH];
    let length = rustix::io::read(pipe, &mut bytes)?;
    // Each event is written in one call, and so read whole.
    let events = bytes[..length].as_chunks().0.iter().filter_map(|bytes| GuardianEvent::decode(*bytes));
    Ok((length > 0).then(|| events.collect()))
}

fn set(timer: &OwnedFd, left: Option<Duration>) -> io::Result<()> {
    // An all-zero value would disarm the timer.
    let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
    let it_value =
        Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_decode_to_what_was_encoded() {
        let outcomes = [Outcome::Exited(0), Outcome::Exited(255), Outcome::Killed(9)].map(GuardianEvent::Ended);
        let others = [
            GuardianEvent::Started(Pid::from_raw(4711).unwrap()),
            GuardianEvent::Refused(2),
            GuardianEvent::Stopped(20),
        ];
        let rests = [Remaining::Nothing, Remaining::Daemons, Remaining::Unknown].map(GuardianEvent::Left);
        for event in outcomes.into_iter().chain(others).chain(rests) {
            assert_eq!(GuardianEvent::decode(event.encode()), Some(event));
        }
        assert_eq!(GuardianEvent::decode([0xff; EVENT_LENGTH]), None);
    }
}
