//! What to think of a cluster, given what its servers say.

use std::time::Duration;

use super::messages::{MemberListResponse, StatusResponse};
use super::{Cluster, findings, unreachable};
use crate::backend::etcd::failure::{Failure, Fault};
use crate::error::Error;
use crate::finding::{Finding, Findings, Severity, is_of_this_machine, version};

/// Its leases are what is asked for here, by design.
const OLDEST: [u32; 3] = [3, 4, 0];
/// From here on in each line a leader that stood still does not revoke leases that were renewed.
const MENDED: [[u32; 3]; 2] = [[3, 4, 31], [3, 5, 13]];
/// What etcd allows for data unless it is told otherwise.
const USUAL_QUOTA: i64 = 2 << 30;
/// How far a server may be behind with what was agreed.
const BEHIND: u64 = 5000;
/// The shortest leases that etcd grants with its usual timing; longer ones are its operator's doing.
const SHORTEST: Duration = Duration::from_secs(2);

const NOSPACE: i32 = 1;
const CORRUPT: i32 = 2;

impl Cluster {
    pub(super) fn check(self, ttl: Duration, has_login: bool, encrypted: bool) -> Vec<Finding> {
        let mut all = Vec::new();
        let mut ids = Vec::new();
        for (place, status) in &self.servers {
            match status {
                Err(failure) => {
                    // The others are enough, as long as there is a majority of them.
                    all.push(Finding { severity: Severity::Warning, ..unreachable(place, failure.clone()) });
                }
                Ok(status) => {
                    let mut findings = Findings::about(place);
                    check_server(status, &mut findings);
                    findings.encryption(encrypted);
                    all.append(&mut findings.all);
                    ids.extend(status.header.map(|header| header.cluster_id));
                }
            }
        }
        let mut findings = findings();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() > 1 {
            let found = format!("the endpoints belong to {} different clusters", ids.len());
            let why = "clients that reach different ones hold the same lock at the same time";
            findings.not_safe("one-cluster", found, why, "name members of one cluster only");
        }
        if let Some(members) = &self.members {
            check_members(members, self.servers.len(), &mut findings);
            check_exposure(members, has_login, &mut findings);
        }
        self.check_alarms(&mut findings);
        check_leases(self.leases, ttl, &mut findings);
        check_right(self.may_write, &mut findings);
        let first_term = self.servers.iter().filter_map(|(_, status)| Some(status.as_ref().ok()?.raft_term)).max();
        if ids.len() == 1 && first_term < self.last_term {
            let why = "without a leader nothing is granted or renewed, so frequent elections cost locks";
            let fix = "look at the disks and the network of the members; raise --election-timeout";
            findings.warning("elections", "a new leader was elected while we looked", why, fix);
        }
        all.append(&mut findings.all);
        all
    }

    fn check_alarms(&self, findings: &mut Findings<'_>) {
        for alarm in self.alarms.iter().flat_map(|response| &response.alarms) {
            match alarm.alarm {
                NOSPACE => {
                    let why = "etcd refuses every write, so no lock can be taken";
                    let fix = "compact, defragment, raise --quota-backend-bytes, then etcdctl alarm disarm";
                    findings.not_safe("alarm", "NOSPACE is raised", why, fix);
                }
                CORRUPT => {
                    let why = "members disagree about the data, so they may disagree about who holds a lock";
                    findings.not_safe("alarm", "CORRUPT is raised", why, "replace the member that differs");
                }
                _ => {}
            }
        }
        if self.alarms.as_ref().is_some_and(|response| response.alarms.is_empty()) {
            findings.fine("alarm", "none");
        }
    }
}

fn check_server(status: &StatusResponse, findings: &mut Findings<'_>) {
    let (is, found) = (version(&status.version), format!("version {}", status.version));
    let line = MENDED.iter().find(|mended| mended[..2] == is[..2]);
    if is < OLDEST {
        findings.not_safe("version", found, "distlock needs 3.4", "use 3.5.13 or newer");
    } else if line.is_some_and(|mended| is < *mended) {
        let why = "a leader that stood still revokes leases that were renewed: their holders lose their locks";
        findings.warning("version", found, why, "use 3.4.31, 3.5.13 or newer");
    } else {
        findings.fine("version", found);
    }
    if status.leader == 0 {
        findings.not_safe("leader", "it knows no leader", "nothing can be granted or renewed", "bring members back");
    }
    if status.is_learner {
        let why = "a learner answers no request for locks: every client that tries it first is slowed down";
        findings.warning("learner", "it is a learner", why, "promote it, or leave it out of the URL");
    }
    let quota = if status.db_size_quota > 0 { status.db_size_quota } else { USUAL_QUOTA };
    let found = format!("{} MiB of data", status.db_size >> 20);
    if status.db_size > quota / 10 * 8 {
        let why =
            format!("at {} MiB, unless --quota-backend-bytes says otherwise, etcd refuses every write", quota >> 20);
        findings.warning("size", found, &why, "compact and defragment, or raise --quota-backend-bytes");
    } else {
        findings.fine("size", found);
    }
    let behind = status.raft_index.saturating_sub(status.raft_applied_index);
    if behind > BEHIND {
        let why = "what it answers is late, and so are its watches";
        findings.warning(
            "behind",
            format!("{behind} entries are not applied yet"),
            why,
            "look at its disk and its load",
        );
    }
    // Alarms are told for all.
    for error in status.errors.iter().filter(|error| !error.to_uppercase().contains("NOSPACE")) {
        findings.warning("errors", error.clone(), "it says so itself", "look at its log");
    }
}

