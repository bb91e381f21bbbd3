//! Requests to all nodes at once: each is answered when it is, and none waits for another.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

type Runner<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is asked of several nodes, by their numbers.
pub(crate) struct Race<T>(Vec<(usize, Runner<T>)>);

impl<T> Race<T> {
    pub(crate) fn new<F>(runners: impl IntoIterator<Item = (usize, F)>) -> Race<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        Race(runners.into_iter().map(|(node, runner)| (node, Box::pin(runner) as Runner<T>)).collect())
    }

    /// Whether all have answered.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next answer; `None` when all have answered.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, T)>> {
        for at in 0..self.0.len() {
            let (node, runner) = &mut self.0[at];
            if let Poll::Ready(answer) = runner.as_mut().poll(context) {
                let node = *node;
                drop(self.0.swap_remove(at));
                return Poll::Ready(Some((node, answer)));
            }
        }
        if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Takes answers as [`run_until`] says, for `limit` at the longest.
    pub(crate) async fn run(&mut self, limit: Duration, grace: Duration, take: impl FnMut(usize, T) -> bool) {
        let mut wait = pin!(sleep(limit));
        run_until(wait.as_mut(), grace, |context| self.poll_next(context), take).await;
    }
}

/// Takes answers until `take` says that they decide, until all have come, or until `wait` is over. Those that are about to
/// come get another `grace` when it is decided: it costs less than to wait for them elsewhere.
pub(crate) async fn run_until<T>(
    mut wait: Pin<&mut Sleep>,
    grace: Duration,
    mut next: impl FnMut(&mut Context<'_>) -> Poll<Option<(usize, T)>>,
    mut take: impl FnMut(usize, T) -> bool,
) {
    let mut is_decided = false;
    poll_fn(|context| {
        loop {
            match next(context) {
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Ready(Some((node, answer))) => {
                    if take(node, answer) && !is_decided {
                        is_decided = true;
                        wait.set(sleep(grace));
                    }
                }
                Poll::Pending => return wait.as_mut().poll(context),
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
    async fn a_decision_does_not_wait_for_those_who_are_late() {
        let start = tokio::time::Instant::now();
        let mut race = Race::new([(0, after(5)), (1, after(60_000)), (2, after(10)), (3, after(11)), (4, after(900))]);
        let mut came = Vec::new();
        let limit = Duration::from_millis(100);
        race.run(limit, Duration::from_millis(2), |node, _| {
            came.push(node);
            came.len() >= 2
        })
        .await;
        assert_eq!(came, [0, 2, 3], "and the one that came in the grace");
        assert!(start.elapsed() < Duration::from_millis(15), "{:?}", start.elapsed());
        assert_eq!(race.0.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_decision_it_ends_with_the_limit() {
        let start = tokio::time::Instant::now();
        let mut race = Race::new([(0, after(5)), (1, after(60_000))]);
        race.run(Duration::from_millis(100), Duration::from_millis(2), |_, _| false).await;
        assert_eq!(start.elapsed().as_millis(), 100);
        assert_eq!(race.0[0].0, 1);
    }
}
