//! What to think of one server, given what it says.

use std::time::Duration;

use super::facts::{Facts, FenceFact};
use crate::engines::redis::wire::options::Options;
use crate::engines::redis::wire::probe::is_right;
use crate::engines::shared::dial::Dialer;
use crate::types::error::{Error, ErrorKind};
use crate::types::finding::{Finding, Findings, is_of_this_machine, version};

/// A connection whose server takes longer to answer is given up; see `link.rs`.
const PING_TIMEOUT: Duration = Duration::from_millis(350);
/// How far clocks may be apart before it is worth a warning, in seconds.
pub(in crate::engines) const CLOCKS_APART: f64 = 1.0;
/// How far a fence may be ahead of the clock, as `next_token` of shared.lua has it.
const FENCE_AHEAD_US: u64 = 86_400_000_000;
/// Connections that should be left for new clients.
const SPARE_CONNECTIONS: u64 = 10;

/// The oldest versions that the scripts run on, and that they are tested for; sharded messages.
const OLDEST: [u32; 3] = [5, 0, 0];
const TESTED: [u32; 3] = [7, 0, 0];

/// What is expected of a server.
#[derive(Debug, Clone, Copy)]
pub(in crate::engines) struct Expectations {
    pub(in crate::engines) ttl: Duration,
    pub(in crate::engines) encrypted: bool,
    /// Whether grants are held back after a restart.
    pub(in crate::engines) guarded: bool,
    /// Whether it is to be a node of a cluster.
    pub(in crate::engines) is_cluster: bool,
    /// Whether others take its place when it dies.
    pub(in crate::engines) fails_over: bool,
    /// Whether histories are kept.
    pub(in crate::engines) history: bool,
}

pub(super) async fn examine_server(
    options: &Options,
    server: &Dialer,
    expected: &Expectations,
    lock: &str,
) -> Vec<Finding> {
    match Facts::collect(options, server, lock, expected.history).await {
        Err(error) => vec![unreachable(&server.place, &error)],
        Ok(facts) => {
            let mut findings = Findings::about(&facts.place);
            check(&facts, expected, &mut findings);
            findings.all
        }
    }
}

/// A server that cannot be asked.
pub(in crate::engines) fn unreachable(place: &str, error: &Error) -> Finding {
    let fix = match error.kind() {
        _ if error.to_string().contains("switch database") => "leave the database out: only 0 is left there",
        ErrorKind::Auth => "check the user and the password",
        _ => "check that it runs, the address, the firewall, and whether it expects TLS",
    };
    Finding::not_safe("reach", place, error.to_string()).because("no lock can be taken on it").fix(fix)
}

/// Looks at everything that `facts` tell.
pub(in crate::engines) fn check(facts: &Facts, expected: &Expectations, findings: &mut Findings<'_>) {
    findings.round_trips(&facts.round_trips, expected.ttl, PING_TIMEOUT);
    clock(facts, findings);
    fence(facts, findings);
    rights(facts, expected, findings);
    natives(facts, findings);
    findings.encryption(expected.encrypted);
    exposure(facts, findings);
    release(facts, findings);
    topology(facts, expected, findings);
    if facts.info.is_none() {
        let (why, fix) = ("version, memory, persistence, replicas and role were not looked at", "ACL SETUSER … +info");
        return findings.note("info", "INFO is not allowed", why, fix);
    }
    if facts.config.is_none() {
        let why = "appendfsync, save, bind and min-replicas-to-write were not looked at";
        findings.note("config", "CONFIG GET is not allowed", why, "ask again as a user with +config|get");
    }
    eviction(facts, findings);
    connections(facts, findings);
    role(facts, findings);
    persistence(facts, expected, findings);
    replicas(facts, expected, findings);
}

