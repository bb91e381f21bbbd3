//! Interoperation with lock clients of other languages on the same key of one Redis server: the real redis-py and
//! node-redlock.

#![cfg(feature = "redis")]

use std::future::IntoFuture;
use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::{ErrorKind, FencingToken, LockGuard, Locker, LossReason};
use distlock_testkit::servers::{RedisServer, Reply, RespClient, eventually};
use distlock_testkit::stranger::{Library, Stranger};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const TEST_LIMIT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(200);

/// A server, a foreign client of it, and ours.
struct Encounter {
    server: RedisServer,
    theirs: Stranger,
    ours: Locker,
}

impl Encounter {
    fn with(library: Library) -> Encounter {
        let server = RedisServer::start();
        let theirs = Stranger::start(library, server.address());
        let ours = locker(&server);
        Encounter { server, theirs, ours }
    }

    fn ask(&self, line: &str) -> Reply {
        self.server.command(&line.split(' ').collect::<Vec<_>>())
    }

    /// Ends the lease of the current holder of `a`, as if its holder had stood still until then.
    fn expire(&self) {
        self.ask("PEXPIRE a 1");
        eventually("an expiry", || (self.ask("EXISTS a").int() == 0).then_some(()));
    }

    fn waiter(&self) -> JoinHandle<distlock::Result<LockGuard>> {
        tokio::spawn(self.ours.clone().lock("a").wait(TEST_LIMIT).retry_interval(RETRY).into_future())
    }

    /// Returns when a waiter of ours is in the queue.
    fn expect_queued(&self) {
        eventually("a place in the queue", || (self.ask("EXISTS {a}:q").int() == 1).then_some(()));
    }
}

fn locker(server: &RedisServer) -> Locker {
    Locker::new(Redis::tcp("127.0.0.1", server.port()).build().unwrap()).unwrap()
}

async fn granted(waiter: JoinHandle<distlock::Result<LockGuard>>) -> LockGuard {
    timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted")
}

async fn check_each_excludes_the_other(library: Library) {
    let mut there = Encounter::with(library);
    assert!(there.theirs.try_lock("a", Some(LONG)));
    assert!(there.ours.try_lock("a").await.unwrap().is_none(), "theirs");
    let error = there.ours.lock("a").wait(Duration::from_millis(200)).await.expect_err("theirs");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("a client that is not distlock"), "{error}");
    assert!(there.theirs.extend("a", LONG), "nothing of ours is in their way");
    assert!(there.theirs.unlock("a"));

    // Not a try: our own cancelled waiter is withdrawn in the background.
    let guard = there.ours.lock("a").wait(TEST_LIMIT).await.expect("they let go");
    assert!(!there.theirs.try_lock("a", Some(LONG)), "ours");
    guard.check().unwrap();
    there.theirs.wait_for("a", LONG);
    guard.unlock().await.unwrap();
    assert!(there.theirs.has_lock(), "we let go");
    assert!(there.ours.try_lock("a").await.unwrap().is_none(), "theirs again");
}

async fn check_they_do_not_delete_our_key(library: Library) {
    let mut there = Encounter::with(library);
    assert!(there.theirs.try_lock("a", Some(LONG)));
    there.expire();
    let guard = there.ours.try_lock("a").ttl(TEST_LIMIT).await.unwrap().expect("their lease ended");
    let value = there.ask("GET a");
    assert!(!there.theirs.extend("a", LONG * 10), "they find that it is not theirs");
    assert!(!there.theirs.unlock("a"), "they find that it is not theirs");
    assert_eq!(there.ask("GET a"), value);
    assert!(u128::try_from(there.ask("PTTL a").int()).unwrap() <= TEST_LIMIT.as_millis(), "our lease is as it was");
    guard.unlock().await.expect("ours to the end");
}

async fn check_we_do_not_delete_their_key(library: Library) {
    let mut there = Encounter::with(library);
    let guard = there.ours.try_lock("a").ttl(TEST_LIMIT).await.unwrap().expect("free");
    there.expire();
    assert!(there.theirs.try_lock("a", Some(LONG)));
    let value = there.ask("GET a");
    let error = guard.extend(LONG * 10).await.expect_err("theirs");
    assert_eq!(error.loss_reason(), Some(&LossReason::Revoked), "{error}");
    let error = guard.unlock().await.expect_err("theirs");
    assert_eq!(error.loss_reason(), Some(&LossReason::Revoked), "{error}");
    assert_eq!(there.ask("GET a"), value);
    assert!(u128::try_from(there.ask("PTTL a").int()).unwrap() <= LONG.as_millis(), "their lease is as it was");
    // A waiter that gives up leaves no state and removes none of theirs.
    there.ours.lock("a").wait(Duration::from_millis(200)).await.expect_err("theirs");
    eventually("the end of our queue", || (there.ask("EXISTS {a}:q {a}:w").int() == 0).then_some(()));
    assert_eq!(there.ask("GET a"), value);
    assert!(there.theirs.unlock("a"));
}

/// One command that the server has executed.
#[derive(Debug)]
struct Seen {
    at: Duration,
    text: String,
}

