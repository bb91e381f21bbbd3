//! Revoked rights: such errors say nothing about the owner of a lock.

use distlock::backend::redis::Redis;
use distlock::{ErrorKind, LockGuard, LockRequest, Locker, LossReason};
use distlock_testkit::servers::RedisServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, locker_of, ms};
use crate::natives::listed;

type Ask = fn(&Locker) -> LockRequest;

/// An exclusive lock and a shared one.
const ASKS: [Ask; 2] = [|locker| locker.lock("a").ttl(ms(3000)), |locker| locker.read("a").ttl(ms(3000))];

async fn start(ask: Ask) -> (Bench, LockGuard) {
    let bench = Bench::with(RedisServer::options().user("app", "secret", "~* &* +@all"));
    let engine = Redis::tcp("127.0.0.1", bench.server.port()).username("app").password("secret").build().unwrap();
    let guard = ask(&locker_of(engine).await).await.expect("granted");
    (bench, guard)
}

#[tokio::test]
async fn f36_a_renewal_without_rights_is_an_auth_error_until_the_deadline() {
    for (ask, right) in [(ASKS[0], "getrange"), (ASKS[0], "pexpire"), (ASKS[1], "getrange"), (ASKS[1], "zscore")] {
        let (bench, guard) = start(ask).await;
        bench.command(&format!("ACL SETUSER app -{right}"));
        let error = guard.extend(ms(3000)).await.expect_err("no right to renew");
        assert_eq!(error.kind(), ErrorKind::Auth, "{right}: {error}");
        guard.check().expect("it is held until its deadline");
        let lost = timeout(TEST_LIMIT, guard.lost()).await.expect("notified");
        assert_eq!(lost, LossReason::Expired, "{right}");
    }
}

#[tokio::test]
async fn f36_a_lock_survives_when_its_rights_return_before_the_deadline() {
    for ask in ASKS {
        let (bench, guard) = start(ask).await;
        bench.command("ACL SETUSER app -getrange");
        assert_eq!(guard.extend(ms(3000)).await.expect_err("no right").kind(), ErrorKind::Auth);
        bench.command("ACL SETUSER app +getrange");
        guard.extend(ms(3000)).await.expect("renewed");
        guard.unlock().await.expect("released");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f36_a_release_or_claim_without_rights_is_an_auth_error() {
    for ask in ASKS {
        let (bench, guard) = start(ask).await;
        // A native command sees whose it is without that right.
        let native = listed(&bench.server).map(|name| format!(" -{name}")).unwrap_or_default();
        bench.command(&format!("ACL SETUSER app -getrange{native}"));
        let error = guard.unlock().await.expect_err("no right to see whose it is");
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
        assert_eq!(bench.command("EXISTS a").int(), 1);
    }
}

#[tokio::test]
async fn f34_a_lock_with_a_key_of_another_type_is_lost() {
    for ask in ASKS {
        let (bench, guard) = start(ask).await;
        bench.command("DEL a");
        bench.command("RPUSH a somebody's");
        guard.extend(ms(3000)).await.expect_err("not ours");
        assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Revoked);
        assert_eq!(bench.command("LLEN a").int(), 1);
    }
}
