//! Several requests at the same time, in the caller's task.

use std::future::poll_fn;
use std::task::Poll;

/// Runs all futures at the same time. Returns their results in the order of the futures.
pub(in crate::engines) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut open: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, result) in open.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *result = Some(ready);
            }
        }
        if open.iter().all(|(_, result)| result.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    open.into_iter().filter_map(|(_, result)| result).collect()
}
