//! Logging in: the client crate says who we are, and chooses protocol and database.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::engines::shared::dial::BoxStream;
use crate::types::sync::Mutex;

/// Logs in, and returns the stream. Nothing is left to be read from it: a server sends nothing that was not asked for before
/// there is a subscription.
pub(super) async fn log_in(info: &RedisConnectionInfo, stream: BoxStream) -> RedisResult<BoxStream> {
    let stream = Arc::new(Mutex::new(stream));
    let lent = Lent(stream.clone());
    drop(MultiplexedConnection::new_with_config(info, lent, AsyncConnectionConfig::new()).await?);
    let given_back = std::mem::replace(&mut *stream.lock(), Box::new(tokio::io::empty()));
    Ok(given_back)
}

/// A stream that comes back when this is dropped.
struct Lent(Arc<Mutex<BoxStream>>);

impl AsyncRead for Lent {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(context, buffer)
    }
}

impl AsyncWrite for Lent {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(context)
    }
}
