//! Unmeasured time: any wait may have been long enough.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};

/// The timeout fired.
#[derive(Debug)]
pub struct Elapsed(());

/// Runs `future`. The timeout may fire whenever it is pending.
///
/// # Errors
/// The timeout fired.
pub async fn timeout<F: Future>(_length: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending if thread_rng().gen_ratio(1, 4) => Poll::Ready(Err(Elapsed(()))),
        Poll::Pending => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// Yields to others.
pub async fn sleep(_length: Duration) {
    shuttle::future::yield_now().await;
}