fn release(facts: &Facts, findings: &mut Findings<'_>) {
    let found = facts.identity.to_string();
    let of_redis = || facts.identity.version.as_deref().filter(|_| facts.identity.product.as_deref() == Some("redis"));
    // Other products say there which Redis they are like.
    let Some(is) = facts.info("redis_version").or_else(of_redis).map(version) else {
        return findings.fine("version", found);
    };
    if is < OLDEST {
        let why = "its scripts may not write after they have asked for the time, so no lock can be taken";
        findings.not_safe("version", found, why, "use 7.0 or newer");
    } else if is < TESTED {
        let why = "distlock is tested on 7.0 and newer only; a cluster has no sharded messages, so waiters poll";
        findings.warning("version", found, why, "use 7.0 or newer");
    } else {
        findings.fine("version", found);
    }
}

fn topology(facts: &Facts, expected: &Expectations, findings: &mut Findings<'_>) {
    if facts.identity.is_cluster == Some(true) && !expected.is_cluster {
        let why = "other nodes have most of the keys, so no lock is taken over the address of one";
        findings.not_safe("cluster", "it is a node of a cluster", why, "name the nodes with redis+cluster://");
    }
}

fn eviction(facts: &Facts, findings: &mut Findings<'_>) {
    let Some(policy) = facts.info("maxmemory_policy") else { return };
    let limit = facts.number("maxmemory").unwrap_or(0);
    let fix = "CONFIG SET maxmemory-policy noeviction, or keep locks on a server of their own";
    match (policy, limit) {
        ("noeviction", _) => findings.fine("eviction", "noeviction"),
        (_, 0) => {
            let why = "as soon as maxmemory is set, locks may be evicted while they are held";
            findings.warning("eviction", format!("{policy}, without maxmemory"), why, fix);
        }
        _ => {
            let why = "locks are evicted while they are held, and then another owner gets them";
            findings.not_safe("eviction", format!("{policy} with maxmemory {limit}"), why, fix);
        }
    }
    let used = facts.number("used_memory").unwrap_or(0);
    if limit > 0 && used > limit / 10 * 9 {
        let why = "a full server takes no new locks";
        let found = format!("{} % of maxmemory is in use", used.saturating_mul(100) / limit);
        findings.warning("memory", found, why, "raise maxmemory, or keep locks on a server of their own");
    }
}

fn connections(facts: &Facts, findings: &mut Findings<'_>) {
    let (Some(now), Some(most)) = (facts.number("connected_clients"), facts.number("maxclients")) else { return };
    let found = format!("{now} of {most} connections are in use");
    if now + SPARE_CONNECTIONS > most {
        let why = "a holder that has lost its connection cannot come back, and loses its locks";
        findings.warning("connections", found, why, "raise maxclients, or find who leaves connections open");
    } else {
        findings.fine("connections", found);
    }
}

fn role(facts: &Facts, findings: &mut Findings<'_>) {
    match facts.info("role") {
        Some("master") => findings.fine("role", "it is a master"),
        Some(role) => {
            let master = (facts.info("master_host"), facts.info("master_port"));
            let found = match master {
                (Some(host), Some(port)) => format!("its role is {role}, of {host}:{port}"),
                _ => format!("its role is {role}"),
            };
            let why = "a replica refuses every claim; a writable one forgets what it granted";
            findings.not_safe("role", found, why, "name the master, or its sentinels with redis+sentinel://");
        }
        None => {}
    }
}

fn persistence(facts: &Facts, expected: &Expectations, findings: &mut Findings<'_>) {
    if facts.info("rdb_last_bgsave_status") == Some("err") || facts.info("aof_last_write_status") == Some("err") {
        let why = "a server that cannot write to its disk refuses locks, or forgets them when it restarts";
        findings.not_safe("disk", "the last write to its disk failed", why, "look at its log and its disk");
    }
    let keeps_all = facts.info("aof_enabled") == Some("1");
    let sync = facts.setting("appendfsync");
    match (expected.guarded, keeps_all, sync) {
        (true, ..) => findings.fine("persistence", "after a restart nothing is granted until older leases are over"),
        (false, true, Some("always")) => findings.fine("persistence", "each write is on disk before it is answered"),
        // Noted above that it could not be asked for.
        (false, true, None) => {}
        (false, true, Some(sync)) => {
            let why = "a restart forgets what was granted last, while its holders go on";
            let fix = "CONFIG SET appendfsync always, or restart_guard=on for every client";
            findings.warning("persistence", format!("appendonly with appendfsync {sync}"), why, fix);
        }
        (false, false, _) => {
            let saves = facts.setting("save").is_some_and(|save| !save.is_empty());
            let found = if saves { "snapshots only" } else { "nothing is kept on disk" };
            let why = "a restart forgets locks while their holders go on, and grants them again";
            let fix = "appendonly yes with appendfsync always, or restart_guard=on for every client";
            findings.warning("persistence", found, why, fix);
        }
    }
}

