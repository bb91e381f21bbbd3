//! Counting how often a lock changes hands, and how long each change takes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The handoffs of one or more rounds.
#[derive(Default)]
pub(super) struct Handoffs {
    pub(super) count: u64,
    time: Duration,
    /// The times between two releases.
    gaps: Vec<Duration>,
}

impl Handoffs {
    pub(super) fn new(count: u64, time: Duration) -> Self {
        Handoffs { count, time, gaps: Vec::new() }
    }

    pub(super) fn per_second(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }

    /// The longest gap of the best `share` of all gaps.
    pub(super) fn gap(&mut self, share: f64) -> Duration {
        self.gaps.sort();
        let place = (self.gaps.len() as f64 * share) as usize;
        self.gaps.get(place.min(self.gaps.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl std::ops::AddAssign for Handoffs {
    fn add_assign(&mut self, other: Handoffs) {
        self.count += other.count;
        self.time += other.time;
        self.gaps.extend(other.gaps);
    }
}

/// Counts how often `waiters` tasks get the lock within `time`.
pub(super) async fn count<T>(
    waiters: usize,
    time: Duration,
    take_turn: impl Fn(usize) -> T + Send + Sync + 'static,
) -> Handoffs
where
    T: Future<Output = ()> + Send,
{
    let take_turn = Arc::new(take_turn);
    let ends = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..waiters {
        let (take_turn, ends) = (take_turn.clone(), ends.clone());
        tasks.spawn(async move {
            while start.elapsed() < time {
                take_turn(number).await;
                ends.lock().expect("not poisoned").push(Instant::now());
            }
        });
    }
    tasks.join_all().await;
    let ends = std::mem::take(&mut *ends.lock().expect("not poisoned"));
    let gaps = ends.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0])).collect();
    Handoffs { count: ends.len() as u64, time: start.elapsed(), gaps }
}
