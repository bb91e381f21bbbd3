//! Renewals of holds.

use crate::contract::{Lease, Renewal};
use crate::engines::redis::client::Client;
use crate::engines::redis::wire::renewals::Item;
use crate::types::error::{Error, Result};

impl Client {
    /// Renews leases. Returns one result for each, in their order.
    pub(super) async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let item = |lease: &Lease| Ok(Item::new(self.names(&lease.claim.key)?, lease));
        let items: Result<Vec<_>> = leases.iter().map(item).collect();
        self.note_leases(leases.iter().map(|lease| &lease.claim));
        match items {
            Ok(items) => self.renewals.renew(items).await,
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use distlock_testkit::servers::RedisServer;

    use super::*;
    use crate::contract::{Backend, Claim, Claimed};
    use crate::engines::redis::Redis;
    use crate::types::key::Key;
    use crate::types::mode::Mode;
    use crate::types::owner::{OwnerId, Process, Record};

    async fn hold(engine: &Redis, name: &str, ttl: Duration, mode: Mode) -> Lease {
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::now());
        let claim = Claim::new(Key::new(name).unwrap(), ttl, false, Arc::new(record.with_mode(mode)));
        let Ok(Claimed::Granted(grant)) = engine.claim(&claim).await else { panic!("{name} is not granted") };
        Lease::new(claim, grant.token)
    }

    /// Exclusive and shared holds of the same lease and of different ones, some of them gone, in one call.
    #[tokio::test]
    async fn every_hold_of_a_call_gets_its_own_lease_and_its_own_outcome() {
        let server = RedisServer::start();
        let engine = Redis::tcp("127.0.0.1", server.port()).build().unwrap();
        for leases_s in [[60; 6], [60, 70, 80, 90, 100, 110]] {
            let modes =
                [Mode::Exclusive, Mode::Shared, Mode::Exclusive, Mode::Shared, Mode::Exclusive, Mode::Exclusive];
            let mut leases = Vec::new();
            for (at, (seconds, mode)) in leases_s.into_iter().zip(modes).enumerate() {
                leases.push(hold(&engine, &format!("a{at}"), Duration::from_secs(seconds), mode).await);
                server.command(&["PEXPIRE", &format!("a{at}"), "30000"]);
            }
            server.command(&["DEL", "a0", "a3"]);
            server.command(&["SET", "a4", "another holder"]);
            let renewals = engine.renew(&leases).await;
            for (at, (renewal, seconds)) in renewals.into_iter().zip(leases_s).enumerate() {
                let left = server.command(&["PTTL", &format!("a{at}")]).int();
                match renewal.unwrap() {
                    Renewal::Lost(_) => assert!([0, 3, 4].contains(&at) && left < 0, "a{at}: {left}"),
                    Renewal::Renewed(term) => {
                        assert!([1, 2, 5].contains(&at), "a{at} is gone");
                        assert_eq!(term.unwrap().ttl, Duration::from_secs(seconds));
                        // More than the lease before it, of another length, and never more than its own.
                        let most = i64::try_from(seconds * 1000).unwrap();
                        assert!((most - 9_000..=most).contains(&left), "a{at}: {left}");
                    }
                }
            }
            server.command(&["FLUSHALL"]);
        }
    }
}
