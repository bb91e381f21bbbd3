//! Latencies in buckets that are two percent wide, so that the workers of one measurement can be added up.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The ratio between two neighbouring buckets. The workers in other languages use the same.
const WIDTH: f64 = 1.02;

/// How often each latency occurred.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = latency.as_nanos().max(1) as f64;
        *self.0.entry((nanoseconds.ln() / WIDTH.ln()) as u32).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Histogram) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the latency in microseconds that `share` of all do not exceed; 0 without any.
    pub(crate) fn percentile_us(&self, share: f64) -> f64 {
        let rank = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in &self.0 {
            seen += count;
            if seen >= rank {
                return WIDTH.powf(f64::from(*bucket) + 0.5) / 1_000.0;
            }
        }
        0.0
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|(bucket, count)| format!("{bucket}:{count}")).collect();
        f.write_str(&pairs.join(" "))
    }
}

impl FromStr for Histogram {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Histogram, Self::Err> {
        let pair = |pair: &str| {
            let (bucket, count) = pair.split_once(':').unwrap_or((pair, ""));
            Ok((bucket.parse()?, count.parse()?))
        };
        text.split_whitespace().map(pair).collect::<Result<_, _>>().map(Histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_two_percent_after_the_way_through_text() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|number| histogram.record(Duration::from_micros(number)));
        let mut read: Histogram = histogram.to_string().parse().unwrap();
        assert_eq!(read, histogram);
        read.add(&histogram);
        assert_eq!(read.count(), 2_000);
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = read.percentile_us(share);
            assert!((found / expected - 1.0).abs() < 0.02, "{share}: {found}");
        }
    }
}
