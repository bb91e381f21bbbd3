//! Writes lines to a descriptor without waiting for its reader.
//!
//! A pipe that is not read fills up, and a user can hold a terminal's output with a key; a thread that writes to it
//! then blocks. A non-blocking descriptor would become so for every process that shares it, the command included. So a
//! separate thread does the writing. Where no thread can be started, because the process limit is reached, only lines
//! that fit without blocking are written.

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

/// How many lines are queued; more are dropped.
const QUEUE_LENGTH: usize = 256;

/// How much a writable pipe takes without blocking: the kernel's PIPE_BUF.
const PIPE_BUF: usize = 4_096;

/// A queue of lines for one descriptor.
#[derive(Debug)]
pub(crate) struct Sink {
    state: State,
    /// Lines that were dropped since the last one that was queued.
    dropped: u64,
}

#[derive(Debug)]
enum State {
    /// No thread: no line was written yet, or no thread could be started.
    Idle(Arc<OwnedFd>),
    Open(Writer),
    /// No more lines are queued; the thread writes those in the queue.
    Closed(Option<Receiver<Infallible>>),
}

/// The writing thread.
#[derive(Debug)]
struct Writer {
    queue: SyncSender<String>,
    /// Disconnected when the thread has ended.
    end: Receiver<Infallible>,
}

impl Sink {
    /// Creates a sink for `descriptor`, which is not used before the first line.
    pub(crate) fn new(descriptor: OwnedFd) -> Sink {
        Sink { state: State::Idle(Arc::new(descriptor)), dropped: 0 }
    }

    /// Queues `line`, or drops it when the queue is full. `gap` formats the number of dropped lines, which is written
    /// in their place.
    pub(crate) fn write(&mut self, line: String, gap: impl FnOnce(u64) -> String) {
        if let State::Idle(descriptor) = &self.state
            && let Some(writer) = Writer::start(descriptor.clone())
        {
            self.state = State::Open(writer);
        }
        if self.dropped > 0 && self.enqueue(gap(self.dropped)) {
            self.dropped = 0;
        }
        if self.dropped > 0 || !self.enqueue(line) {
            self.dropped += 1;
        }
    }

    /// Queues `line`; `false` when there is no room.
    fn enqueue(&self, line: String) -> bool {
        match &self.state {
            State::Idle(descriptor) => write_without_blocking(descriptor, line.as_bytes()),
            State::Open(writer) => writer.queue.try_send(line).is_ok(),
            State::Closed(_) => false,
        }
    }

    /// Closes the queue.
    pub(crate) fn close(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Closed(None)) {
            State::Open(Writer { end, .. }) => State::Closed(Some(end)),
            other => other,
        };
    }

    /// Waits until the lines queued before [`Sink::close`] are written, but not longer than `until`.
    pub(crate) fn await_end(&self, until: Instant) {
        if let State::Closed(Some(end)) = &self.state {
            let _ = end.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }
}

impl Writer {
    /// Starts the thread; `None` when it cannot be started.
    fn start(descriptor: Arc<OwnedFd>) -> Option<Writer> {
        let (queue, lines) = sync_channel::<String>(QUEUE_LENGTH);
        let (alive, end) = channel();
        let write = move || {
            let _alive = alive;
            lines.iter().for_each(|line| write_whole(&descriptor, line.as_bytes()));
        };
        // The thread blocks all signals: the main thread handles those of the process.
        let mask = SignalSet::full().block().ok()?;
        let started = thread::Builder::new().name("distlock-notes".into()).spawn(write);
        let _ = mask.set();
        started.ok().map(|_| Writer { queue, end })
    }
}

/// Writes all bytes, unless the reader is gone. In one call if possible, so that lines of several processes on the
/// same descriptor do not mix.
fn write_whole(descriptor: &OwnedFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(descriptor, bytes) {
            Ok(0) => return,
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            // Another process that shares the descriptor made it non-blocking.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(descriptor, PollFlags::OUT)], None);
            }
            Err(_) => return,
        }
    }
}

/// Writes what fits without blocking; `false` when some bytes did not fit.
fn write_without_blocking(descriptor: &OwnedFd, mut bytes: &[u8]) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while !bytes.is_empty() {
        let mut ready = [PollFd::new(descriptor, PollFlags::OUT)];
        if poll(&mut ready, Some(&now)) != Ok(1) || !ready[0].revents().contains(PollFlags::OUT) {
            return false;
        }
        match rustix::io::write(descriptor, &bytes[..bytes.len().min(PIPE_BUF)]) {
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
    fn dropped_lines_are_counted_and_the_others_stay_in_order() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::new(writer);
        let long = |number: usize| format!("{number}{}\n", " ".repeat(1_000));
        let total = QUEUE_LENGTH * 4;
        (0..total).for_each(|number| sink.write(long(number), |missing| format!("{missing} missing\n")));
        let start = Instant::now();
        sink.close();
        sink.await_end(start + Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20), "returned before the time limit");
        let missed = sink.dropped;
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
    fn the_gap_is_reported_before_the_next_line() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::new(writer);
        sink.dropped = 3;
        sink.write("next\n".into(), |missing| format!("{missing} missing\n"));
        sink.close();
        sink.await_end(Instant::now() + Duration::from_secs(60));
        drop(sink);
        let lines: Vec<_> = BufReader::new(std::fs::File::from(reader)).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["3 missing", "next"]);
    }

    #[test]
    fn without_a_thread_only_lines_that_fit_are_written() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let line = [b'x'; 1_000];
        // There is no reader: a blocking write would never return.
        let written = (0..1_000).take_while(|_| write_without_blocking(&writer, &line)).count();
        assert!((16..1_000).contains(&written), "{written} lines");
        drop(writer);
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(reader), &mut all).unwrap();
        assert_eq!(all.len(), written * line.len(), "whole lines");
    }
}
