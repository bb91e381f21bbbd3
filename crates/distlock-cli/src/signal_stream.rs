//! The signals sent to this process, as a stream.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;

use crate::sys::{self, SignalSet};

/// The signals that are forwarded to the child.
pub const FORWARDED: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The other signals that are read here.
const HANDLED: [Signal; 3] = [Signal::CHILD, Signal::CONT, Signal::TSTP];

/// The size of the kernel's `signalfd_siginfo`.
const RECORD: usize = 128;

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Which one.
    pub signal: Signal,
    /// Sent by the kernel, for example by a terminal key, and not by a process.
    pub from_kernel: bool,
    /// The process that sent it; 0 when the sender is outside this PID namespace.
    pub sender: i32,
}

/// The signals of this process, in order.
///
/// They are blocked and read from a descriptor. So each keeps the action that the process inherited: a child under
/// `nohup` still ignores SIGHUP. And the kernel reports the sender.
pub struct Signals {
    descriptor: AsyncFd<OwnedFd>,
    waiting: VecDeque<Delivery>,
    inherited_mask: SignalSet,
}

impl Signals {
    /// Blocks the signals and opens the descriptor. Call this on the main thread, in a runtime, before other threads
    /// are started: a signal would end a process with a thread that does not block it.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn take_over() -> io::Result<Signals> {
        let all: Vec<Signal> = FORWARDED.iter().chain(&HANDLED).copied().collect();
        let set = SignalSet::of(&all);
        // With an inherited "ignore" the kernel would reap the children, and their status would be lost.
        sys::reset_action(Signal::CHILD.as_raw());
        let inherited_mask = set.block()?;
        // Blocked but not read: they would stop the wrapper when it takes the terminal back from the child.
        SignalSet::of(&[Signal::TTOU, Signal::TTIN]).block()?;
        let descriptor = sys::readable(set.descriptor()?)?;
        Ok(Signals { descriptor, waiting: VecDeque::new(), inherited_mask })
    }

    /// Returns the mask from before, with which the child starts.
    pub(crate) fn inherited_mask(&self) -> SignalSet {
        self.inherited_mask
    }

    /// Returns the next signal.
    ///
    /// # Cancel safety
    /// Dropping the future loses no signal.
    pub async fn next(&mut self) -> io::Result<Delivery> {
        loop {
            if let Some(delivery) = self.waiting.pop_front() {
                return Ok(delivery);
            }
            let mut ready = self.descriptor.readable().await?;
            if let Ok(read) = ready.try_io(|descriptor| read_into(&mut self.waiting, descriptor.get_ref())) {
                read?;
            }
        }
    }

    /// Returns these signals again, before all others.
    pub(crate) fn put_back(&mut self, deliveries: &[Delivery]) {
        deliveries.iter().rev().for_each(|delivery| self.waiting.push_front(*delivery));
    }

    /// Stops this process as `signal` would by default, until it is continued. Returns `false` when the kernel did not
    /// stop it because no shell could continue it.
    pub(crate) fn stop(&mut self, signal: Signal) -> io::Result<bool> {
        self.drain()?;
        let continued = |waiting: &VecDeque<Delivery>| waiting.iter().filter(|it| it.signal == Signal::CONT).count();
        let before = continued(&self.waiting);
        let only = SignalSet::of(&[signal]);
        rustix::process::kill_process(rustix::process::getpid(), signal)?;
        // Every other thread blocks it: the process stops inside this call.
        only.unblock()?;
        only.block()?;
        self.drain()?;
        Ok(continued(&self.waiting) > before)
    }

    fn drain(&mut self) -> io::Result<()> {
        match read_into(&mut self.waiting, self.descriptor.get_ref()) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

fn read_into(waiting: &mut VecDeque<Delivery>, descriptor: &OwnedFd) -> io::Result<()> {
    let mut records = [0; RECORD * 16];
    let length = rustix::io::read(descriptor, &mut records)?;
    waiting.extend(records[..length].chunks_exact(RECORD).filter_map(parse));
    Ok(())
}

/// Parses the first fields of `signalfd_siginfo`: signal number, errno, code, process.
fn parse(record: &[u8]) -> Option<Delivery> {
    let word = |at: usize| record[at..].first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
    let signal = Signal::from_named_raw(word(0)?)?;
    // Codes above zero are the kernel's; kill(2) and related calls send zero or less.
    Some(Delivery { signal, from_kernel: word(8)? > 0, sender: word(12)? })
}
