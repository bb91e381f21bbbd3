//! Finds what makes locks on a majority unsafe: nodes that are not independent, clocks, restarts, no majority.

use std::time::Duration;

use crate::engines::redis::doctor::{CLOCKS_APART, Expectations, Facts, check, unreachable};
use crate::engines::redlock::engine::Redlock;
use crate::engines::redlock::state::quorum::quorum_of;
use crate::types::finding::{Finding, Findings, Severity};

const PLACE: &str = "all nodes";

impl Redlock {
    /// Examines the nodes for leases of `ttl`. Returns all findings.
    pub(crate) async fn examine(&self, ttl: Duration) -> Vec<Finding> {
        let mut all = Vec::new();
        let mut nodes = Vec::new();
        for node in &self.options.nodes {
            match node.facts().await {
                // A warning: the other nodes are enough, as long as they are a majority.
                Err(error) => all.push(Finding { severity: Severity::Warning, ..unreachable(node.place(), &error) }),
                Ok(facts) => {
                    let guarded = self.options.restart_guard;
                    let expected = Expectations { guarded, ..node.expectations(ttl) };
                    let mut findings = Findings::about(&facts.place);
                    check(&facts, &expected, &mut findings);
                    all.append(&mut findings.all);
                    nodes.push(facts);
                }
            }
        }
        // The user switched the restart guard off, so a node that loses its data makes locks unsafe.
        for finding in all.iter_mut().filter(|finding| finding.check == "persistence") {
            finding.severity = if finding.severity == Severity::Fine { Severity::Fine } else { Severity::Unsafe };
        }
        let mut findings = Findings::about(PLACE);
        check_together(&nodes, self.options.nodes.len(), &mut findings);
        all.append(&mut findings.all);
        all
    }
}

fn check_together(nodes: &[Facts], named: usize, findings: &mut Findings<'_>) {
    let quorum = quorum_of(named);
    let found = format!("{} of {named} answer, {quorum} must", nodes.len());
    if nodes.len() < quorum {
        let why = "without a majority no lock can be taken or renewed";
        findings.not_safe("quorum", found, why, "bring nodes back, beginning with those that kept their data");
    } else {
        findings.fine("quorum", found);
    }
    for (at, node) in nodes.iter().enumerate() {
        let run_id = node.info("run_id");
        let twin = nodes[..at].iter().find(|other| run_id.is_some() && other.info("run_id") == run_id);
        if let Some(twin) = twin {
            let found = format!("{} and {} are the same server", twin.place, node.place);
            let why = "it votes twice, so fewer servers than a majority grant a lock, and one failure takes two votes";
            findings.not_safe("independence", found, why, "name servers that have nothing in common");
        }
    }
    let offsets: Vec<(f64, f64)> = nodes.iter().filter_map(Facts::clock_offset).collect();
    let fastest = offsets.iter().map(|(least, _)| *least).fold(f64::NEG_INFINITY, f64::max);
    let slowest = offsets.iter().map(|(_, most)| *most).fold(f64::INFINITY, f64::min);
    if fastest - slowest > CLOCKS_APART {
        let why = "clocks that are set right later make a majority forget leases at once, if enough of them are wrong";
        let found = format!("their clocks are at least {:.1} s apart", fastest - slowest);
        findings.warning("clocks", found, why, "keep all clocks by NTP, slewed and never stepped");
    }
}
