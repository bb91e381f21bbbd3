//! Random numbers from a seed.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64. It gives the same numbers on every machine, which no library promises across its versions.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Returns a generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `count` - 1.
    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap_or(0)
    }

    /// Returns true with a probability of `chance` percent.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// Returns a duration of whole milliseconds.
    pub fn millis(&mut self, range: Range<usize>) -> Duration {
        let ms = range.start + self.below(range.end - range.start);
        Duration::from_millis(ms as u64)
    }

    /// Shuffles `things` in place.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.below(at + 1));
        }
    }
}