/// Returns a monitor of all later commands, with the server's own times.
fn monitor(server: &RedisServer) -> RespClient {
    let mut monitor = server.client().expect("a connection");
    assert_eq!(monitor.command(&["MONITOR"]).unwrap(), Reply::Simple("OK".into()));
    monitor
}

/// Returns the commands that `monitor` saw up to the one that contains `last`.
fn seen_until(monitor: &mut RespClient, last: &str) -> Vec<Seen> {
    let mut all = Vec::new();
    loop {
        let line = monitor.receive().expect("one more command").text();
        let (seconds, text) = line.split_once(' ').expect("a time in front");
        all.push(Seen { at: Duration::from_secs_f64(seconds.parse().unwrap()), text: text.to_lowercase() });
        if line.contains(last) {
            return all;
        }
    }
}

async fn check_our_waiter_follows_them(library: Library) {
    let mut there = Encounter::with(library);
    assert!(there.theirs.try_lock("a", Some(LONG)));
    let waiter = there.waiter();
    there.expect_queued();
    let mut monitor = monitor(&there.server);
    tokio::time::sleep(RETRY * 6).await;
    assert!(there.theirs.unlock("a"));
    let guard = granted(waiter).await;
    there.ask("ECHO the-end");
    let seen = tokio::task::spawn_blocking(move || seen_until(&mut monitor, "the-end")).await.unwrap();

    let is_claim = |seen: &&Seen| seen.text.contains("\"evalsha\"") && seen.text.contains("\"{a}:q\"");
    let freed = seen.iter().position(|seen| seen.text.contains("lua] \"del\" \"a\"")).expect("they deleted the key");
    let before: Vec<Duration> = seen[..freed].iter().filter(is_claim).map(|seen| seen.at).collect();
    let granted_at = seen[freed..].iter().find(is_claim).expect("we claimed").at;
    let took_it = seen[freed..].iter().find(|seen| seen.text.contains("lua] \"set\" \"a\"")).expect("we got it").at;
    let between: Vec<Duration> = before.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(between.len() >= 2, "we polled: {before:?}");
    assert!(took_it - granted_at < RETRY / 2, "the first claim after their release had it");
    // A busy machine polls late; its longest poll interval is then the limit.
    let longest = between.iter().copied().max().unwrap();
    let late = granted_at - seen[freed].at;
    assert!(late <= (RETRY * 2).max(longest + RETRY), "{late:?} after their release; polls {between:?} apart");
    guard.unlock().await.unwrap();
}

async fn check_never_two_at_once(library: Library) {
    const TIMES: u32 = 30;
    let mut there = Encounter::with(library);
    there.theirs.meet("a", TIMES);
    let ours: Vec<_> = (0..2)
        .map(|_| {
            let (locker, server) = (locker(&there.server), there.server.socket());
            tokio::spawn(async move {
                let mut counter = RespClient::unix(&server).expect("a connection");
                for _ in 0..TIMES {
                    let request = locker.lock("a").wait(TEST_LIMIT).retry_interval(Duration::from_millis(5));
                    let guard = request.await.expect("granted");
                    let inside = counter.command(&["INCR", "a:inside"]).unwrap().int();
                    assert_eq!(inside, 1, "two holders");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    counter.command(&["DECR", "a:inside"]).unwrap();
                    guard.unlock().await.expect("released");
                    // They poll, and we hand over among ourselves: give them time for a poll.
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
            })
        })
        .collect();
    for one in ours {
        one.await.expect("always alone");
    }
    let mut theirs = there.theirs;
    assert!(tokio::task::spawn_blocking(move || theirs.was_alone()).await.unwrap());
}

macro_rules! encounters {
    ($($library:ident: $which:expr;)+) => {$(
        mod $library {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn both_libraries_exclude_each_other() {
                super::check_each_excludes_the_other($which).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn the_other_library_does_not_delete_our_key() {
                super::check_they_do_not_delete_our_key($which).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn our_client_does_not_delete_the_other_librarys_key() {
                super::check_we_do_not_delete_their_key($which).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn our_waiter_follows_the_other_library_within_two_retry_intervals() {
                super::check_our_waiter_follows_them($which).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn never_two_holders_at_once() {
                super::check_never_two_at_once($which).await;
            }
        }
    )+};
}

encounters! {
    redis_py: Library::RedisPy;
    node_redlock: Library::Redlock;
}

/// redis-py sets no expiry by default.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_redis_py_without_expiry_never_expires() {
    let mut there = Encounter::with(Library::RedisPy);
    assert!(there.theirs.try_lock("a", None));
    assert_eq!(there.ask("PTTL a").int(), -1);
    assert!(there.ours.try_lock("a").await.unwrap().is_none());
    let shown = there.ours.inspect().get("a").await.unwrap().expect("it is held");
    let holder = shown.holder().expect("a holder");
    assert!(holder.record.is_none() && holder.ttl_left.is_none() && holder.token.is_none(), "{holder:?}");
    let error = there.ours.inspect().force_release("a", FencingToken::new(1), "stuck").await.expect_err("not ours");
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    let waiter = there.waiter();
    there.expect_queued();
    assert_eq!(there.ask("PTTL a").int(), -1, "nothing of it was changed");
    assert!(!waiter.is_finished());
    assert!(there.theirs.unlock("a"), "it is still theirs");
    granted(waiter).await.unlock().await.unwrap();
}
