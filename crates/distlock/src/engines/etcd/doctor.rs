//! Looks for what makes locks on etcd unsafe, slow or impossible.

mod cluster;
mod messages;

use std::time::Duration;

use self::messages::{
    ALARM, AlarmRequest, AlarmResponse, MEMBER_LIST, MemberListRequest, MemberListResponse, STATUS, StatusRequest,
    StatusResponse,
};
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::handle::Etcd;
use crate::engines::etcd::protocol::messages::{
    Compare, CompareResult, CompareTarget, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, PutRequest, Request, TxnRequest, TxnResponse,
};
use crate::engines::etcd::protocol::methods::{LEASE_GRANT, LEASE_REVOKE, TXN};
use crate::types::error::Error;
use crate::types::finding::{Finding, Findings};

/// How long to wait for each answer: a server that takes longer is of no use to locks.
const PROBE_WAIT: Duration = Duration::from_secs(2);
/// How often a lease is granted and revoked to see how long that takes.
const ROUNDS: usize = 5;

/// What was asked and answered.
struct Cluster {
    /// The servers that were named, and what each said.
    servers: Vec<(String, Result<StatusResponse, Failure>)>,
    members: Option<MemberListResponse>,
    alarms: Option<AlarmResponse>,
    /// How long it took to grant or revoke a lease, and how long a lease was granted.
    leases: Result<(Vec<Duration>, Duration), Failure>,
    /// Whether we may write where locks are.
    may_write: Result<(), Failure>,
    /// The term after all this.
    last_term: Option<u64>,
}

impl Etcd {
    /// Everything that was found; leases are to last `ttl`.
    pub(crate) async fn examine(&self, ttl: Duration) -> Vec<Finding> {
        let client = &self.engine.client;
        let mut servers = Vec::new();
        for (at, place) in client.places().into_iter().enumerate() {
            servers.push((place, client.call_at(at, STATUS, StatusRequest {}, PROBE_WAIT).await));
        }
        if servers.iter().all(|(_, status)| status.is_err()) {
            return servers
                .into_iter()
                .filter_map(|(place, status)| Some(unreachable(&place, status.err()?)))
                .collect();
        }
        let members = client.call(MEMBER_LIST, MemberListRequest {}, PROBE_WAIT).await.ok();
        let alarms = client.call(ALARM, AlarmRequest {}, PROBE_WAIT).await.ok();
        let leases = self.time_leases(ttl).await;
        let may_write = self.try_writing().await;
        let again: Result<StatusResponse, _> = client.call(STATUS, StatusRequest {}, PROBE_WAIT).await;
        let last_term = again.ok().map(|status| status.raft_term);
        let cluster = Cluster { servers, members, alarms, leases, may_write, last_term };
        cluster.check(ttl, client.has_login(), client.is_encrypted())
    }

    /// Each is written to the disks of a majority, as locks are.
    async fn time_leases(&self, ttl: Duration) -> Result<(Vec<Duration>, Duration), Failure> {
        let (client, clock) = (&self.engine.client, &self.engine.clock);
        let asked = i64::try_from(ttl.as_secs_f64().ceil() as u64).unwrap_or(i64::MAX);
        let (mut times, mut granted) = (Vec::new(), Duration::ZERO);
        for _ in 0..ROUNDS {
            let start = clock.now();
            let grant = LeaseGrantRequest { ttl: asked, id: 0 };
            let lease: LeaseGrantResponse = client.call(LEASE_GRANT, grant, PROBE_WAIT).await?;
            times.push(clock.now().since(start));
            granted = Duration::from_secs(u64::try_from(lease.ttl).unwrap_or(0));
            let revoke = LeaseRevokeRequest { id: lease.id };
            let _: LeaseRevokeResponse = client.call(LEASE_REVOKE, revoke, PROBE_WAIT).await?;
        }
        Ok((times, granted))
    }

    /// Asks to write on a condition that is never true: rights are looked at before conditions.
    async fn try_writing(&self) -> Result<(), Failure> {
        let key = format!("{}distlock-doctor", self.engine.names.prefix).into_bytes();
        let never = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.clone(),
            create_revision: Some(i64::MAX),
            ..Compare::default()
        };
        let put = Request::Put(PutRequest { key, ..PutRequest::default() });
        let txn = TxnRequest { compare: vec![never], success: vec![put.into()], failure: Vec::new() };
        let _: TxnResponse = self.engine.client.call(TXN, txn, PROBE_WAIT).await?;
        Ok(())
    }
}

/// A server that cannot be asked.
fn unreachable(place: &str, failure: Failure) -> Finding {
    let fix = match failure.fault {
        Fault::Forbidden | Fault::LoggedOut => "check the user and the password",
        Fault::Refused => "bring a majority of the members back",
        _ => "check that it runs, the address, the firewall, and whether it expects TLS",
    };
    let found = Error::from(failure).to_string();
    Finding::not_safe("reach", place, found).because("no lock can be taken on it").fix(fix)
}

/// What all servers have in common.
const PLACE: &str = "the cluster";

fn findings() -> Findings<'static> {
    Findings::about(PLACE)
}
