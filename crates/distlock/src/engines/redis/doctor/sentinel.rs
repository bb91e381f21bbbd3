//! Looks at the sentinels of a service, and at the master that they name.

use std::collections::HashMap;
use std::time::Duration;

use super::facts::{allowed, with_connection};
use super::server::{Expectations, examine_server};
use crate::engines::redis::wire::options::Options;
use crate::engines::redis::wire::sentinels::Sentinels;
use crate::engines::shared::dial::{Address, Dialer};
use crate::types::error::Result;
use crate::types::finding::{Finding, Findings};

/// Below this no sentinel may fail.
const FEWEST: usize = 3;

/// What one sentinel says about the service; `None`: it does not know it.
type View = Option<HashMap<String, String>>;

pub(super) async fn examine(
    options: &Options,
    sentinels: &Sentinels,
    expected: &Expectations,
    lock: &str,
) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut views = Vec::new();
    for sentinel in &sentinels.addresses {
        match ask(options, sentinels, sentinel).await {
            Ok(view) => views.push((sentinel.to_string(), view)),
            Err(error) => all.push(
                Finding::warning("reach", &sentinel.to_string(), error.to_string())
                    .because("without a majority of the sentinels the master cannot be found")
                    .fix("bring it back, or take it out of the URL and out of the others' lists"),
            ),
        }
    }
    let place = format!("service {:?}", sentinels.service);
    let mut findings = Findings::about(&place);
    for (sentinel, view) in &views {
        match view {
            Some(view) => check_view(sentinel, view, sentinels.addresses.len(), expected.ttl, &mut findings),
            None => findings.all.push(
                Finding::not_safe("service", sentinel, format!("it does not know the service {:?}", sentinels.service))
                    .because("it has no vote on who is master")
                    .fix("SENTINEL MONITOR on it, or name the right service"),
            ),
        }
    }
    if sentinels.addresses.len() < FEWEST {
        let found = format!("{} sentinels are named", sentinels.addresses.len());
        let why = "when one dies there is no majority: no failover, and clients find no master";
        findings.warning("sentinels", found, why, "run three or more, on machines of their own, and name them all");
    }
    all.append(&mut findings.all);
    match sentinels.master().await {
        Err(error) => all.push(
            Finding::not_safe("master", &place, error.to_string())
                .because("no server can be asked for locks")
                .fix("bring a majority of the sentinels back, and see what each of them says"),
        ),
        Ok(master) => {
            let expected = Expectations { fails_over: true, ..*expected };
            let dialer = Dialer::tcp(&master, options.encryption.as_ref());
            all.extend(examine_server(options, &dialer, &expected, lock).await);
        }
    }
    all
}

async fn ask(options: &Options, sentinels: &Sentinels, sentinel: &Address) -> Result<View> {
    let server = Dialer::tcp(sentinel, sentinels.encryption.as_ref());
    with_connection(options, &server, &sentinels.login, async |connection| {
        allowed(connection, redis::cmd("SENTINEL").arg("MASTER").arg(&*sentinels.service)).await
    })
    .await
}

/// What one sentinel says. Each is told apart by its place, since they may differ.
fn check_view(
    sentinel: &str,
    view: &HashMap<String, String>,
    named: usize,
    ttl: Duration,
    findings: &mut Findings<'_>,
) {
    let number = |field: &str| view.get(field).and_then(|value| value.parse::<u64>().ok());
    let warn =
        |check, found: String, why: &str, fix: &str| Finding::warning(check, sentinel, found).because(why).fix(fix);
    if let Some(down_after) = number("down-after-milliseconds").map(Duration::from_millis) {
        if down_after >= ttl {
            let found = format!("down-after-milliseconds is {down_after:?}, leases last {ttl:?}");
            let why = "every holder loses its locks before a dead master is replaced";
            findings.all.push(warn(
                "failover",
                found,
                why,
                "SENTINEL SET … down-after-milliseconds to a third of the lease",
            ));
        } else {
            findings.all.push(Finding::fine("failover", sentinel, format!("begins after {down_after:?} of silence")));
        }
    }
    let known = number("num-other-sentinels").unwrap_or(0) + 1;
    if let Some(quorum) = number("quorum") {
        let found = format!("quorum {quorum} of {known} sentinels");
        if quorum > known {
            let why = "so many never agree: a dead master is not replaced";
            findings.all.push(warn("quorum", found, why, "SENTINEL SET … quorum to more than half of them"));
        } else if quorum * 2 <= known {
            let why = "a minority that cannot see the master begins a failover, which costs locks";
            findings.all.push(warn("quorum", found, why, "SENTINEL SET … quorum to more than half of them"));
        } else {
            findings.all.push(Finding::fine("quorum", sentinel, found));
        }
    }
    if known != named as u64 {
        let found = format!("it knows {known} sentinels, {named} are named");
        let why = "a majority of those named must agree on the master, so a few can name the wrong one";
        findings.all.push(warn("sentinels", found, why, "name all of them, and no other"));
    }
    let flags = view.get("flags").map(String::as_str).unwrap_or_default();
    if flags.contains("down") {
        let why = "a failover may be in progress";
        findings.all.push(warn("master", format!("it takes the master for dead ({flags})"), why, "look at the master"));
    }
}
