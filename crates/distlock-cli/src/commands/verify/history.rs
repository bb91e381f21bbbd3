//! The holds that the workers reported, and the rules that they break.

use std::time::Duration;

/// A worker that requested the lock this much later than another must not be served before it. Below this, the network
/// decides the order.
const CLEARLY_LATER: Duration = Duration::from_secs(1);

/// One hold, as its worker saw it; times are nanoseconds of one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkerHold {
    pub(super) worker: usize,
    pub(super) asked: u64,
    pub(super) entered: u64,
    pub(super) left: u64,
    pub(super) token: u64,
    /// Whether the worker was stopped or killed at some time: the order of service does not apply to it then.
    pub(super) disturbed: bool,
}

/// Returns a description of every violation. `is_fair`: the engine promises to serve in order.
pub(super) fn violations(holds: &[WorkerHold], is_fair: bool) -> Vec<String> {
    let mut holds = holds.to_vec();
    holds.sort_by_key(|hold| hold.entered);
    let mut found = exclusion_violations(&holds);
    found.extend(token_violations(&holds));
    if is_fair {
        found.extend(order_violations(&holds));
    }
    found
}

fn exclusion_violations(holds: &[WorkerHold]) -> Vec<String> {
    let mut found = Vec::new();
    let mut longest: Option<&WorkerHold> = None;
    for hold in holds {
        if let Some(other) = longest.filter(|other| other.left > hold.entered) {
            let by = Duration::from_nanos(other.left - hold.entered);
            found.push(format!(
                "exclusion: worker {} entered with token {} while worker {} held with token {}, {by:.1?} before its end",
                hold.worker, hold.token, other.worker, other.token
            ));
        }
        if longest.is_none_or(|other| other.left < hold.left) {
            longest = Some(hold);
        }
    }
    found
}

fn token_violations(holds: &[WorkerHold]) -> Vec<String> {
    let falls = holds.windows(2).filter(|pair| pair[1].token <= pair[0].token);
    falls.map(|pair| format!("tokens: {} was granted after {}", pair[1].token, pair[0].token)).collect()
}

fn order_violations(holds: &[WorkerHold]) -> Vec<String> {
    let slack = u64::try_from(CLEARLY_LATER.as_nanos()).unwrap_or(u64::MAX);
    let mut found = Vec::new();
    // From the last to the first: the earliest request among those that were served later.
    let mut patient: Option<&WorkerHold> = None;
    for hold in holds.iter().rev().filter(|hold| !hold.disturbed) {
        if let Some(other) = patient.filter(|other| other.asked + slack < hold.asked) {
            found.push(format!(
                "order: worker {} was served before worker {}, which had requested it long before",
                hold.worker, other.worker
            ));
        }
        if patient.is_none_or(|other| hold.asked < other.asked) {
            patient = Some(hold);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn hold(worker: usize, asked: u64, entered: u64, left: u64, token: u64) -> WorkerHold {
        WorkerHold { worker, asked: asked * MS, entered: entered * MS, left: left * MS, token, disturbed: false }
    }

    #[test]
    fn a_correct_history_has_no_violations() {
        let clean = [hold(0, 0, 1, 5, 1), hold(1, 0, 5, 9, 2), hold(0, 6, 10, 11, 3)];
        assert_eq!(violations(&clean, true), [""; 0]);
    }

    #[test]
    fn each_broken_rule_is_a_violation() {
        let overlap = [hold(0, 0, 1, 50, 1), hold(1, 0, 5, 6, 2), hold(2, 0, 20, 30, 3)];
        assert_eq!(violations(&overlap, false).iter().filter(|text| text.starts_with("exclusion: ")).count(), 2);
        let repeated = [hold(0, 0, 1, 2, 7), hold(1, 0, 3, 4, 7)];
        assert!(violations(&repeated, false)[0].starts_with("tokens: 7"));
        let overtaken = [hold(1, 2_000, 2_001, 2_002, 1), hold(0, 0, 3_000, 3_001, 2)];
        assert!(violations(&overtaken, true)[0].starts_with("order: worker 1"));
        assert_eq!(violations(&overtaken, false), [""; 0], "an engine that promises no order");
        let asleep = [overtaken[0], WorkerHold { disturbed: true, ..overtaken[1] }];
        assert_eq!(violations(&asleep, true), [""; 0], "a stopped worker cannot be served in order");
        let close = [hold(1, 500, 501, 502, 1), hold(0, 0, 3_000, 3_001, 2)];
        assert_eq!(violations(&close, true), [""; 0], "too close to tell who was first");
    }
}
