//! Examines the server for what makes locks there unsafe, slow or impossible: collects facts, then judges them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::engines::postgres::client::Postgres;
use crate::engines::postgres::protocol::requests::{Statement, column, garbled};
use crate::engines::postgres::state::server_clock::ServerClock;
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::options::Options;
use crate::types::clock::Clock;
use crate::types::error::{ErrorKind, Result};
use crate::types::finding::{Finding, Findings};

/// How many times the round trip is measured.
const ROUND_TRIPS: usize = 5;
/// A renewal that takes longer is at risk.
const SLOW: Duration = Duration::from_millis(300);
/// How far clocks may be apart before it is worth a warning.
const CLOCKS_APART: Duration = Duration::from_secs(1);
/// Connections that should be left for new clients.
const SPARE_CONNECTIONS: i32 = 10;
/// What a lock's row and its index take at most, with room for its older versions.
const MOST_BYTES_PER_LOCK: i64 = 16 << 10;
/// Tables that are smaller are not worth a word.
const SMALL_BYTES: i64 = 8 << 20;

/// What the server says about itself.
#[derive(Debug, Clone)]
struct Facts {
    version: i32,
    is_pooled: bool,
    round_trips: Vec<Duration>,
    /// The server's clock less ours, and how far off that may be.
    clock_ahead: f64,
    clock_error: Duration,
    synchronous_commit: String,
    fsync: String,
    standbys: String,
    /// Replicas, those that are synchronous, and the bytes that the slowest has yet to get.
    replicas: i64,
    synchronous: i64,
    lag_bytes: Option<i64>,
    idle_limit_ms: i32,
    isolation: String,
    connections_left: i32,
    locks: i64,
    bytes: i64,
    /// What the user may not do and a lock needs.
    missing_rights: String,
}

impl Postgres {
    /// Returns everything that was found; leases are to last `ttl`.
    pub(super) async fn examine(&self, ttl: Duration) -> Vec<Finding> {
        let place = self.options.places();
        let mut findings = Findings::about(&place);
        match Facts::collect(&self.options).await {
            Ok(facts) => {
                findings.round_trips(&facts.round_trips, ttl, SLOW);
                findings.encryption(self.options.is_encrypted);
                judge(&facts, &mut findings);
            }
            Err(error) => {
                let fix = error.help().unwrap_or(match error.kind() {
                    ErrorKind::Auth => "check the user, the password and the rights",
                    _ => "check that it runs, the address, the firewall, and whether it expects TLS",
                });
                findings.not_safe("reach", error.to_string(), "no lock can be taken on it", fix);
            }
        }
        findings.all
    }
}

impl Facts {
    async fn collect(options: &Options) -> Result<Facts> {
        let clock = Clock::system();
        let server_clock = Arc::new(ServerClock::new(clock.clone(), 0.0));
        let connection = Connection::open(options, &server_clock, &[], None).await?;
        let (mut round_trips, mut best) = (Vec::new(), None::<(Duration, f64)>);
        for _ in 0..ROUND_TRIPS {
            let (sent, wall) = (clock.now(), clock.wall());
            let rows = connection.query(&options.statements.clock, &[]).await?;
            let took = clock.now().since(sent);
            let server_us: i64 = column(rows.first().ok_or_else(garbled)?, 0)?;
            let ours = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
            let ahead = server_us as f64 / 1e6 - ours.as_secs_f64();
            best = Some(best.filter(|(best, _)| *best < took).unwrap_or((took, ahead)));
            round_trips.push(took);
        }
        let (clock_error, clock_ahead) = best.ok_or_else(garbled)?;
        let row = connection.query(&look(options), &[]).await?;
        let row = row.first().ok_or_else(garbled)?;
        Ok(Facts {
            version: column(row, 0)?,
            is_pooled: connection.is_pooled,
            round_trips,
            clock_ahead,
            clock_error,
            synchronous_commit: column(row, 1)?,
            fsync: column(row, 2)?,
            standbys: column(row, 3)?,
            replicas: column(row, 4)?,
            synchronous: column(row, 5)?,
            lag_bytes: column(row, 6)?,
            idle_limit_ms: column(row, 7)?,
            isolation: column(row, 8)?,
            connections_left: column(row, 9)?,
            locks: column(row, 10)?,
            bytes: column(row, 11)?,
            missing_rights: column(row, 12)?,
        })
    }
}

