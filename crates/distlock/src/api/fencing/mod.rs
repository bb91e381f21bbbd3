//! Fencing at the resource: it refuses late writes.
//!
//! A lease can end while its holder still works. The protected resource is safe only if it compares the [fencing
//! token](crate::LockGuard::fencing_token) of each write with the highest token so far, in one step with the write,
//! and refuses a lower one. `docs/fencing.md` has recipes for SQL, Redis, etcd, HTTP and object stores; this module
//! has what they need.
//!
//! ```
//! use distlock::fencing::Fence;
//! # use distlock::Locker;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
//! # let locker = Locker::connect("mem://").await?;
//! let fence = Fence::new(); // part of the resource
//!
//! let first = locker.lock("report").await?;
//! let late = first.fencing_token();
//! first.unlock().await?;
//! let second = locker.lock("report").await?;
//! assert!(fence.pass(second.fencing_token(), || "written").is_ok());
//! assert!(fence.pass(late, || "written").is_err());
//! # Ok(()) }
//! ```

use crate::types::sync::Mutex;
use std::fmt;

use crate::types::error::Result;
use crate::types::token::FencingToken;

/// The header in which a request carries its token.
pub const HEADER: &str = "Fencing-Token";

/// A Redis script that writes only when the token is not lower than the last one. KEYS: the value, its token (in one
/// slot of a cluster: `{order:7}`, `{order:7}:token`). ARGV: the token, the value. It replies 1, or 0 when it refuses.
pub const REDIS_WRITE: &str = include_str!("write.lua");

/// Reads the [header](HEADER)'s value, which is the token in decimal digits, as its `Display` writes it.
///
/// ```
/// use distlock::{FencingToken, fencing};
///
/// let sent = (fencing::HEADER, FencingToken::new(34).to_string()); // the client
/// assert_eq!(fencing::from_header(&sent.1)?, FencingToken::new(34)); // the server
/// assert!(fencing::from_header("").is_err());
/// # Ok::<(), distlock::Error>(())
/// ```
///
/// # Errors
/// Kind `InvalidInput` if it is anything else: refuse such a request.
pub fn from_header(value: &str) -> Result<FencingToken> {
    value.trim_matches([' ', '\t']).parse()
}

/// A fence for a resource in this process: refuses writes whose token is lower than that of an earlier write.
///
/// # Default
/// Every token passes at first.
#[derive(Debug, Default)]
pub struct Fence(Mutex<Option<FencingToken>>);

impl Fence {
    /// Returns a fence that nothing has passed.
    #[must_use]
    pub fn new() -> Self {
        Fence::default()
    }

    /// Returns a fence that starts with the token of the last write, for example from the file that it protects.
    #[must_use]
    pub fn since(last: FencingToken) -> Self {
        Fence(Mutex::new(Some(last)))
    }

    /// Calls `write` unless a higher token has passed. Writes are serialized: one ends before the next token is
    /// compared, so no write overtakes a later one.
    ///
    /// # Errors
    /// If the token is stale; `write` is not called.
    pub fn pass<T>(&self, token: FencingToken, write: impl FnOnce() -> T) -> std::result::Result<T, Stale> {
        // A write that panicked may be partly done; its token counts.
        let mut last = self.0.lock();
        check(token, *last)?;
        *last = Some(token);
        Ok(write())
    }
}

/// Checks whether a write with `token` may follow one with `last`, for resources that store the last token and can
/// compare and write in one step.
///
/// ```
/// use distlock::{FencingToken, fencing};
///
/// let (old, new) = (FencingToken::new(33), FencingToken::new(34));
/// assert!(fencing::check(new, Some(old)).is_ok());
/// assert!(fencing::check(old, Some(new)).is_err());
/// ```
///
/// # Errors
/// If `token` is lower than `last`.
pub fn check(token: FencingToken, last: Option<FencingToken>) -> std::result::Result<(), Stale> {
    match last {
        Some(last) if token < last => Err(Stale { token, last }),
        _ => Ok(()),
    }
}

/// The error of a late write: its lock has been granted again since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// The token of the write.
    pub token: FencingToken,
    /// The higher token that has passed.
    pub last: FencingToken,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} is stale: {} has passed", self.token, self.last)
    }
}

impl std::error::Error for Stale {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_token_does_not_pass_and_the_same_does() {
        let fence = Fence::since(FencingToken::new(3));
        let pass = |token| fence.pass(FencingToken::new(token), || token);
        assert_eq!((pass(3), pass(5), pass(5)), (Ok(3), Ok(5), Ok(5)));
        let stale = pass(4).unwrap_err();
        assert_eq!(stale.to_string(), "token 4 is stale: 5 has passed");
        assert!(Fence::new().pass(FencingToken::new(0), || ()).is_ok());
    }

    #[test]
    fn a_write_that_panics_leaves_the_fence_where_it_was_put() {
        let fence = Fence::new();
        let panics = std::panic::AssertUnwindSafe(|| fence.pass(FencingToken::new(7), || panic!("half done")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(fence.pass(FencingToken::new(6), || ()).is_err());
    }

    #[test]
    fn a_header_is_digits_and_nothing_else() {
        assert_eq!(from_header(" 18446744073709551615\t").unwrap(), FencingToken::new(u64::MAX));
        for value in ["", "-1", "1, 2", "0x1", "seven"] {
            assert!(from_header(value).is_err(), "{value}");
        }
    }
}
