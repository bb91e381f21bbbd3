//! Hostile input for decoders: a kept corpus, mutated at random.
//!
//! The stable toolchain gives no coverage feedback, so this does not learn as libFuzzer does. Instead it has a corpus
//! of inputs that reach deep, and mutations that keep most of an input. It needs no other compiler and no crate, and
//! runs with the unit tests, which can call private decoders.
//!
//! A run is short and deterministic. `cargo xtask fuzz --seconds N` runs each for N seconds from a new seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

mod mutator;
mod notation;

use mutator::Mutator;
use notation::{read_line, write_line};

/// The number of inputs in a short run.
const SHORT_RUN: usize = 4_000;
const SHORT_SEED: u64 = 1;
/// Longer inputs find nothing that shorter ones do not.
const LONGEST: usize = 8 * 1024;

/// Calls `check` with each input of a corpus and with many mutations of them. A panic of `check` is a failure:
/// decoders must not panic.
///
/// The corpus is a file in the directory `fuzz` of the package under test, with one input per line in the notation of
/// a Rust byte string; `#` begins a comment.
///
/// # Panics
/// When `check` panics, with the shortest input found and the line to add to the corpus.
pub fn fuzz(corpus: impl AsRef<Path>, check: impl Fn(&[u8])) {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let corpus = &Path::new(&package).join("fuzz").join(corpus);
    let text = std::fs::read_to_string(corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let kept: Vec<Vec<u8>> = text.lines().filter(|line| !line.starts_with('#')).map(read_line).collect();
    assert!(!kept.is_empty(), "{} has no input", corpus.display());
    let try_one = |input: &[u8], origin: &str| {
        if panics(&check, input) {
            let input = shortened(&check, input.to_vec());
            let line = write_line(&input);
            // Run again without catching the panic, so that its location is printed.
            eprintln!("{origin}; add this line to {}:\n{line}", corpus.display());
            check(&input);
            panic!("it panics only sometimes: {line}");
        }
    };
    kept.iter().for_each(|input| try_one(input, "an input of the corpus"));
    let (seed, length) = plan();
    let mut mutator = Mutator::new(seed, &kept);
    let mut tried = 0;
    while length.goes_on(tried) {
        let mut input = mutator.input();
        input.truncate(LONGEST);
        try_one(&input, &format!("input {tried} of seed {seed}"));
        tried += 1;
    }
    println!("{}: {tried} inputs from seed {seed}", corpus.display());
}

/// Asserts that a decoded value is at most proportional in size to its input: no input makes a decoder exhaust the
/// memory.
///
/// # Panics
/// When the value is larger.
pub fn assert_in_proportion(input: &[u8], read: &impl std::fmt::Debug) {
    let size = format!("{read:?}").len();
    assert!(size <= 64 * input.len() + 4096, "{size} bytes were read from {}", input.len());
}

enum Length {
    Inputs(usize),
    Until(Instant),
}

impl Length {
    fn goes_on(&self, tried: usize) -> bool {
        match self {
            Length::Inputs(inputs) => tried < *inputs,
            Length::Until(end) => Instant::now() < *end,
        }
    }
}

fn plan() -> (u64, Length) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("DISTLOCK_FUZZ_SEED");
    match number("DISTLOCK_FUZZ_SECONDS") {
        Some(seconds) => {
            let new = || {
                u64::from(std::process::id())
                    ^ u64::from(std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.subsec_nanos()))
            };
            (seed.unwrap_or_else(new), Length::Until(Instant::now() + Duration::from_secs(seconds)))
        }
        None => (seed.unwrap_or(SHORT_SEED), Length::Inputs(SHORT_RUN)),
    }
}

fn panics(check: &impl Fn(&[u8]), input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| check(input))).is_err()
}

/// Removes all bytes that are not needed for the panic.
fn shortened(check: &impl Fn(&[u8]), mut input: Vec<u8>) -> Vec<u8> {
    let mut piece = input.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at + piece <= input.len() {
            let mut less = input.clone();
            less.drain(at..at + piece);
            if panics(check, &less) {
                input = less;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_decoder_is_detected_with_a_short_input() {
        let corpus = std::env::temp_dir().join(format!("distlock-fuzz-{}", std::process::id()));
        std::fs::write(&corpus, "# a comment\nhello {\"a\": 1}\n").expect("a file");
        let panics_at_a_nul = |input: &[u8]| assert!(!input.contains(&0), "a nul");
        let found = catch_unwind(|| fuzz(&corpus, panics_at_a_nul));
        std::fs::remove_file(&corpus).expect("it is there");
        assert!(found.is_err());
        assert_eq!(shortened(&panics_at_a_nul, b"one two \0 three".to_vec()), b"\0");
    }

    #[test]
    fn a_run_repeats_itself() {
        let inputs = |seed| {
            let kept = [b"a{b}c 17".to_vec(), b"x".to_vec()];
            let mut mutator = Mutator::new(seed, &kept);
            (0..100).map(|_| mutator.input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
    }

    #[test]
    fn a_disproportionate_value_is_detected() {
        assert_in_proportion(b"", &"x");
        assert!(catch_unwind(|| assert_in_proportion(b"", &"x".repeat(5000))).is_err());
    }
}
