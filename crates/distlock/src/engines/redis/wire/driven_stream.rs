//! A stream that callers write to and one task, the driver, reads from.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engines::shared::dial::BoxStream;

/// How much room for requests is kept when they are written.
const KEPT: usize = 64 << 10;

/// A stream, and what it has not taken yet.
pub(super) struct DrivenStream {
    /// `None` once the socket is closed.
    io: Option<BoxStream>,
    /// What is being written, and how much of it the stream has taken.
    output: Vec<u8>,
    taken: usize,
    /// Whether the stream has sent all that it has taken.
    is_flushed: bool,
    /// Why the stream takes nothing any more. What has come before is still read.
    broken: Option<Broken>,
    /// Wakes the driver. It alone is woken by the stream.
    driver: Waker,
}

/// Why a stream takes nothing any more.
struct Broken {
    cause: io::Error,
    /// Ready when the runtime has looked whether there is something to read. `None` once it is.
    looking: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl DrivenStream {
    pub(super) fn new(io: BoxStream) -> DrivenStream {
        DrivenStream {
            io: Some(io),
            output: Vec::new(),
            taken: 0,
            is_flushed: true,
            broken: None,
            driver: Waker::noop().clone(),
        }
    }

    pub(super) fn driver(&self) -> Waker {
        self.driver.clone()
    }

    /// Reads what has come into `room`, and returns how much that is; an error at the end. Also writes what the stream did not
    /// take before. Only the driver calls this: from now on it is woken.
    pub(super) fn read(&mut self, context: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.driver.will_wake(context.waker()) {
            self.driver = context.waker().clone();
        }
        self.advance();
        let Some(io) = &mut self.io else { return Poll::Ready(Err(closed())) };
        let mut buffer = ReadBuf::new(room);
        let read = match &mut self.broken {
            // What has come before is read, whatever the task's budget.
            Some(Broken { looking, .. }) => {
                if let Some(looking) = looking {
                    ready!(looking.as_mut().poll(context));
                }
                *looking = None;
                unbudgeted(context, |context| Pin::new(&mut *io).poll_read(context, &mut buffer))
            }
            None => Pin::new(io).poll_read(context, &mut buffer),
        };
        let why_broken = |broken: &mut Option<Broken>| broken.take().map(|broken| broken.cause);
        let broken = match read {
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => return Poll::Ready(Ok(buffer.filled().len())),
            Poll::Ready(Ok(())) => why_broken(&mut self.broken).unwrap_or_else(closed),
            Poll::Ready(Err(error)) => error,
            Poll::Pending => match why_broken(&mut self.broken) {
                Some(error) => error,
                None => return Poll::Pending,
            },
        };
        Poll::Ready(Err(broken))
    }

    /// Takes the stream out, to be closed by dropping it, and what wakes the driver.
    pub(super) fn close(&mut self) -> (Option<BoxStream>, Waker) {
        (self.output, self.taken) = (Vec::new(), 0);
        (self.io.take(), self.driver.clone())
    }

    /// Writes as much as the stream takes of `output` and of what was left before. The driver is woken when it takes more, and
    /// when it is broken. Returns an empty buffer.
    pub(super) fn write(&mut self, mut output: Vec<u8>) -> Vec<u8> {
        if self.taken == self.output.len() {
            self.taken = 0;
            self.output.clear();
            std::mem::swap(&mut self.output, &mut output);
        } else {
            self.output.append(&mut output);
        }
        self.advance();
        output
    }

    fn advance(&mut self) {
        if self.broken.is_none()
            && let Err(error) = self.try_write()
        {
            self.broken = Some(Broken { cause: error, looking: Some(Box::pin(tokio::task::yield_now())) });
            self.driver.wake_by_ref();
        }
    }

    fn try_write(&mut self) -> io::Result<()> {
        let Some(io) = &mut self.io else { return Ok(()) };
        let context = &mut Context::from_waker(&self.driver);
        while self.taken < self.output.len() {
            let left = &self.output[self.taken..];
            match unbudgeted(context, |context| Pin::new(&mut *io).poll_write(context, left)) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => (self.taken, self.is_flushed) = (self.taken + length, false),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    // Not each time: what is left is moved.
                    if self.taken > KEPT && 2 * self.taken > self.output.len() {
                        self.output.drain(..self.taken);
                        self.taken = 0;
                    }
                    return Ok(());
                }
            }
        }
        self.taken = 0;
        self.output.clear();
        self.output.shrink_to(KEPT);
        if !self.is_flushed
            && let Poll::Ready(flushed) = unbudgeted(context, |context| Pin::new(&mut *io).poll_flush(context))
        {
            flushed?;
            self.is_flushed = true;
        }
        Ok(())
    }
}

/// Polls without the budget of the task that runs: it may be a caller's, and the stream wakes the driver's.
fn unbudgeted<T>(context: &mut Context<'_>, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    pin!(tokio::task::coop::unconstrained(poll_fn(poll))).poll(context)
}

pub(super) fn closed() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
