//! A descriptor that lines are written to without waiting for its reader.
//!
//! A pipe that is not read is full one day, and a terminal can be held by a key; a thread that writes to it then waits.
//! Making the descriptor non-blocking would make it so for all that share it, the command among them. So a thread of its own
//! waits. Where no thread can be started, because the limit of processes is reached, a line is written that certainly fits.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::sys::SignalSet;

/// How many lines wait for the reader; more are left out.
const ROOM: usize = 256;

/// What a pipe that is ready takes without waiting: the kernel's PIPE_BUF.
const PIECE: usize = 4_096;

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Sink {
    state: State,
    /// Lines for which there was no room since the last one that was taken.
    left_out: u64,
}

#[derive(Debug)]
enum State {
    /// There is no thread: no line was written yet, or none could be started.
    Idle(Arc<OwnedFd>),
    Open(Writer),
    /// Nothing more is taken; what was taken is being written.
    Closed(Option<Receiver<Infallible>>),
}

/// The thread that writes.
#[derive(Debug)]
struct Writer {
    queue: SyncSender<String>,
    /// Disconnected when it has ended.
    end: Receiver<Infallible>,
}

impl Sink {
    /// A sink for `descriptor`, which is not touched before the first line.
    pub(crate) fn new(descriptor: OwnedFd) -> Sink {
        Sink { state: State::Idle(Arc::new(descriptor)), left_out: 0 }
    }

    /// Has `line` written, in one piece; leaves it out when too many wait already. `gap` says how many were left out, in
    /// their place.
    pub(crate) fn write(&mut self, line: String, gap: impl FnOnce(u64) -> String) {
        if let State::Idle(descriptor) = &self.state
            && let Some(writer) = Writer::start(descriptor.clone())
        {
            self.state = State::Open(writer);
        }
        if self.left_out > 0 && self.take(gap(self.left_out)) {
            self.left_out = 0;
        }
        if self.left_out > 0 || !self.take(line) {
            self.left_out += 1;
        }
    }

    /// Whether there was room for `line`.
    fn take(&self, line: String) -> bool {
        match &self.state {
            State::Idle(descriptor) => write_at_once(descriptor, line.as_bytes()),
            State::Open(writer) => writer.queue.try_send(line).is_ok(),
            State::Closed(_) => false,
        }
    }

    /// Takes nothing more.
    pub(crate) fn close(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Closed(None)) {
            State::Open(Writer { end, .. }) => State::Closed(Some(end)),
            other => other,
        };
    }

    /// Waits until everything is written that was taken before [`Sink::close`], but not longer than `until`.
    pub(crate) fn await_end(&self, until: Instant) {
        if let State::Closed(Some(end)) = &self.state {
            let _ = end.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }
}

impl Writer {
    /// Starts the thread; `None` when there can be none.
    fn start(descriptor: Arc<OwnedFd>) -> Option<Writer> {
        let (queue, lines) = sync_channel::<String>(ROOM);
        let (alive, end) = channel();
        let write = move || {
            let _alive = alive;
            lines.iter().for_each(|line| write_whole(&descriptor, line.as_bytes()));
        };
        // No signal is for this thread: those of the process are for the main one.
        let mask = SignalSet::full().block().ok()?;
        let started = thread::Builder::new().name("distlock-notes".into()).spawn(write);
        let _ = mask.set();
        started.ok().map(|_| Writer { queue, end })
    }
}

/// Writes all of it, unless the reader is gone. In one call if possible: lines of several processes on the same descriptor
/// do not mix then.
fn write_whole(descriptor: &OwnedFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(descriptor, bytes) {
            Ok(0) => return,
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            // Another process that shares it made it non-blocking.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(descriptor, PollFlags::OUT)], None);
            }
            Err(_) => return,
        }
    }
}

/// Writes as much as fits without waiting. `false`: not all of it did.
fn write_at_once(descriptor: &OwnedFd, mut bytes: &[u8]) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while !bytes.is_empty() {
        let mut ready = [PollFd::new(descriptor, PollFlags::OUT)];
        if poll(&mut ready, Some(&now)) != Ok(1) || !ready[0].revents().contains(PollFlags::OUT) {
            return false;
        }
        match rustix::io::write(descriptor, &bytes[..bytes.len().min(PIECE)]) {
            Ok(length @ 1..) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_not_read_is_counted_and_the_rest_is_in_order() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::new(writer);
        let long = |number: usize| format!("{number}{}\n", " ".repeat(1_000));
        let total = ROOM * 4;
        (0..total).for_each(|number| sink.write(long(number), |missing| format!("{missing} missing\n")));
        let start = Instant::now();
        sink.close();
        sink.await_end(start + Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20), "it is not read");
        let missed = sink.left_out;
        assert!(missed > 0);
        drop(sink);
        let lines: Vec<_> = BufReader::new(std::fs::File::from(reader)).lines().map(Result::unwrap).collect();
        let mut next = 0;
        for line in &lines {
            match line.strip_suffix(" missing") {
                Some(missing) => next += missing.parse::<u64>().unwrap(),
                None => {
                    assert_eq!(line.trim_end(), next.to_string(), "in order");
                    next += 1;
                }
            }
        }
        assert_eq!(next + missed, total as u64);
    }

    #[test]
    fn a_gap_is_told_before_the_next_line() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::new(writer);
        sink.left_out = 3;
        sink.write("next\n".into(), |missing| format!("{missing} missing\n"));
        sink.close();
        sink.await_end(Instant::now() + Duration::from_secs(60));
        drop(sink);
        let lines: Vec<_> = BufReader::new(std::fs::File::from(reader)).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["3 missing", "next"]);
    }

    #[test]
    fn without_a_thread_a_line_is_written_only_where_it_fits() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let line = [b'x'; 1_000];
        // It would wait for ever otherwise: there is no reader yet.
        let written = (0..1_000).take_while(|_| write_at_once(&writer, &line)).count();
        assert!((16..1_000).contains(&written), "{written} lines");
        drop(writer);
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(reader), &mut all).unwrap();
        assert_eq!(all.len(), written * line.len(), "whole lines");
    }
}