/// Asks for everything at once. What the user may not see is empty.
fn look(options: &Options) -> Statement {
    let sizes = ["locks", "holders", "waiters"].map(|table| {
        let name = format!("{}.{table}", options.schema).replace('\'', "''");
        format!("coalesce(pg_total_relation_size(to_regclass('{name}')), 0)")
    });
    let locks = format!("{}.locks", options.schema).replace('\'', "''");
    let text = format!(
        "SELECT current_setting('server_version_num')::int, current_setting('synchronous_commit'), current_setting('fsync'), \
         current_setting('synchronous_standby_names'), \
         (SELECT count(*) FROM pg_stat_replication), \
         (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')), \
         (SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn))::bigint FROM pg_stat_replication), \
         (SELECT setting::int FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'), \
         current_setting('default_transaction_isolation'), \
         current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int \
         - (SELECT count(*)::int FROM pg_stat_activity WHERE datid IS NOT NULL), \
         coalesce((SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass('{locks}')), 0), {}, {}",
        sizes.join(" + "),
        missing_rights(options),
    );
    Statement { text, types: &[] }
}

/// Returns an expression for the functions and views of the schema that the user may not use.
fn missing_rights(options: &Options) -> String {
    let schema = options.schema.to_string().replace('\'', "''");
    format!(
        "(SELECT coalesce(string_agg(o.name, ', ' ORDER BY o.name), '') FROM ( \
         SELECT proname::text AS name FROM pg_proc WHERE pronamespace = to_regnamespace('{schema}') \
         AND left(proname, 1) <> '_' AND NOT has_function_privilege(oid, 'EXECUTE') \
         UNION ALL SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace('{schema}') AND relkind = 'v' \
         AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'UPDATE'))) o)"
    )
}

fn judge(facts: &Facts, findings: &mut Findings<'_>) {
    findings.fine("version", format!("version {}.{}", facts.version / 10_000, facts.version % 10_000));
    rights(facts, findings);
    durability(facts, findings);
    replicas(facts, findings);
    clock(facts, findings);
    sessions(facts, findings);
    size(facts, findings);
}

fn rights(facts: &Facts, findings: &mut Findings<'_>) {
    if facts.missing_rights.is_empty() {
        return findings.fine("rights", "the user may use all functions and views of the schema");
    }
    let found = format!("the user may not use {}", facts.missing_rights);
    let why = "claims and releases that need them fail";
    findings.not_safe(
        "rights",
        found,
        why,
        "run `distlock setup URL` as the schema's owner, or grant them to the user",
    );
}

fn durability(facts: &Facts, findings: &mut Findings<'_>) {
    if facts.fsync != "on" {
        let why = "a crash of the machine loses locks that are held, or damages the database";
        return findings.not_safe("fsync", "fsync is off", why, "turn fsync on");
    }
    if facts.synchronous_commit == "off" {
        let why = "a crash of the server loses the grants of the last moments, which may be granted twice then";
        let fix = "ALTER ROLE … SET synchronous_commit = on for the user of the locks";
        return findings.not_safe("durability", "synchronous_commit is off", why, fix);
    }
    findings.fine("durability", format!("synchronous_commit is {}", facts.synchronous_commit));
}

fn replicas(facts: &Facts, findings: &mut Findings<'_>) {
    let waits = !facts.standbys.is_empty() && facts.synchronous_commit != "local";
    match (facts.replicas, waits) {
        (0, true) => {
            let why = "every grant waits for a replica that is not there";
            findings.warning(
                "replicas",
                "synchronous_standby_names names none that is connected",
                why,
                "start a replica",
            );
        }
        (0, false) => findings.fine("replicas", "none: locks are as available as this server"),
        (count, true) => {
            findings
                .fine("replicas", format!("{count}, of which {} have each grant before it counts", facts.synchronous));
        }
        (count, false) => {
            let lag = facts.lag_bytes.map(|bytes| format!(", {bytes} bytes behind")).unwrap_or_default();
            let why = "a replica that is promoted may lack the last grants, and grant them again with higher tokens";
            let fix = "set synchronous_standby_names, or check fencing tokens where it matters";
            findings.note("replicas", format!("{count}, none of them synchronous{lag}"), why, fix);
        }
    }
}

fn clock(facts: &Facts, findings: &mut Findings<'_>) {
    let found = format!("the server's clock is {:+.3} s from ours", facts.clock_ahead);
    if facts.clock_ahead.abs() > (CLOCKS_APART + facts.clock_error).as_secs_f64() {
        let why =
            "leases do not depend on it, but the times in logs do, and a clock that is set back makes leases longer";
        return findings.warning("clock", found, why, "run an NTP client on both machines");
    }
    findings.fine("clock", found);
}

