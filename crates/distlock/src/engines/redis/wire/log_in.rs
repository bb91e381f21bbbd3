//! Logging in: the client crate says who we are, and chooses protocol and database.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engines::redis::wire::driven_stream::closed;
use crate::engines::shared::dial::BoxStream;
use crate::types::sync::Mutex;

/// Logs in, and returns the stream. Nothing is left to be read from it: a server sends nothing that was not asked for before
/// there is a subscription.
pub(super) async fn log_in(info: &RedisConnectionInfo, stream: BoxStream) -> RedisResult<BoxStream> {
    let stream = Arc::new(Mutex::new(Some(stream)));
    let lent = Lent(stream.clone());
    drop(MultiplexedConnection::new_with_config(info, lent, AsyncConnectionConfig::new()).await?);
    let given_back = stream.lock().take();
    given_back.ok_or_else(|| closed().into())
}

/// A stream that is taken back.
struct Lent(Arc<Mutex<Option<BoxStream>>>);

impl Lent {
    fn poll<T>(&self, poll: impl FnOnce(Pin<&mut BoxStream>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.0.lock().as_mut().map_or_else(|| Poll::Ready(Err(closed())), |stream| poll(Pin::new(stream)))
    }
}

impl AsyncRead for Lent {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Lent {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(|stream| stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|stream| stream.poll_shutdown(context))
    }
}
