//! What to think of a cluster, given what its servers say.

use std::time::Duration;

use super::messages::{MemberListResponse, StatusResponse};
use super::{Cluster, findings, unreachable};
use crate::engines::etcd::error::{Failure, Fault};
use crate::types::error::Error;
use crate::types::finding::{Finding, Findings, Severity, is_of_this_machine, version};

/// Its leases are what is asked for here, by design.
const OLDEST: [u32; 3] = [3, 4, 0];
/// What is wrong with the leases of some versions. docs/backends/etcd.md says the same.
const DEFECTS: [Defect; 2] = [
    Defect {
        mended: &[[3, 4, 31], [3, 5, 13]],
        why: "a leader that stood still revokes leases that were renewed: their holders lose their locks",
    },
    Defect {
        mended: &[[3, 4, 38], [3, 5, 23], [3, 6, 5]],
        why: "the renewal of a lease that ends in that moment may be answered as if it lived: its holder learns of the loss \
              by the watch alone",
    },
];
/// The first version of each line without any of them.
const ADVICE: &str = "use 3.4.38, 3.5.23, 3.6.5 or newer";
/// What etcd allows for data unless it is told otherwise.
const USUAL_QUOTA: i64 = 2 << 30;
/// How far a server may be behind with what was agreed.
const BEHIND: u64 = 5000;
/// The shortest leases that etcd grants with its usual timing; longer ones are its operator's doing.
const SHORTEST: Duration = Duration::from_secs(2);

const NOSPACE: i32 = 1;
const CORRUPT: i32 = 2;

/// A defect of etcd that costs locks.
struct Defect {
    /// The first version of each line that is without it. Lines that are not named never had it.
    mended: &'static [[u32; 3]],
    why: &'static str,
}

impl Defect {
    fn is_in(&self, version: [u32; 3]) -> bool {
        self.mended.iter().any(|mended| mended[..2] == version[..2] && version < *mended)
    }
}

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

fn check_version(text: &str, findings: &mut Findings<'_>) {
    let found = format!("version {text}");
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        let why = "some versions have defects that cost locks; whether this one has them is not known";
        return findings.note("version", found, why, ADVICE);
    }
    let is = version(text);
    let whys: Vec<_> = DEFECTS.iter().filter(|defect| defect.is_in(is)).map(|defect| defect.why).collect();
    if is < OLDEST {
        findings.not_safe("version", found, "distlock needs 3.4", ADVICE);
    } else if whys.is_empty() {
        findings.fine("version", found);
    } else {
        findings.warning("version", found, &whys.join("; "), ADVICE);
    }
}

fn check_server(status: &StatusResponse, findings: &mut Findings<'_>) {
    check_version(&status.version, findings);
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
    // A login that succeeds proves that authentication is on: etcd refuses logins without it.
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
    let why = "any client that reaches it can take, break and delete every lock";
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
    use crate::engines::etcd::doctor::messages::Member;

    fn good() -> StatusResponse {
        StatusResponse { version: "3.5.23".into(), leader: 7, db_size: 1 << 20, ..StatusResponse::default() }
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
        assert_eq!(with(&|s| s.db_size = 1700 << 20), [("size", Severity::Warning)]);
        assert_eq!(with(&|s| (s.db_size, s.db_size_quota) = (1700 << 20, 8 << 30)), []);
        assert_eq!(with(&|s| s.raft_index = 10_000), [("behind", Severity::Warning)]);
        assert_eq!(with(&|s| s.errors = vec!["odd".into()]), [("errors", Severity::Warning)]);
    }

    /// What docs/backends/etcd.md says about versions is what is found.
    #[test]
    fn versions_with_defects_of_leases_are_warned_of() {
        use Severity::{Fine, Note, Unsafe, Warning};
        let rows = [
            ("3.3.27", Unsafe, 0),
            ("2.3.8", Unsafe, 0),
            ("3.4.0", Warning, 2),
            ("3.4.30", Warning, 2),
            ("3.4.31", Warning, 1),
            ("3.4.37", Warning, 1),
            ("3.4.38", Fine, 0),
            ("3.5.0-rc.1", Warning, 2),
            ("3.5.12", Warning, 2),
            ("3.5.13", Warning, 1),
            ("3.5.22", Warning, 1),
            ("3.5.23", Fine, 0),
            ("3.6.0", Warning, 1),
            ("3.6.0-rc.3", Warning, 1),
            ("3.6.4", Warning, 1),
            ("3.6.5", Fine, 0),
            ("3.6.12", Fine, 0),
            ("3.7.0", Fine, 0),
            ("3.7.0-alpha.0", Fine, 0),
            ("4.0.0", Fine, 0),
            ("", Note, 0),
            ("unknown", Note, 0),
            ("v", Note, 0),
        ];
        let page = include_str!("../../../../../../docs/backends/etcd.md");
        for (version, severity, defects) in rows {
            let mut findings = Findings::about("127.0.0.1:1");
            check_version(version, &mut findings);
            let [finding] = &findings.all[..] else { panic!("{version}: {findings:?}") };
            assert_eq!((finding.check, finding.severity), ("version", severity), "{version}");
            assert!(finding.found.ends_with(version), "{finding:?}");
            let told = DEFECTS.iter().filter(|defect| finding.why.contains(defect.why)).count();
            assert_eq!(told, defects, "{version}: {}", finding.why);
        }
        for mended in DEFECTS.iter().flat_map(|defect| defect.mended) {
            let mended = mended.map(|number| number.to_string()).join(".");
            assert!(page.contains(&mended), "the page does not name {mended}");
        }
        for number in ADVICE.split([' ', ',']).filter(|word| word.starts_with('3')) {
            assert!(DEFECTS.iter().all(|defect| !defect.is_in(version(number))), "{number}");
        }
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
