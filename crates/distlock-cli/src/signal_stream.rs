//! The signals that are sent to this process, one after the other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;

use crate::sys::{self, SignalSet};

/// What is passed on to the child.
pub const FORWARDED: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// What else is read here.
const OURS: [Signal; 3] = [Signal::CHILD, Signal::CONT, Signal::TSTP];

/// The size of the kernel's `signalfd_siginfo`.
const RECORD: usize = 128;

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Which one.
    pub signal: Signal,
    /// Sent by the kernel, as by a key of the terminal, and not by a process.
    pub from_kernel: bool,
    /// The process that sent it; 0 when that is outside of this PID namespace.
    pub sender: i32,
}

/// The signals of this process.
///
/// They are blocked and read from a descriptor: what each one does stays as the process inherited it, so that a child
/// under `nohup` still ignores SIGHUP, and the kernel says who sent what.
pub struct Signals {
    descriptor: AsyncFd<OwnedFd>,
    waiting: VecDeque<Delivery>,
    inherited_mask: SignalSet,
}

impl Signals {
    /// Takes the signals over. To be called on the main thread, in a runtime, before other threads are started: a
    /// thread that does not block them would die of them.
    ///
    /// # Errors
    /// When the kernel has no descriptor left to give.
    pub fn take_over() -> io::Result<Signals> {
        let all: Vec<Signal> = FORWARDED.iter().chain(&OURS).copied().collect();
        let set = SignalSet::of(&all);
        // An inherited "ignore" would have the kernel reap our children before we see how they ended.
        sys::reset_action(Signal::CHILD.as_raw());
        let inherited_mask = set.block()?;
        // Not read, only kept from stopping us when the terminal is taken back from the child.
        SignalSet::of(&[Signal::TTOU, Signal::TTIN]).block()?;
        let descriptor = sys::readable(set.descriptor()?)?;
        Ok(Signals { descriptor, waiting: VecDeque::new(), inherited_mask })
    }

    /// What was blocked before; what the child starts with.
    pub(crate) fn inherited_mask(&self) -> SignalSet {
        self.inherited_mask
    }

    /// The next signal.
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

    /// Has these come again, before all others.
    pub(crate) fn put_back(&mut self, deliveries: &[Delivery]) {
        deliveries.iter().rev().for_each(|delivery| self.waiting.push_front(*delivery));
    }

    /// Stops this process as `signal` would by default, until it is continued. `false`: the kernel did not stop it,
    /// because no shell is there to continue it.
    pub(crate) fn stop(&mut self, signal: Signal) -> io::Result<bool> {
        self.drain()?;
        let continued = |waiting: &VecDeque<Delivery>| waiting.iter().filter(|it| it.signal == Signal::CONT).count();
        let before = continued(&self.waiting);
        let only = SignalSet::of(&[signal]);
        rustix::process::kill_process(rustix::process::getpid(), signal)?;
        // Every thread has it blocked; the process stops in the middle of this line.
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

/// The fields at the beginning of `signalfd_siginfo`: signal number, errno, code, process.
fn parse(record: &[u8]) -> Option<Delivery> {
    let word = |at: usize| record[at..].first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
    let signal = Signal::from_named_raw(word(0)?)?;
    // Codes above zero are the kernel's own; kill(2) and its kin have zero or less.
    Some(Delivery { signal, from_kernel: word(8)? > 0, sender: word(12)? })
}