fn check_members(members: &MemberListResponse, named: usize, findings: &mut Findings<'_>) {
    let voters = members.members.iter().filter(|member| !member.is_learner).count();
    if voters == 1 {
        let why = "when it is down no lock can be taken, and holders lose theirs";
        findings.warning("members", "one member", why, "run three or five");
    } else if voters.is_multiple_of(2) {
        let why = "one more than an odd number survives no more failures, and is one more to fail";
        findings.warning("members", format!("{voters} members, an even number"), why, "run three or five");
    } else {
        findings.fine("members", format!("{voters} members"));
    }
    let unstarted = members.members.iter().filter(|member| member.name.is_empty()).count();
    if unstarted > 0 {
        let why = "it counts for the majority and cannot be part of it";
        let found = format!("{unstarted} members have never started");
        findings.warning("unstarted", found, why, "start them, or etcdctl member remove");
    }
    if named == 1 && voters > 1 {
        let why = "when that one is down clients find no other, and lose their locks";
        let found = format!("one endpoint of {voters} members is named");
        findings.warning("endpoints", found, why, "name all members");
    }
}

fn check_exposure(members: &MemberListResponse, has_login: bool, findings: &mut Findings<'_>) {
    // Whoever logged in proves that authentication is on: etcd refuses logins without it.
    if has_login {
        return findings.fine("auth", "clients log in");
    }
    let urls = members.members.iter().flat_map(|member| &member.client_urls);
    let far: Vec<&str> = urls
        .map(|url| url.split_once("://").map_or(url.as_str(), |(_, place)| place))
        .filter(|place| !is_of_this_machine(place))
        .collect();
    if far.is_empty() {
        return findings.fine("auth", "off, but clients are told addresses of this machine only");
    }
    let why = "whoever reaches it can take, break and delete every lock";
    let found = format!("we need no login, and clients are told {}", far.join(", "));
    findings.warning("auth", found, why, "etcdctl auth enable, or client certificates, with a role for the prefix");
}

fn check_leases(leases: Result<(Vec<Duration>, Duration), Failure>, ttl: Duration, findings: &mut Findings<'_>) {
    match leases {
        Err(failure) => {
            let found = format!("no lease is granted: {}", Error::from(failure));
            findings.not_safe("leases", found, "every lock needs one", "look at the other findings");
        }
        Ok((times, granted)) => {
            findings.round_trips(&times, ttl, ttl);
            if granted > ttl.max(SHORTEST) + Duration::from_secs(1) {
                let found = format!("asked for {ttl:?}, a lease of {granted:?} is granted");
                let why = "a holder that dies blocks the others for that long; leases follow --election-timeout";
                findings.warning("leases", found, why, "lower --election-timeout, or ask for longer leases");
            } else {
                findings.fine("leases", format!("granted for {granted:?}"));
            }
        }
    }
}

fn check_right(may_write: Result<(), Failure>, findings: &mut Findings<'_>) {
    match may_write {
        Ok(()) => findings.fine("rights", "keys behind the prefix may be written"),
        Err(failure) if matches!(failure.fault, Fault::Forbidden | Fault::LoggedOut) => {
            let why = "locks are keys behind the prefix";
            let fix = "etcdctl role grant-permission … readwrite <prefix> --prefix=true";
            findings.not_safe("rights", Error::from(failure).to_string(), why, fix);
        }
        Err(failure) => {
            let why = "no lock can be taken while it refuses to write";
            findings.not_safe("writes", Error::from(failure).to_string(), why, "look at the other findings");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::etcd::doctor::messages::Member;

    fn good() -> StatusResponse {
        StatusResponse { version: "3.5.21".into(), leader: 7, db_size: 1 << 20, ..StatusResponse::default() }
    }

    fn troubles(status: &StatusResponse) -> Vec<(&'static str, Severity)> {
        let mut findings = Findings::about("127.0.0.1:1");
        check_server(status, &mut findings);
        let found = findings.all.into_iter().filter(|finding| finding.severity > Severity::Fine);
        found.map(|finding| (finding.check, finding.severity)).collect()
    }

    /// Versions and states that the servers of the tests do not have.
    #[test]
    fn what_no_server_here_says_is_judged_too() {
        let with = |change: &dyn Fn(&mut StatusResponse)| {
            let mut status = good();
            change(&mut status);
            troubles(&status)
        };
        assert_eq!(troubles(&good()), []);
        assert_eq!(with(&|s| s.version = "3.6.0".into()), []);
        assert_eq!(with(&|s| s.version = "3.5.12".into()), [("version", Severity::Warning)]);
        assert_eq!(with(&|s| s.version = "3.3.27".into()), [("version", Severity::Unsafe)]);
        assert_eq!(with(&|s| s.db_size = 1700 << 20), [("size", Severity::Warning)]);
        assert_eq!(with(&|s| (s.db_size, s.db_size_quota) = (1700 << 20, 8 << 30)), []);
        assert_eq!(with(&|s| s.raft_index = 10_000), [("behind", Severity::Warning)]);
        assert_eq!(with(&|s| s.errors = vec!["odd".into()]), [("errors", Severity::Warning)]);
    }

    #[test]
    fn an_even_number_of_voters_is_no_use() {
        let member = |is_learner| Member { name: "m".into(), client_urls: Vec::new(), is_learner };
        let troubles = |voters: usize, learners: usize| {
            let all = (0..voters).map(|_| member(false)).chain((0..learners).map(|_| member(true))).collect();
            let mut findings = Findings::about("x");
            check_members(&MemberListResponse { members: all }, voters, &mut findings);
            findings.all.iter().filter(|finding| finding.severity > Severity::Fine).count()
        };
        assert_eq!([troubles(3, 0), troubles(3, 1), troubles(5, 0), troubles(4, 0), troubles(1, 0)], [0, 0, 0, 1, 1]);
    }
}
