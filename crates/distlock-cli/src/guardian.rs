//! A process between the wrapper and the command, which ends the command when the wrapper cannot: because it was killed,
//! or stopped past the lease's end.
//!
//! Nothing in the kernel ends a command whose wrapper is stopped, and what is below a wrapper that was killed scatters. So
//! the guardian is the command's parent, and a "subreaper": everything that the command starts stays below it, in whatever
//! process group or session. It is a copy of the wrapper, deaf to signals, in a process group of its own unless the command is
//! in the wrapper's. A pipe's end means to it that the wrapper is gone; a timer on CLOCK_BOOTTIME, which the wrapper sets
//! ahead as the lease is renewed, that the lease is over. What becomes of the command, and when nothing is left of what it
//! started, it says through a second pipe: only the process that reaps can tell. See `watcher` for its life.

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
use crate::sys::{self, SignalSet};
use crate::tree::Reach;
use crate::watcher;

/// How long to wait for the end of a guardian that was dismissed.
const FAREWELL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What a guardian is to start and to end.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) command: Command,
    pub(crate) placement: Placement,
    /// The signals that the command starts with blocked.
    pub(crate) mask: SignalSet,
    /// What ends with a wrapper that was killed.
    pub(crate) reach: Reach,
}

/// What a guardian says about the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// It runs, as this process.
    Started(Pid),
    /// It cannot be started: the number of the error.
    Refused(i32),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It ended. Its process id is not given to another process before the guardian is dismissed.
    Ended(Outcome),
    /// So much is left of what the command started.
    Left(Rest),
}

/// What is left of what a command started, once it has ended. It never becomes more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rest {
    /// Nothing.
    Nothing,
    /// What made a session of its own.
    Daemons,
    /// Perhaps others too.
    Unknown,
}

/// The length of an event in the pipe.
pub(crate) const EVENT: usize = 8;

/// How many are read at once. More are for the next turn: a command must not keep the wrapper busy with them.
const BATCH: usize = 64;

impl Event {
    pub(crate) fn encode(self) -> [u8; EVENT] {
        let (kind, value) = match self {
            Event::Started(pid) => (0, pid.as_raw_nonzero().get()),
            Event::Refused(error) => (1, error),
            Event::Stopped(signal) => (2, signal),
            Event::Ended(Outcome::Exited(code)) => (3, i32::from(code)),
            Event::Ended(Outcome::Killed(signal)) => (4, signal),
            Event::Left(rest) => (5, rest as i32),
        };
        (i64::from(kind) << 32 | i64::from(value)).to_ne_bytes()
    }

    fn decode(bytes: [u8; EVENT]) -> Option<Event> {
        let number = i64::from_ne_bytes(bytes);
        let value = i32::try_from(number & 0xffff_ffff).ok()?;
        match number >> 32 {
            0 => Pid::from_raw(value).map(Event::Started),
            1 => Some(Event::Refused(value)),
            2 => Some(Event::Stopped(value)),
            3 => u8::try_from(value).ok().map(|code| Event::Ended(Outcome::Exited(code))),
            4 => Some(Event::Ended(Outcome::Killed(value))),
            5 => [Rest::Nothing, Rest::Daemons, Rest::Unknown]
                .get(usize::try_from(value).ok()?)
                .copied()
                .map(Event::Left),
            _ => None,
        }
    }
}

/// The wrapper's end of a guardian. Dropping it kills the command.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: Pid,
    control: OwnedFd,
    timer: OwnedFd,
    events: AsyncFd<OwnedFd>,
}

impl Guardian {
    /// Starts a guardian, which starts the command, and kills it after `left` unless told otherwise.
    pub(crate) fn start(charge: Charge, left: Option<Duration>) -> io::Result<Guardian> {
        let (orders, control) = pipe_with(PipeFlags::CLOEXEC)?;
        // Neither waits for the other: one of them may be stopped.
        let (events, teller) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        // Before the command runs: we may be stopped right after.
        set(&timer, left)?;
        let children = SignalSet::of(&[Signal::CHILD]).descriptor()?;
        let pid = sys::fork(|| {
            watcher::watch(
                charge,
                watcher::Ends { orders: &orders, timer: &timer, children: &children, teller: &teller },
            );
        })?;
        Ok(Guardian { pid, control, timer, events: sys::readable(events)? })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// What it says next; `None` when it is gone.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&self) -> io::Result<Option<Vec<Event>>> {
        loop {
            let mut ready = self.events.readable().await?;
            match ready.try_io(|events| read_events(events.get_ref())) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(events) => return events,
                Err(_would_block) => {}
            }
        }
    }

    /// What it has said already, without waiting; `None` when it is gone.
    pub(crate) fn ready(&self) -> io::Result<Option<Vec<Event>>> {
        match read_events(self.events.get_ref()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Some(Vec::new()))
            }
            events => events,
        }
    }

    /// Sets when to kill, from now; `None`: not by time.
    pub(crate) fn kill_after(&self, left: Option<Duration>) -> io::Result<()> {
        set(&self.timer, left)
    }

    /// Continues it, should it have been stopped: it has to tell how the command ends. To be called only while it was
    /// not reaped.
    pub(crate) fn wake(&self) {
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Ends the guardian without killing a process, and reaps it: the first process of a container may not do that.
    pub(crate) fn dismiss(self) {
        // Should it be gone already, and perhaps reaped, then there is nothing to dismiss.
        if rustix::io::write(self.control.as_fd(), &[0]).is_ok() {
            self.wake();
        }
        // No event is asked for, so that only the end of the pipe is one.
        let mut end = [PollFd::new(self.events.get_ref(), PollFlags::empty())];
        if poll(&mut end, Some(&FAREWELL)) == Ok(1) {
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

fn read_events(pipe: &OwnedFd) -> io::Result<Option<Vec<Event>>> {
    let mut bytes = [0; EVENT * BATCH];
    let length = rustix::io::read(pipe, &mut bytes)?;
    // Each is written in one piece, and so read in one piece.
    let events = bytes[..length].as_chunks().0.iter().filter_map(|bytes| Event::decode(*bytes));
    Ok((length > 0).then(|| events.collect()))
}

fn set(timer: &OwnedFd, left: Option<Duration>) -> io::Result<()> {
    // All zero would mean "never".
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
    fn an_event_survives_the_pipe() {
        let outcomes = [Outcome::Exited(0), Outcome::Exited(255), Outcome::Killed(9)].map(Event::Ended);
        let others = [Event::Started(Pid::from_raw(4711).unwrap()), Event::Refused(2), Event::Stopped(20)];
        let rests = [Rest::Nothing, Rest::Daemons, Rest::Unknown].map(Event::Left);
        for event in outcomes.into_iter().chain(others).chain(rests) {
            assert_eq!(Event::decode(event.encode()), Some(event));
        }
        assert_eq!(Event::decode([0xff; EVENT]), None);
    }
}
