//! Mutates inputs at random, deterministically for a seed.

/// Byte strings that often break decoders.
const STUMBLES: [&[u8]; 24] = [
    b"",
    b"0",
    b"-1",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"1e999",
    b"+1",
    b"{",
    b"}",
    b"{}",
    b"[[[[",
    b"\"",
    b"\\u0000",
    b"%",
    b"%2",
    b"%FF",
    b"//",
    b"@",
    b" ",
    b"\n",
    b"\0",
    b"\xff",
    "\u{202e}é".as_bytes(),
];
/// The maximum number of mutations of one input.
const MOST_CHANGES: usize = 6;

pub(super) struct Mutator<'a> {
    state: u64,
    corpus: &'a [Vec<u8>],
}

impl<'a> Mutator<'a> {
    pub(super) fn new(seed: u64, corpus: &'a [Vec<u8>]) -> Self {
        Mutator { state: seed, corpus }
    }

    /// Returns a mutated input of the corpus.
    pub(super) fn input(&mut self) -> Vec<u8> {
        let mut input = self.kept();
        for _ in 0..=self.below(MOST_CHANGES) {
            self.change(&mut input);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let (from, to) = self.range(input.len());
        match self.below(9) {
            0 => input.truncate(from),
            1 => drop(input.drain(from..to)),
            2 => {
                let piece = input[from..to].to_vec();
                let times = 1 + self.below(8);
                input.splice(to..to, piece.repeat(times));
            }
            3 => {
                let other = self.kept();
                let (start, end) = self.range(other.len());
                input.splice(from..to, other[start..end].to_vec());
            }
            4 | 5 => {
                let stumble = STUMBLES[self.below(STUMBLES.len())];
                input.splice(from..from, stumble.to_vec());
            }
            6 => {
                let stumble = STUMBLES[self.below(STUMBLES.len())];
                input.splice(from..to, stumble.to_vec());
            }
            7 if from < to => input[from] ^= 1 << self.below(8),
            _ => {
                let byte = u8::try_from(self.below(256)).unwrap_or_default();
                input.insert(from, byte);
            }
        }
    }

    fn kept(&mut self) -> Vec<u8> {
        let at = self.below(self.corpus.len());
        self.corpus[at].clone()
    }

    /// Returns a range within `length`, more often a short one.
    fn range(&mut self, length: usize) -> (usize, usize) {
        let from = self.below(length + 1);
        let most = if self.below(4) == 0 { length } else { 8 };
        (from, (from + self.below(most + 1)).min(length))
    }

    fn below(&mut self, bound: usize) -> usize {
        // SplitMix64: good enough here, and needs no crate.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}
