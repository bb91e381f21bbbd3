//! Bounds of a listing: its size and its time. A server whose listing never ends costs an error, not the client's
//! memory.

use std::time::Duration;

use crate::types::error::{Error, ErrorKind, Result};

/// The most bytes of replies that are kept: enough for some hundred thousand locks with holders, or for two million
/// names.
const MOST_BYTES: usize = 256 << 20;
/// What each part costs beyond its own bytes.
const EACH: usize = 100;
/// By estimate, a scan of a hundred million keys takes a Redis server two minutes, or ten when it is 5 ms away.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// What a listing may still keep.
#[derive(Debug)]
pub(crate) struct Allowance(usize);

impl Allowance {
    pub(crate) fn new() -> Allowance {
        Allowance(MOST_BYTES)
    }

    /// Returns a small allowance, so that tests need not fill the memory to spend it.
    #[cfg(test)]
    pub(crate) fn of(bytes: usize) -> Allowance {
        Allowance(bytes)
    }

    /// Spends the cost of `parts` more parts, of `bytes` bytes together.
    ///
    /// # Errors
    /// Kind `Backend` when that exceeds the allowance.
    pub(crate) fn spend(&mut self, parts: usize, bytes: usize) -> Result<()> {
        let cost = parts.saturating_mul(EACH).saturating_add(bytes);
        self.0 = self.0.checked_sub(cost).ok_or_else(|| {
            let message = format!("there is more to list than the {} MiB that a listing may take", MOST_BYTES >> 20);
            endless(message)
        })?;
        Ok(())
    }
}

/// Waits for a listing, but not forever.
///
/// # Errors
/// Those of the listing; kind `Backend` when it takes too long.
pub(crate) async fn in_time<T>(listing: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LONGEST, listing).await.unwrap_or_else(|_| {
        let message = format!("the listing did not end within {} minutes", LONGEST.as_secs() / 60);
        Err(endless(message))
    })
}

fn endless(message: String) -> Error {
    Error::new(ErrorKind::Backend, message).with_help("list fewer of them, by the beginning of their names")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_parts_are_not_too_much_and_ten_million_are() {
        let mut allowance = Allowance::new();
        assert!((0..1_000_000).all(|_| allowance.spend(1, 100).is_ok()));
        assert!((0..10).any(|_| allowance.spend(1_000_000, 0).is_err()), "empty ones count, too");
        let error = Allowance::new().spend(usize::MAX, usize::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend);
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_makes_no_progress_ends() {
        let pages = async {
            loop {
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
        };
        let error = in_time::<()>(pages).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend);
        assert!(in_time(async { Ok(1) }).await.is_ok());
    }
}
