//! A connection whose other end must read: not fast, but ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Who takes nothing for so long is cut off: what waits for it is kept in memory.
const LONGEST_STALL: Duration = Duration::from_secs(20);

/// A connection that fails when nothing can be written for too long.
pub(crate) struct Patient<W> {
    wire: W,
    /// Runs while something waits to be written.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<W> Patient<W> {
    pub(crate) fn new(wire: W) -> Patient<W> {
        Patient { wire, stall: None }
    }

    /// Whatever came out of writing; an error once that has been nothing for too long.
    fn judge<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(LONGEST_STALL)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Patient<W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_read(context, buffer)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Patient<W> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.wire).poll_write(context, bytes);
        self.judge(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.wire).poll_flush(context);
        self.judge(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.wire).poll_shutdown(context);
        self.judge(shut, context)
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
        self.judge(written, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_never_reads_is_cut_off_and_who_reads_slowly_is_not() {
        let (wire, mut reader) = duplex(16);
        let mut patient = Patient::new(wire);
        let slow = tokio::spawn(async move {
            let mut piece = [0; 16];
            for _ in 0..5 {
                sleep(LONGEST_STALL / 2).await;
                reader.read_exact(&mut piece).await.unwrap();
            }
            reader
        });
        let began = Instant::now();
        patient.write_all(&[7; 96]).await.expect("it reads, if slowly");
        assert!(began.elapsed() > LONGEST_STALL * 2);
        let _reader = slow.await.unwrap();
        let began = Instant::now();
        let error = timeout(LONGEST_STALL * 2, patient.write_all(&[7; 96])).await.expect("cut off").unwrap_err();
        assert_eq!((error.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, LONGEST_STALL.as_secs()));
    }
}
