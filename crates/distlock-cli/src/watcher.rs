//! The guardian's life.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, waitid, waitpid};
use rustix::time::Timespec;

use crate::child::{self, Child, Outcome, Placement};
use crate::guardian::{Charge, Event, Rest};
use crate::sys::{self, SignalSet};
use crate::tree::{self, Reach};

/// How long to go on killing: a process in the middle of a system call that cannot be interrupted ends later.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How often to look whether those that were killed have ended.
const KILL_POLL: Duration = Duration::from_millis(5);

/// How soon to say again what the wrapper had no room for, and to look again at what the command left: most of it ends as a
/// child of ours, some as another's.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The guardian's descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// A byte dismisses it, the end means that the wrapper is gone.
    pub(crate) orders: &'a OwnedFd,
    /// Runs out with the lease.
    pub(crate) timer: &'a OwnedFd,
    /// Readable when a child has ended or was stopped.
    pub(crate) children: &'a OwnedFd,
    /// Where events are written.
    pub(crate) teller: &'a OwnedFd,
}

/// Starts the command, and returns when there is nothing left to watch. For a process of its own.
pub(crate) fn watch(charge: Charge, ends: Ends<'_>) {
    let _ = rustix::thread::set_name(c"distlock-guard");
    // Neither the keys of a terminal, nor signals to the wrapper's group, nor a pipe that the wrapper does not read any more
    // are to end or stop us.
    let _ = SignalSet::full().block();
    let Charge { command, placement, mask, reach } = charge;
    // Whatever is orphaned below comes here.
    let ready = rustix::process::set_child_subreaper(Some(getpid()));
    let ready = ready.and_then(|()| match placement {
        // Out of reach of signals to the wrapper's group.
        Placement::OwnGroup => rustix::process::setpgid(None, None),
        // A parent in another group of the session would be to the kernel a shell that continues what Ctrl-Z stops.
        Placement::Foreground => Ok(()),
    });
    let child = match ready.map_err(io::Error::from).and_then(|()| Child::spawn(command, placement, mask)) {
        Ok(child) => child,
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            return tell(ends.teller.as_fd(), Event::Refused(number)).unwrap_or_default();
        }
    };
    // What the command has is its own: its readers wait for its end, and not for ours.
    sys::close_all_but([ends.orders, ends.timer, ends.children, ends.teller].map(AsRawFd::as_raw_fd));
    let untold = VecDeque::from([Event::Started(child.pid)]);
    let mut watcher = Watcher { child, reach, ends, has_ended: false, rest: Rest::Unknown, untold };
    watcher.run();
}

fn tell(teller: BorrowedFd<'_>, event: Event) -> Result<(), Errno> {
    rustix::io::write(teller, &event.encode()).map(drop)
}

struct Watcher<'a> {
    child: Child,
    reach: Reach,
    ends: Ends<'a>,
    has_ended: bool,
    /// What is left of what the command started.
    rest: Rest,
    /// Events that must not get lost. There may be no room for them yet.
    untold: VecDeque<Event>,
}

impl Watcher<'_> {
    fn run(&mut self) {
        loop {
            self.say();
            let mut ready = [self.ends.orders, self.ends.timer, self.ends.children]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN));
            let is_busy = !self.untold.is_empty() || (self.has_ended && self.rest != Rest::Nothing);
            match poll(&mut ready, is_busy.then_some(&LOOK_AGAIN)) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return self.kill(),
            }
            let [orders, timer, children] = ready.map(|it| !it.revents().is_empty());
            if orders {
                match rustix::io::read(self.ends.orders, &mut [0; 1]) {
                    Ok(1) => return self.reap(),
                    Err(Errno::INTR) => {}
                    _ => return self.kill(),
                }
            }
            // Reading fails when the timer was set ahead just now.
            if timer && rustix::io::read(self.ends.timer, &mut [0; 8]).is_ok() {
                self.kill();
            }
            if children {
                // What ended is asked of the kernel: signals of one kind are merged.
                let _ = rustix::io::read(self.ends.children, &mut [0; 1_024]);
            }
            self.look_at_children();
        }
    }

    /// Tells what is untold, in its order.
    fn say(&mut self) {
        while let Some(event) = self.untold.front() {
            if tell(self.ends.teller.as_fd(), *event) == Err(Errno::AGAIN) {
                return;
            }
            self.untold.pop_front();
        }
    }

    /// Notes what became of the command and of what it left, and reaps the orphans.
    fn look_at_children(&mut self) {
        let had_ended = self.has_ended;
        let outcome = if tree::is_visible() { self.look_by_lists() } else { self.look_by_reaping() };
        self.has_ended |= outcome.is_some();
        if self.has_ended {
            self.look_at_rest();
        }
        // Behind what is known of the rest: the wrapper need not wait for what is gone.
        if let Some(outcome) = outcome.filter(|_| !had_ended) {
            self.untold.push_back(Event::Ended(outcome));
        }
    }

    fn look_by_lists(&mut self) -> Option<Outcome> {
        let look = |options| waitid(WaitId::Pid(self.child.pid), options | WaitIdOptions::NOHANG).ok().flatten();
        if let Some(signal) = look(WaitIdOptions::STOPPED).and_then(|status| status.stopping_signal()) {
            // One that gets lost is one of thousands, which the wrapper has not read.
            let _ = tell(self.ends.teller.as_fd(), Event::Stopped(signal));
        }
        for orphan in tree::children_of(getpid()).unwrap_or_default() {
            if orphan != self.child.pid {
                let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
            }
        }
        // It is not reaped: as long as it is there, dead, no other process and no other group gets its number.
        let status = look(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        let code = |code| Outcome::Exited(u8::try_from(code).unwrap_or(u8::MAX));
        let killed = || Outcome::Killed(status.terminating_signal().unwrap_or(Signal::KILL.as_raw()));
        Some(status.exit_status().map_or_else(killed, code))
    }

    /// As above, where children are not listed: only by reaping all of them are those found that have ended. The number
    /// of the command's group is not given away before the last process in it was reaped.
    fn look_by_reaping(&mut self) -> Option<Outcome> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let stopped = waitid(WaitId::Pid(self.child.pid), options).ok().flatten();
        if let Some(signal) = stopped.and_then(|status| status.stopping_signal()) {
            let _ = tell(self.ends.teller.as_fd(), Event::Stopped(signal));
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

    /// Notes when there is less left than before. Nothing is reaped while it looks.
    fn look_at_rest(&mut self) {
        let is_clear = |reach| tree::is_clear(getpid(), reach, &[]);
        let rest = match tree::is_visible() {
            true if is_clear(Reach::Everything) => Rest::Nothing,
            true if self.rest == Rest::Daemons || is_clear(Reach::Session) => Rest::Daemons,
            // Then only the number of the group tells whether the others in it are gone.
            false if self.child.is_reaped => Rest::Nothing,
            _ => Rest::Unknown,
        };
        if rest < self.rest {
            self.rest = rest;
            self.untold.push_back(Event::Left(rest));
        }
    }

    /// Takes note of the command's end, now that no signal is sent to it any more.
    fn reap(&mut self) {
        let _ = waitpid(Some(self.child.pid), WaitOptions::NOHANG);
    }

    /// Kills what is in reach and waits for its end.
    fn kill(&mut self) {
        let (me, start) = (getpid(), Instant::now());
        loop {
            // The whole group in one call, in which none of it can fork.
            self.child.signal(Signal::KILL);
            let refused: Vec<Pid> = tree::kill(me, self.reach);
            self.look_at_children();
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
