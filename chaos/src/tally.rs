//! The figures of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use distlock::Moment;

use crate::journal::What;
use crate::judge::Finding;
use crate::resource::Written;
use crate::tick_judge::TickHistory;
use crate::timeline::Timeline;

/// The figures and findings of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The figures.
    pub tally: Tally,
    /// Every broken rule.
    pub findings: Vec<Finding>,
}

/// The figures of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests for locks.
    pub asked: usize,
    /// Grants.
    pub granted: usize,
    /// Attempts that ended without a grant, by reason.
    pub failed: BTreeMap<String, usize>,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, usize>,
    /// Losses that holders learned of, by reason.
    pub losses: BTreeMap<String, usize>,
    /// Writes that the fenced resource accepted.
    pub accepted: usize,
    /// Stale writes that the fenced resource refused.
    pub refused: usize,
    /// Stale writes that overwrote a later holder's write in the unfenced resource.
    pub overwritten: u64,
    /// Undisturbed waits, whose order was judged.
    pub in_order: usize,
    /// Ticks that a worker knew to be done.
    pub ticks_done: usize,
    /// Runs of ticks that were started.
    pub runs: usize,
    /// The longest wait after all faults had ended.
    pub served_within: Duration,
}

impl Tally {
    pub(crate) fn of(
        timeline: &Timeline,
        writes: &[Written],
        overwritten: u64,
        is_fair: bool,
        healed: Moment,
    ) -> Tally {
        let mut tally = Tally { asked: timeline.turns.len(), overwritten, ..Tally::default() };
        for turn in &timeline.turns {
            for entry in &turn.entries {
                match &entry.what {
                    What::Failed { how } => {
                        let kind = how.split(':').next().unwrap_or_default();
                        *tally.failed.entry(kind.to_owned()).or_default() += 1;
                    }
                    What::Told { reason } => *tally.losses.entry(reason.clone()).or_default() += 1,
                    _ => {}
                }
            }
            if let Some(grant) = turn.granted {
                tally.granted += 1;
                tally.served_within = tally.served_within.max(grant.at.since(turn.asked.max(healed)));
            }
        }
        for one in &timeline.injected {
            *tally.faults.entry(one.fault.kind()).or_default() += 1;
        }
        tally.accepted = writes.iter().filter(|write| write.accepted).count();
        tally.refused = writes.len() - tally.accepted;
        tally.in_order = timeline.holds(is_fair).filter(|hold| hold.queued.is_some()).count();
        tally
    }
}

impl Tally {
    pub(crate) fn with_ticks(self, ticks: &TickHistory) -> Tally {
        Tally { ticks_done: ticks.done(), runs: ticks.runs(), ..self }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "  {name:<60} {value:>7}");
        row("locks requested", &self.asked)?;
        row("granted", &self.granted)?;
        for (how, count) in &self.failed {
            row(&format!("not granted: {how}"), count)?;
        }
        for (kind, count) in &self.faults {
            row(&format!("fault: {kind}"), count)?;
        }
        for (reason, count) in &self.losses {
            row(&format!("loss told: {reason}"), count)?;
        }
        row("writes accepted by the fence", &self.accepted)?;
        row("stale writes refused by the fence", &self.refused)?;
        row("stale writes that hit the resource without fence", &self.overwritten)?;
        if self.in_order > 0 {
            row("undisturbed waits, judged for their order", &self.in_order)?;
        }
        if self.runs > 0 {
            row("ticks done", &self.ticks_done)?;
            row("runs of ticks started", &self.runs)?;
        }
        row("longest wait after the last fault, ms", &self.served_within.as_millis())
    }
}
