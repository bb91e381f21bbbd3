//! Concurrent calls to several nodes. No call waits for another.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls in progress, by node number.
pub(crate) struct NodeCalls<T>(Vec<(usize, Call<T>)>);

impl<T> NodeCalls<T> {
    pub(crate) fn new<F>(calls: impl IntoIterator<Item = (usize, F)>) -> NodeCalls<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        NodeCalls(calls.into_iter().map(|(node, call)| (node, Box::pin(call) as Call<T>)).collect())
    }

    /// Returns how many nodes have not replied.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all nodes have replied.
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next reply; `None` when all nodes have replied.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, T)>> {
        for at in 0..self.0.len() {
            let (node, call) = &mut self.0[at];
            if let Poll::Ready(reply) = call.as_mut().poll(context) {
                let node = *node;
                drop(self.0.swap_remove(at));
                return Poll::Ready(Some((node, reply)));
            }
        }
        if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Takes replies like [`collect_until`], for `limit` at the longest.
    pub(crate) async fn collect(&mut self, limit: Duration, grace: Duration, take: impl FnMut(usize, T) -> bool) {
        let mut wait = pin!(sleep(limit));
        collect_until(wait.as_mut(), grace, |context| self.poll_next(context), take).await;
    }
}

/// Takes replies until `take` returns that they decide, until all have come, or until `wait` is over. Once they decide,
/// replies get another `grace` to arrive: waiting for them here costs less than in a task of their own.
pub(crate) async fn collect_until<T>(
    mut wait: Pin<&mut Sleep>,
    grace: Duration,
    mut next: impl FnMut(&mut Context<'_>) -> Poll<Option<(usize, T)>>,
    mut take: impl FnMut(usize, T) -> bool,
) {
    let (mut is_decided, mut is_graced) = (false, false);
    poll_fn(|context| {
        loop {
            match next(context) {
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Ready(Some((node, reply))) => is_decided |= take(node, reply),
                Poll::Pending if is_decided && grace.is_zero() => return Poll::Ready(()),
                Poll::Pending => {
                    if is_decided && !is_graced {
                        is_graced = true;
                        wait.set(sleep(grace));
                    }
                    return wait.as_mut().poll(context);
                }
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(ms: u64) -> u64 {
        sleep(Duration::from_millis(ms)).await;
        ms
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_does_not_wait_for_late_replies() {
        let start = tokio::time::Instant::now();
        let mut calls =
            NodeCalls::new([(0, after(5)), (1, after(60_000)), (2, after(10)), (3, after(11)), (4, after(900))]);
        let mut came = Vec::new();
        let limit = Duration::from_millis(100);
        calls
            .collect(limit, Duration::from_millis(2), |node, _| {
                came.push(node);
                came.len() >= 2
            })
            .await;
        assert_eq!(came, [0, 2, 3], "and the reply that came in the grace");
        assert!(start.elapsed() < Duration::from_millis(15), "{:?}", start.elapsed());
        assert_eq!(calls.0.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_decision_collecting_ends_with_the_limit() {
        let start = tokio::time::Instant::now();
        let mut calls = NodeCalls::new([(0, after(5)), (1, after(60_000))]);
        calls.collect(Duration::from_millis(100), Duration::from_millis(2), |_, _| false).await;
        assert_eq!(start.elapsed().as_millis(), 100);
        assert_eq!(calls.0[0].0, 1);
    }
}
