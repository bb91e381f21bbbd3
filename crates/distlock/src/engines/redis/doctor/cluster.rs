//! Looks at a cluster: whether every slot is served, and at each master.

use super::facts::{allowed, ask, with_connection};
use super::server::{Expectations, examine_server, unreachable};
use crate::engines::redis::wire::hash_slot::{HASH_SLOTS, SlotMap, hash_slot};
use crate::engines::redis::wire::options::{Options, Protocol};
use crate::engines::shared::dial::{Address, Dialer};
use crate::types::error::{Error, Result};
use crate::types::finding::{Finding, Findings};

/// Below this the masters cannot agree that one of them is dead.
const FEWEST: usize = 3;

/// What a node says about the whole.
struct View {
    slots: SlotMap,
    info: String,
}

pub(super) async fn examine(options: &Options, seeds: &[Address], expected: &Expectations, lock: &str) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut found = None;
    for seed in seeds {
        match view(options, seed).await {
            Ok(view) => found = found.or(Some((seed, view))),
            Err(error) => all.push(unreachable(&seed.to_string(), &error)),
        }
    }
    let Some((teller, View { slots, info })) = found else { return all };
    // One that answers is enough to find the others.
    all.iter_mut().for_each(|finding| finding.severity = crate::types::finding::Severity::Warning);
    let place = format!("the cluster, by {teller}");
    let mut findings = Findings::about(&place);
    check(&slots, &info, &mut findings);
    all.append(&mut findings.all);
    let expected = Expectations { fails_over: true, ..*expected };
    for owner in slots.owners() {
        let is_its = |lock: &String| slots.owner(hash_slot(lock)) == Some(&owner);
        let Some(lock) = (0..u32::from(HASH_SLOTS)).map(|number| format!("{lock}{number}")).find(is_its) else {
            continue;
        };
        let server = Dialer::tcp(&owner, options.encryption.as_ref());
        all.extend(examine_server(options, &server, &expected, &lock).await);
    }
    all
}

async fn view(options: &Options, node: &Address) -> Result<View> {
    let server = Dialer::tcp(node, options.encryption.as_ref());
    with_connection(options, &server, &options.login(Protocol::Resp2), async |connection| {
        let unknown = || Error::unavailable(format!("redis: {node} does not say who serves which slot"));
        let slots = ask(connection, redis::cmd("CLUSTER").arg("SLOTS")).await.map_err(|_| unknown())?;
        let slots = SlotMap::read(&slots, node).ok_or_else(unknown)?;
        let info: Option<String> = allowed(connection, redis::cmd("CLUSTER").arg("INFO")).await?;
        Ok(View { slots, info: info.unwrap_or_default() })
    })
    .await
}

fn check(slots: &SlotMap, info: &str, findings: &mut Findings<'_>) {
    let unserved = (0..HASH_SLOTS).filter(|slot| slots.owner(*slot).is_none()).count();
    if unserved > 0 {
        let found = format!("no node serves {unserved} of {HASH_SLOTS} slots");
        let why = "locks whose names fall into them cannot be taken, by default no lock at all";
        findings.not_safe("slots", found, why, "CLUSTER ADDSLOTS, or redis-cli --cluster fix");
    } else {
        findings.fine("slots", "every slot is served");
    }
    let state = info.lines().find_map(|line| line.strip_prefix("cluster_state:")).unwrap_or("not told");
    if state != "ok" && !info.is_empty() {
        let why = "a cluster that is not whole refuses locks";
        findings.not_safe("state", format!("its state is {state}"), why, "bring its nodes back");
    }
    let masters = slots.owners().len();
    if masters < FEWEST {
        let why = "the masters cannot agree that one of them is dead, so no replica takes its place";
        findings.warning("masters", format!("{masters} masters"), why, "run three or more");
    }
}
