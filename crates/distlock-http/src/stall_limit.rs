//! A connection that fails when its peer stops reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a peer may read nothing: its unsent data is kept in memory.
const LONGEST_STALL: Duration = Duration::from_secs(20);

/// A connection that fails when nothing can be written for [`LONGEST_STALL`].
pub(crate) struct StallLimit<W> {
    wire: W,
    /// Runs while data waits to be written.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<W> StallLimit<W> {
    pub(crate) fn new(wire: W) -> StallLimit<W> {
        StallLimit { wire, stall: None }
    }

    /// Passes on the result of a write; an error once writing has been blocked for too long.
    fn limit<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(LONGEST_STALL)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for StallLimit<W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_read(context, buffer)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for StallLimit<W> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.wire).poll_write(context, bytes);
        self.limit(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.wire).poll_flush(context);
        self.limit(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.wire).poll_shutdown(context);
        self.limit(shut, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.wire).poll_write_vectored(context, pieces);
        self.limit(written, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_reads_is_disconnected_and_a_slow_one_is_not() {
        let (wire, mut reader) = duplex(16);
        let mut stall_limit = StallLimit::new(wire);
        let slow = tokio::spawn(async move {
            let mut piece = [0; 16];
            for _ in 0..5 {
                sleep(LONGEST_STALL / 2).await;
                reader.read_exact(&mut piece).await.unwrap();
            }
            reader
        });
        let began = Instant::now();
        stall_limit.write_all(&[7; 96]).await.expect("the peer reads slowly");
        assert!(began.elapsed() > LONGEST_STALL * 2);
        let _reader = slow.await.unwrap();
        let began = Instant::now();
        let error = timeout(LONGEST_STALL * 2, stall_limit.write_all(&[7; 96])).await.expect("cut off").unwrap_err();
        assert_eq!((error.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, LONGEST_STALL.as_secs()));
    }
}
