//! The two numbers of a hold: the fencing token that rises, and the attempt id that is random.

use std::fmt;
use std::str::FromStr;

use crate::types::error::{Error, Result};
use crate::types::random_bytes;

/// A number that rises with every grant of a lock, so that the resource can refuse late writes.
///
/// Pass it with each write; the resource stores the highest token so far and refuses lower ones:
/// [`fencing`](crate::fencing). A token is compared with tokens of the same lock only.
///
/// ```
/// use distlock::FencingToken;
///
/// let token: FencingToken = "34".parse()?; // as `Display` writes it: in headers, in $DISTLOCK_TOKEN
/// assert!(token > FencingToken::new(33));
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Returns the token with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        FencingToken(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for FencingToken {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(FencingToken).map_err(|e| Error::invalid("token", format_args!("{text:?}: {e}")))
    }
}

impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        FencingToken(number)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> u64 {
        token.0
    }
}

/// For columns of SQL databases, which have no unsigned numbers.
///
/// ```
/// use distlock::FencingToken;
///
/// let column = i64::try_from(FencingToken::new(7))?;
/// assert_eq!(FencingToken::try_from(column)?.get(), 7);
/// assert!(FencingToken::try_from(-1_i64).is_err());
/// # Ok::<(), distlock::Error>(())
/// ```
impl TryFrom<FencingToken> for i64 {
    type Error = Error;
    fn try_from(token: FencingToken) -> Result<i64> {
        i64::try_from(token.0).map_err(|_| Error::invalid("token", format_args!("{token} is above {}", i64::MAX)))
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = Error;
    fn try_from(number: i64) -> Result<Self> {
        let number = u64::try_from(number);
        number.map(FencingToken).map_err(|_| Error::invalid("token", "a number below 0 is not a token"))
    }
}

/// The random 128-bit name of one attempt to take a lock: what makes claim, renew and release safe to repeat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    // Not one number of 128 bits, which is aligned to 16 bytes and leaves gaps in everything that contains it.
    high: u64,
    low: u64,
}

impl AttemptId {
    const fn new(number: u128) -> Self {
        AttemptId { high: (number >> 64) as u64, low: number as u64 }
    }

    /// Returns a new random id, of bytes from the kernel that no other thread and no fork of this process uses.
    ///
    /// # Panics
    /// If the kernel has no random numbers; there is no safe lock without them.
    #[must_use]
    pub fn random() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(next) = seeded::next() {
            return AttemptId::new(next);
        }
        AttemptId::new(u128::from_ne_bytes(random_bytes::draw()))
    }

    /// For simulations: from now on the ids that this thread makes, and the jitter derived from them, come from
    /// `seed`; with `None` they are random again.
    #[cfg(feature = "simulation")]
    pub fn seed(seed: Option<u64>) {
        seeded::SEED.set(seed);
    }

    /// Returns the 32 lower-case hex digits of the id, as it is printed.
    pub(crate) fn hex(self) -> [u8; 32] {
        let mut digits = [0; 32];
        let quarters = [self.high >> 32, self.high, self.low >> 32, self.low];
        for (eight, quarter) in digits.chunks_exact_mut(8).zip(quarters) {
            eight.copy_from_slice(&hex_digits(quarter as u32));
        }
        digits
    }

    /// Returns 64 random bits of the id, to find it in a hash table.
    pub(crate) fn bits(self) -> u64 {
        self.low
    }

    /// Returns a number from 0 to 1 that is derived from this id: jitter without further random numbers.
    pub(crate) fn fraction(self) -> f64 {
        f64::from((self.high >> 32) as u32) / f64::from(u32::MAX)
    }
}

/// Returns the hex digits of a number, all eight computed at once: printing digit by digit costs as much as the rest of a
/// claim's text.
fn hex_digits(number: u32) -> [u8; 8] {
    // One byte for each four bits.
    let mut digits = u64::from(number);
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let is_letter = (digits + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (digits + 0x3030_3030_3030_3030 + is_letter * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

/// Ids from a seed.
#[cfg(feature = "simulation")]
mod seeded {
    use std::cell::Cell;

    thread_local! {
        pub(super) static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub(super) fn next() -> Option<u128> {
        let half = || {
            let state = SEED.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
            SEED.set(Some(state));
            // SplitMix64.
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            Some(u128::from(z ^ (z >> 31)))
        };
        Some(half()? << 64 | half()?)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.hex()).unwrap_or_default())
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for AttemptId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        // In halves: arithmetic with 128 bits costs several times as much, and each handoff parses a few ids.
        let id = text
            .as_bytes()
            .split_at_checked(16)
            .and_then(|(high, low)| Some(AttemptId { high: sixteen_digits(high)?, low: sixteen_digits(low)? }));
        id.ok_or_else(|| Error::invalid("attempt id", format_args!("{text:?} is not 32 lower-case hex digits")))
    }
}

/// Returns the number with these 16 lower-case hex digits.
fn sixteen_digits(digits: &[u8]) -> Option<u64> {
    let add = |number: u64, digit: &u8| match digit {
        b'0'..=b'9' => Some(number << 4 | u64::from(digit - b'0')),
        b'a'..=b'f' => Some(number << 4 | u64::from(digit - b'a' + 10)),
        _ => None,
    };
    if digits.len() == 16 { digits.iter().try_fold(0, add) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_ids_differ_and_survive_printing() {
        let (a, b) = (AttemptId::random(), AttemptId::random());
        assert_ne!(a, b);
        assert_eq!(a.to_string().parse::<AttemptId>().unwrap(), a);
        assert_eq!(AttemptId::new(1).to_string(), "00000000000000000000000000000001");
        let number = |id: AttemptId| u128::from(id.high) << 64 | u128::from(id.low);
        for id in [number(a), number(b), u128::MAX, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210] {
            assert_eq!(AttemptId::new(id).to_string(), format!("{id:032x}"));
            assert_eq!(number(format!("{id:032x}").parse().unwrap()), id);
        }
        let odd =
            ["".into(), "0".repeat(31), "0".repeat(33), "F".repeat(32), format!("{:g>32}", ""), format!("+{:031}", 0)];
        for text in odd.into_iter().chain(["é".repeat(16), format!("{:015}é{:015}", 0, 0)]) {
            assert!(text.parse::<AttemptId>().is_err(), "{text}");
        }
    }

    #[cfg(feature = "simulation")]
    #[test]
    fn a_seed_decides_the_ids_of_its_thread_until_it_is_taken_away() {
        let some = || [AttemptId::random(), AttemptId::random()];
        AttemptId::seed(Some(7));
        let first = some();
        AttemptId::seed(Some(7));
        assert_eq!(some(), first);
        assert_ne!(first[0], first[1]);
        AttemptId::seed(None);
        assert_ne!(some(), first);
    }

    #[test]
    fn what_is_no_id_or_token_is_refused() {
        for text in ["", "1", "+0000000000000000000000000000001", "0000000000000000000000000000000G"] {
            assert!(text.parse::<AttemptId>().is_err(), "{text}");
        }
        for text in ["", "-1", "1.5", "18446744073709551616"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text}");
        }
    }
}