fn sessions(facts: &Facts, findings: &mut Findings<'_>) {
    if facts.is_pooled {
        let why = "waiters poll, since messages reach only a session of their own; a lock is handed over a tenth of a second later";
        findings.note("pooler", "a pooler is between us and the server", why, "connect directly for messages");
    } else {
        findings.fine("pooler", "sessions are our own: waiters get messages");
    }
    // Our own sessions set it; behind a pooler it is the user's default.
    if facts.is_pooled && facts.isolation != "read committed" {
        let why = "claims that meet fail and are repeated";
        let fix = "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the user of the locks";
        findings.warning("isolation", format!("transactions are {} by default", facts.isolation), why, fix);
    }
    if facts.idle_limit_ms == 0 {
        let why = "a transaction that relies on a lock and is never ended keeps that lock from everybody";
        let fix = "set idle_in_transaction_session_timeout for the application's user";
        findings.note("idle", "transactions may stand idle without limit", why, fix);
    } else {
        findings.fine("idle", format!("idle transactions end after {} ms", facts.idle_limit_ms));
    }
    let found = format!("{} connections are left", facts.connections_left);
    if facts.connections_left < SPARE_CONNECTIONS {
        let why = "a process that cannot connect takes no lock; each needs up to three connections";
        return findings.warning(
            "connections",
            found,
            why,
            "raise max_connections, or use a pooler for the application",
        );
    }
    findings.fine("connections", found);
}

fn size(facts: &Facts, findings: &mut Findings<'_>) {
    let found = format!("{} locks in {} KiB", facts.locks.max(0), facts.bytes >> 10);
    if facts.bytes > SMALL_BYTES && facts.bytes > facts.locks.max(1) * MOST_BYTES_PER_LOCK {
        let why = "every claim reads through versions of rows that are gone";
        let fix =
            "find what keeps old versions: a transaction that is open for hours, a replication slot, autovacuum off";
        return findings.warning("bloat", found, why, fix);
    }
    findings.fine("bloat", found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::finding::Severity;

    fn healthy() -> Facts {
        Facts {
            version: 150_018,
            is_pooled: false,
            round_trips: vec![Duration::from_millis(1)],
            clock_ahead: 0.01,
            clock_error: Duration::from_millis(1),
            synchronous_commit: "on".into(),
            fsync: "on".into(),
            standbys: String::new(),
            replicas: 0,
            synchronous: 0,
            lag_bytes: None,
            idle_limit_ms: 60_000,
            isolation: "read committed".into(),
            connections_left: 50,
            locks: 1000,
            bytes: 1 << 20,
            missing_rights: String::new(),
        }
    }

    fn worst(facts: &Facts) -> Vec<(&'static str, Severity)> {
        let mut findings = Findings::about("db:5432");
        judge(facts, &mut findings);
        let all = findings.all.into_iter().map(|finding| (finding.check, finding.severity));
        all.filter(|(_, severity)| *severity > Severity::Fine).collect()
    }

    #[test]
    fn a_healthy_server_is_fine_and_each_ailment_has_its_finding() {
        assert_eq!(worst(&healthy()), []);
        let cases = [
            (Facts { missing_rights: "claim".into(), ..healthy() }, "rights", Severity::Unsafe),
            (Facts { fsync: "off".into(), ..healthy() }, "fsync", Severity::Unsafe),
            (Facts { synchronous_commit: "off".into(), ..healthy() }, "durability", Severity::Unsafe),
            (Facts { standbys: "*".into(), ..healthy() }, "replicas", Severity::Warning),
            (Facts { replicas: 2, lag_bytes: Some(7), ..healthy() }, "replicas", Severity::Note),
            (Facts { clock_ahead: -5.0, ..healthy() }, "clock", Severity::Warning),
            (Facts { is_pooled: true, ..healthy() }, "pooler", Severity::Note),
            (Facts { idle_limit_ms: 0, ..healthy() }, "idle", Severity::Note),
            (Facts { connections_left: 2, ..healthy() }, "connections", Severity::Warning),
            (Facts { bytes: 1 << 30, ..healthy() }, "bloat", Severity::Warning),
        ];
        for (facts, check, severity) in cases {
            assert_eq!(worst(&facts), [(check, severity)], "{facts:?}");
        }
        let strict = Facts { is_pooled: true, isolation: "serializable".into(), ..healthy() };
        assert!(worst(&strict).contains(&("isolation", Severity::Warning)));
    }
}
