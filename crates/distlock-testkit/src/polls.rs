//! Drops futures before they complete.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Polls `future` at most `times` times, yielding in between, then drops it. Returns its output if it completed.
pub async fn poll_times<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        if polled.is_pending() && left == 0 {
            return Poll::Ready(None);
        }
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_is_dropped_after_so_many_polls() {
        let two_yields = || async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(poll_times(0, two_yields()).await, None);
        assert_eq!(poll_times(2, two_yields()).await, None);
        assert_eq!(poll_times(3, two_yields()).await, Some(7));
    }
}
