//! What callers learn of an unreachable engine: the same for every engine.

use std::error::Error as _;
use std::future::IntoFuture;
use std::time::Duration;

use distlock::{Error, ErrorKind, Locker};
use tokio::time::timeout;

/// How long each caller waits, as a service does within one request.
pub(crate) const WAIT: Duration = Duration::from_secs(2);
/// A generous limit for what must happen.
pub(crate) const TEST_LIMIT: Duration = Duration::from_secs(20);

/// Calls every operation while the engine is unreachable. No call reports another owner.
pub(crate) async fn expect_away(locker: &Locker) {
    let lock = locker.lock("away").wait(WAIT).into_future();
    let election = locker.election("away-election");
    let campaign = election.campaign("me").wait(WAIT).into_future();
    let several = locker.lock_all(["away-one", "away-two"]).wait(WAIT).into_future();
    let permits = locker.semaphore("away-permits", 2);
    let permit = permits.acquire().wait(WAIT).into_future();
    let (lock, campaign, several, permit) = tokio::join!(
        timeout(TEST_LIMIT, lock),
        timeout(TEST_LIMIT, campaign),
        timeout(TEST_LIMIT, several),
        timeout(TEST_LIMIT, permit)
    );
    expect_unreachable("lock", &lock.expect("in time").expect_err("the engine is away"));
    expect_unreachable("campaign", &campaign.expect("in time").expect_err("the engine is away"));
    expect_unreachable("lock_all", &several.expect("in time").expect_err("the engine is away"));
    let permit = permit.expect("in time").expect_err("the engine is away");
    if locker.capabilities().slots {
        expect_unreachable("permit", &permit);
    }
}

/// Asserts that the error reports an unreachable engine and its cause, and names no holder.
pub(crate) fn expect_unreachable(who: &str, error: &Error) {
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{who}: {error:?}");
    assert!(error.source().is_some(), "{who} does not get the cause: {error:?}");
    assert!(error.holder().is_none(), "{who}: {error:?}");
}
