//! One direction of one connection.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::flow::{Direction, Flow};
use super::shared::{Shared, State};

/// How many bytes may wait in the proxy before it stops reading; more than any test sends.
const MOST_HELD: usize = 16 << 20;

/// How many bytes are read at once.
const CHUNK: usize = 16 << 10;

struct Chunk {
    came: Instant,
    bytes: VecDeque<u8>,
}

/// Moves bytes from one socket to another by the rules.
pub(super) struct Pump {
    direction: Direction,
    connection: u64,
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    shared: Arc<Shared>,
    queue: VecDeque<Chunk>,
    queued: usize,
    /// When the sender ended its direction.
    ended: Option<Instant>,
}

/// What a pump waits for, besides a change of the rules.
#[derive(Default)]
struct Interest {
    to_read: bool,
    to_write: bool,
    until: Option<Instant>,
}

enum Step {
    Wait(Interest),
    Done,
}

impl Pump {
    pub(super) fn new(
        direction: Direction,
        connection: u64,
        from: &Arc<TcpStream>,
        to: &Arc<TcpStream>,
        shared: &Arc<Shared>,
    ) -> Pump {
        let (from, to, shared) = (from.clone(), to.clone(), shared.clone());
        Pump { direction, connection, from, to, shared, queue: VecDeque::new(), queued: 0, ended: None }
    }

    /// Runs until the direction has ended.
    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        let mut rules = shared.rules();
        loop {
            rules.borrow_and_update();
            // Sockets are used only inside `act`, without waiting, so the rules cannot change in the middle of a byte.
            let Step::Wait(interest) = shared.act(|state| self.step(state)) else { break };
            let until = interest.until.unwrap_or_else(Instant::now);
            tokio::select! {
                _ = rules.changed() => {}
                _ = self.from.readable(), if interest.to_read => {}
                _ = self.to.writable(), if interest.to_write => {}
                () = sleep_until(until), if interest.until.is_some() => {}
            }
        }
        let lost = self.queued as u64;
        shared.act(|state| state.traffic[self.direction].dropped += lost);
    }

    fn step(&mut self, state: &mut State) -> Step {
        if self.connection < state.cut_below {
            return Step::Done;
        }
        let flow = state.flows[self.direction];
        let mut interest = Interest::default();
        if flow.reads() {
            interest.to_read = self.read(state);
        }
        if flow == Flow::Drop {
            self.swallow(state);
        }
        loop {
            let Some(due) = self.due(flow) else { return Step::Wait(interest) };
            if due > Instant::now() {
                interest.until = Some(due);
                return Step::Wait(interest);
            }
            if self.queue.is_empty() {
                let _ = shutdown(&*self.to, Shutdown::Write);
                return Step::Done;
            }
            match self.write(state) {
                Ok(()) => {}
                Err(ErrorKind::WouldBlock) => {
                    interest.to_write = true;
                    return Step::Wait(interest);
                }
                Err(_) => return Step::Done,
            }
        }
    }

    /// Returns when the next chunk may leave; `None` while there is none or none may leave.
    fn due(&self, flow: Flow) -> Option<Instant> {
        let came = self.queue.front().map(|chunk| chunk.came).or(self.ended)?;
        match flow {
            Flow::Pass | Flow::Drop => Some(came),
            Flow::Delay(by) => Some(came + by),
            Flow::Freeze | Flow::Hold => None,
        }
    }

    /// Reads the available bytes; returns whether more may come.
    fn read(&mut self, state: &mut State) -> bool {
        let mut buffer = [0; CHUNK];
        while self.ended.is_none() && self.queued < MOST_HELD {
            match self.from.try_read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Ok(0) | Err(_) => self.ended = Some(Instant::now()),
                Ok(count) => {
                    state.traffic[self.direction].received += count as u64;
                    self.queued += count;
                    let bytes = buffer[..count].iter().copied().collect();
                    self.queue.push_back(Chunk { came: Instant::now(), bytes });
                }
            }
        }
        false
    }

    fn swallow(&mut self, state: &mut State) {
        state.traffic[self.direction].dropped += self.queued as u64;
        self.queue.clear();
        self.queued = 0;
    }

    /// Forwards the first chunk as far as the socket and the rules allow. An error ends the direction.
    fn write(&mut self, state: &mut State) -> Result<(), ErrorKind> {
        let chunk = self.queue.front_mut().expect("looked at before");
        let bytes = chunk.bytes.make_contiguous();
        let left = state.cut_after[self.direction].unwrap_or(u64::MAX);
        let most = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let written = if most == 0 { 0 } else { self.to.try_write(&bytes[..most]).map_err(|error| error.kind())? };
        chunk.bytes.drain(..written);
        if chunk.bytes.is_empty() {
            self.queue.pop_front();
        }
        self.queued -= written;
        state.traffic[self.direction].forwarded += written as u64;
        if let Some(left) = &mut state.cut_after[self.direction] {
            *left -= written as u64;
            if *left == 0 {
                state.cut_after[self.direction] = None;
                return Err(self.cut_both());
            }
        }
        Ok(())
    }

    /// Ends the connection in both directions without a reset, which could overtake the last bytes that may pass.
    fn cut_both(&self) -> ErrorKind {
        let _ = shutdown(&*self.to, Shutdown::Both);
        let _ = shutdown(&*self.from, Shutdown::Both);
        ErrorKind::ConnectionAborted
    }
}