fn replicas(facts: &Facts, expected: &Expectations, findings: &mut Findings<'_>) {
    if facts.info("role") != Some("master") {
        return;
    }
    let replicas = facts.number("connected_slaves").unwrap_or(0);
    // Only told when it is set.
    let good = facts.number("min_slaves_good_slaves");
    let least: Option<u64> = facts.setting("min-replicas-to-write").and_then(|least| least.parse().ok());
    if expected.fails_over && replicas == 0 {
        let why = "when it dies no replica takes its place: its locks are gone, and none can be taken";
        findings.warning("replicas", "it has no replica", why, "add one, with min-replicas-to-write 1");
    }
    match (least, good) {
        (Some(least), Some(good)) if least > 0 && good < least => {
            let why = "it refuses every lock until enough replicas keep up";
            let found = format!("{good} replicas keep up, {least} must");
            findings.not_safe("replicas", found, why, "bring the replicas back");
        }
        (Some(0), _) if replicas > 0 => {
            let why = "replicas follow later: a master that is cut off goes on granting while its replica takes over, \
                       and what it granted last is lost";
            let found = format!("{replicas} replicas, min-replicas-to-write 0");
            let fix = "CONFIG SET min-replicas-to-write 1 and a short min-replicas-max-lag; check fencing tokens";
            findings.warning("replicas", found, why, fix);
        }
        (Some(least), _) if replicas > 0 => findings.fine("replicas", format!("{replicas}, {least} must keep up")),
        _ => {}
    }
}

fn clock(facts: &Facts, findings: &mut Findings<'_>) {
    let Some((least, most)) = facts.clock_offset() else { return };
    let off = if least > 0.0 { least } else { most.min(0.0) };
    if off.abs() <= CLOCKS_APART {
        return findings.fine("clock", format!("as ours, within {:.3} s", least.abs().max(most.abs())));
    }
    let why = "leases follow this clock: when it is set right they end early or late, and so they do when another \
               server with another clock takes over";
    let way = if off > 0.0 { "ahead of" } else { "behind" };
    findings.warning(
        "clock",
        format!("{:.1} s {way} ours", off.abs()),
        why,
        "keep all clocks by NTP, slewed and never stepped",
    );
}

/// A fence from a time to come makes the tokens of all locks behind the prefix.
fn fence(facts: &Facts, findings: &mut Findings<'_>) {
    let Some(FenceFact { key, value, server_us }) = &facts.fence else { return };
    let found = match value.parse::<u64>() {
        Ok(token) if token <= server_us.saturating_add(FENCE_AHEAD_US) => return,
        Ok(_) => format!("{key} is more than a day ahead of the server's clock"),
        Err(_) => format!("{key} is not a number"),
    };
    let why = "no lock behind the prefix can be taken: the next fencing token is not known";
    findings.not_safe("fence", found, why, "set the clock right if it is wrong, otherwise delete the key");
}

fn exposure(facts: &Facts, findings: &mut Findings<'_>) {
    if !facts.is_open {
        return findings.fine("password", "it asks for a password");
    }
    let addresses = facts.setting("bind").map(|bind| {
        let addresses = bind.split_whitespace().map(|address| address.trim_start_matches('-'));
        addresses.filter(|address| !is_of_this_machine(&format!("[{address}]:0"))).collect::<Vec<_>>().join(" ")
    });
    // An empty list is every address.
    let everywhere = facts.setting("bind") == Some("");
    let is_protected = facts.setting("protected-mode") == Some("yes");
    let is_far = match &addresses {
        _ if is_protected => false,
        Some(addresses) => everywhere || !addresses.is_empty(),
        None => !is_of_this_machine(&facts.place),
    };
    if !is_far {
        return findings.fine("password", "none, but only this machine reaches it");
    }
    let where_to = addresses.filter(|addresses| !addresses.is_empty()).unwrap_or_else(|| "every address".into());
    let why = "any client that reaches it can take, break and delete every lock";
    let fix = "set a password or users with rights of their own (docs/backends/redis.md), or bind to fewer addresses";
    findings.not_safe("password", format!("none, and it listens on {where_to}"), why, fix);
}

