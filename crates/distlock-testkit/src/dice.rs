//! Random numbers that a seed decides.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64: the same numbers on every machine, which no library promises over its versions.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The numbers of this seed.
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

    /// One of 0 to `count` - 1.
    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap_or(0)
    }

    /// Whether something of so many in a hundred happens.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// A time of whole milliseconds.
    pub fn millis(&mut self, range: Range<usize>) -> Duration {
        let ms = range.start + self.below(range.end - range.start);
        Duration::from_millis(ms as u64)
    }

    /// The same things in another order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.below(at + 1));
        }
    }
}
