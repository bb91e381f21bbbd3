//! Durations as percentiles and as bars on a terminal.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

const BARS: usize = 12;
const WIDEST: usize = 40;

/// Durations, sorted.
#[derive(Debug, Clone, Default)]
pub struct Histogram(Vec<Duration>);

impl Histogram {
    /// Sorts `times`.
    #[must_use]
    pub fn new(mut times: Vec<Duration>) -> Histogram {
        times.sort_unstable();
        Histogram(times)
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the duration that `part` (from 0 to 1) of them do not exceed; zero when there are none.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Duration {
        let at = (self.0.len() as f64 * part).ceil() as usize;
        self.0.get(at.saturating_sub(1).min(self.0.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    /// Returns the percentiles as fields of a JSON object, in microseconds.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let us = |part| u64::try_from(self.percentile(part).as_micros()).unwrap_or(u64::MAX);
        json!({"count": self.count(), "p50_us": us(0.5), "p90_us": us(0.9), "p99_us": us(0.99), "max_us": us(1.0)})
    }

    /// Returns one line with the percentiles.
    #[must_use]
    pub fn summary(&self) -> String {
        let [p50, p90, p99, most] = [0.5, 0.9, 0.99, 1.0].map(|part| self.percentile(part));
        format!("p50 {p50:.1?}  p90 {p90:.1?}  p99 {p99:.1?}  max {most:.1?}")
    }

    /// Returns a line for each range of durations; the ranges grow by a constant factor.
    #[must_use]
    pub fn bars(&self) -> String {
        let (Some(least), Some(most)) = (self.0.first(), self.0.last()) else { return String::new() };
        let (least, most) = (least.as_secs_f64().max(1e-7), most.as_secs_f64().max(1e-7));
        let factor = (most / least).powf(1.0 / BARS as f64).max(1.000_001);
        let bar_of = |time: &Duration| ((time.as_secs_f64().max(1e-7) / least).log(factor) as usize).min(BARS - 1);
        let mut counts = [0; BARS];
        self.0.iter().for_each(|time| counts[bar_of(time)] += 1);
        let highest = counts.iter().copied().max().unwrap_or(1).max(1);
        let mut text = String::new();
        for (number, count) in counts.iter().enumerate() {
            let to = Duration::from_secs_f64(least * factor.powi(i32::try_from(number).unwrap_or(0) + 1));
            // Rounded up: a range with any entry has a visible bar.
            let width = (count * WIDEST).div_ceil(highest);
            let _ = writeln!(text, "  ≤ {:>9}  {:<WIDEST$}  {count}", format!("{to:.1?}"), "█".repeat(width));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(milliseconds: impl IntoIterator<Item = u64>) -> Histogram {
        Histogram::new(milliseconds.into_iter().map(Duration::from_millis).collect())
    }

    #[test]
    fn percentiles_are_measured_durations() {
        let hundred = of((1..=100).rev());
        let at = |part| hundred.percentile(part).as_millis();
        assert_eq!([at(0.0), at(0.5), at(0.9), at(0.99), at(1.0)], [1, 50, 90, 99, 100]);
        assert_eq!(of([7]).percentile(0.5).as_millis(), 7);
        assert_eq!(of([]).percentile(0.5), Duration::ZERO);
        assert_eq!(hundred.to_json()["p99_us"], 99_000);
    }

    #[test]
    fn every_duration_is_counted_in_one_bar() {
        for times in [of([5, 5, 5]), of(1..=1000), of([1, 60_000])] {
            let bars = times.bars();
            let counts = bars.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
            assert_eq!(counts.sum::<usize>(), times.count(), "{bars}");
            assert!(bars.lines().all(|line| line.chars().filter(|c| *c == '█').count() <= WIDEST), "{bars}");
        }
        assert_eq!(of([]).bars(), "");
        let bars = of([1, 60_000]).bars();
        assert!(bars.lines().next().unwrap().contains('█') && bars.lines().last().unwrap().contains('█'), "{bars}");
    }
}