fn natives(facts: &Facts, findings: &mut Findings<'_>) {
    let found = match facts.natives.compare_and_delete {
        Some(command) => format!("{} releases locks without waiters, scripts all others", command.name()),
        None => "none; scripts release locks".into(),
    };
    findings.fine("native commands", found);
}

fn rights(facts: &Facts, expected: &Expectations, findings: &mut Findings<'_>) {
    let (rights, others): (Vec<_>, Vec<_>) = facts.refused.iter().partition(|(_, reason)| is_right(reason));
    let among = |names: &[&str]| {
        let mut found: Vec<&str> = rights.iter().map(|(name, _)| name.as_str()).collect();
        found.retain(|name| names.contains(name));
        found.dedup();
        found.join(", ")
    };
    const WAKES: [&str; 4] = ["PUBLISH", "SPUBLISH", "SUBSCRIBE", "SSUBSCRIBE"];
    const EXTRAS: [&str; 2] = ["SCAN", "ROLE"];
    const HISTORY: [&str; 2] = ["XADD", "XREVRANGE"];
    let mut needed: Vec<&str> = rights.iter().map(|(name, _)| name.as_str()).collect();
    needed.retain(|name| ![&WAKES[..], &EXTRAS, &HISTORY].iter().any(|others| others.contains(name)));
    needed.sort_unstable();
    needed.dedup();
    let (wakes, extras, history) = (among(&WAKES), among(&EXTRAS), among(&HISTORY));
    if !needed.is_empty() {
        let why = "locks cannot be taken, renewed or released without them";
        let fix = "the list in docs/backends/redis.md, for the keys behind the prefix";
        let reason = rights.iter().find(|(name, _)| name == needed[0]).map_or("", |(_, reason)| reason);
        findings.not_safe("rights", format!("refused: {} ({reason})", needed.join(", ")), why, fix);
    }
    if !wakes.is_empty() {
        let why = "waiters are not told when it is their turn, so they poll";
        findings.warning(
            "wakes",
            format!("refused: {wakes}"),
            why,
            "ACL SETUSER … +subscribe +publish (in a cluster +ssubscribe +spublish) &distlock:wake:*",
        );
    }
    if !extras.is_empty() {
        let why = "without SCAN locks cannot be listed; without ROLE a replica is found out by the first claim";
        findings.warning("extras", format!("refused: {extras}"), why, "ACL SETUSER … +scan +role");
    }
    if !history.is_empty() {
        let why = "histories are switched on; without XADD they are not written, without XREVRANGE not read";
        findings.warning("history", format!("refused: {history}"), why, "ACL SETUSER … +xadd +xrevrange");
    }
    if rights.is_empty() {
        findings.fine("rights", "everything that locking needs");
    }
    if expected.guarded && facts.info.is_none() {
        let why = "the restart guard needs INFO: nothing is granted without it";
        findings.not_safe("guard", "INFO is not allowed", why, "ACL SETUSER … +info");
    }
    if let Some((name, reason)) = others.first() {
        let why = "no lock can be taken while it refuses to write";
        findings.not_safe("writes", format!("{name}: {reason}"), why, "look at the other findings, and at its log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::finding::{Finding, Severity};

    /// A good server, with other words in what INFO says.
    fn server(info: &[(&str, &str)]) -> Facts {
        let good = [
            ("redis_version", "7.0.15"),
            ("maxmemory", "1000000"),
            ("maxmemory_policy", "noeviction"),
            ("used_memory", "1000"),
            ("connected_clients", "3"),
            ("maxclients", "10000"),
            ("role", "master"),
            ("aof_enabled", "1"),
        ];
        let info = good.iter().chain(info).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let config = [("appendfsync", "always"), ("bind", "127.0.0.1 -::1"), ("min-replicas-to-write", "0")];
        let config = config.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let round_trips = vec![Duration::from_millis(1)];
        let clock = vec![(-0.001, 0.002)];
        Facts {
            place: "127.0.0.1:1".into(),
            info: Some(info),
            config: Some(config),
            round_trips,
            clock,
            is_open: true,
            ..Facts::default()
        }
    }

    fn findings(facts: &Facts) -> Vec<Finding> {
        let expected = Expectations {
            ttl: Duration::from_secs(10),
            encrypted: false,
            guarded: false,
            is_cluster: false,
            fails_over: false,
            history: true,
        };
        let mut findings = Findings::about(&facts.place);
        check(facts, &expected, &mut findings);
        findings.all
    }

    fn troubles(facts: &Facts) -> Vec<(&'static str, Severity)> {
        let found = findings(facts).into_iter().filter(|finding| finding.severity > Severity::Fine);
        found.map(|finding| (finding.check, finding.severity)).collect()
    }

    /// Versions and states that the servers of the tests do not have.
    #[test]
    fn what_no_server_here_says_is_judged_too() {
        assert_eq!(troubles(&server(&[])), []);
        let cases = [
            (&[("redis_version", "4.0.14")][..], "version", Severity::Unsafe),
            (&[("redis_version", "6.2.7")], "version", Severity::Warning),
            (&[("used_memory", "950000")], "memory", Severity::Warning),
            (&[("maxmemory", "0"), ("maxmemory_policy", "allkeys-lru")], "eviction", Severity::Warning),
            (&[("aof_last_write_status", "err")], "disk", Severity::Unsafe),
            (&[("connected_slaves", "1")], "replicas", Severity::Warning),
        ];
        for (info, check, severity) in cases {
            assert_eq!(troubles(&server(info)), [(check, severity)], "{info:?}");
        }
    }

    #[test]
    fn a_fence_that_stops_the_prefix_is_found() {
        let with = |value: &str| {
            let fence = FenceFact { key: "{distlock}:f".into(), value: value.into(), server_us: 1_763_000_000_000_000 };
            troubles(&Facts { fence: Some(fence), ..server(&[]) })
        };
        assert_eq!([with("1763000000000000"), with("1763086400000000"), with("41")], [const { Vec::new() }; 3]);
        for value in ["1763086400000001", "18446744073709551616", "many", ""] {
            assert_eq!(with(value), [("fence", Severity::Unsafe)], "{value}");
        }
    }

    #[test]
    fn every_trouble_says_why_and_what_to_do() {
        let mut facts = server(&[("redis_version", "4.0"), ("role", "slave"), ("aof_enabled", "0")]);
        facts.refused = ["SET", "SCAN", "PUBLISH", "XADD"].map(|name| (name.into(), "NOPERM".into())).into();
        facts.refused.push(("SET".into(), "MISCONF".into()));
        facts.config = None;
        facts.place = "10.0.0.1:1".into();
        facts.clock = vec![(9.0, 9.1)];
        let found = findings(&facts);
        let bad: Vec<_> = found.iter().filter(|finding| finding.severity > Severity::Fine).collect();
        assert_eq!(bad.len(), 12, "{bad:#?}");
        assert!(bad.iter().all(|finding| !finding.why.is_empty() && !finding.fix.is_empty()), "{bad:#?}");
    }

    #[test]
    fn an_open_server_matters_where_others_reach_it() {
        let bound_to = |bind: &str| {
            let mut facts = server(&[]);
            facts.config.as_mut().unwrap().insert("bind".into(), bind.into());
            troubles(&facts)
        };
        assert_eq!(bound_to("127.0.0.1 -::1"), []);
        for bind in ["0.0.0.0", "", "* -::*", "127.0.0.1 -192.0.2.1"] {
            assert_eq!(bound_to(bind), [("password", Severity::Unsafe)], "{bind}");
        }
    }
}
