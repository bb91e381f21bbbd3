//! The rules of jobs that run once per tick.

use std::collections::BTreeMap;
use std::fmt;

use distlock::Moment;

use crate::job::{JobStep, TickJob};
use crate::job_worker::NO_TICK;

/// A step of a request, as a worker wrote it down.
#[derive(Debug, Clone)]
pub(crate) struct JobEvent {
    pub(crate) at: Moment,
    /// The index of the worker's process.
    pub(crate) process: usize,
    pub(crate) attempt: u64,
    pub(crate) job: TickJob,
    pub(crate) step: JobStep,
    pub(crate) tick: String,
}

/// A broken rule of ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickViolation {
    /// Two runs of a tick succeeded.
    TwoSuccesses,
    /// A run was started by a request that began after a worker was told that the tick is done.
    RanAfterDone,
    /// More runs were started than allowed.
    TooManyRuns,
    /// A worker was told that a tick is done of which no run had come to its end.
    DoneWithoutRun,
    /// A worker asked for a tick in vain although all faults had ended.
    NeverSettled,
}

impl fmt::Display for TickViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TickViolation::TwoSuccesses => "two runs of a tick succeeded",
            TickViolation::RanAfterDone => "a tick was run after it was done",
            TickViolation::TooManyRuns => "a tick was run more often than allowed",
            TickViolation::DoneWithoutRun => "a tick was called done that no run had finished",
            TickViolation::NeverSettled => "a tick was neither run nor done though nothing was in the way",
        })
    }
}

/// One request for a run: the moments of its steps.
#[derive(Debug, Clone)]
struct TickRequest {
    process: usize,
    job: TickJob,
    /// Unknown of a periodic job's request that has no outcome.
    tick: String,
    asked: Moment,
    told_done: Option<Moment>,
    runs: Option<Moment>,
    finishes: Option<Moment>,
    succeeded: Option<Moment>,
    is_exhausted: bool,
}

impl TickRequest {
    fn is_settled(&self) -> bool {
        self.told_done.is_some() || self.succeeded.is_some() || self.is_exhausted
    }

    /// Returns when the worker knew that the tick is done.
    fn knew(&self) -> Option<Moment> {
        self.told_done.or(self.succeeded)
    }
}

/// All requests of a run.
#[derive(Debug, Default)]
pub(crate) struct TickHistory {
    requests: Vec<TickRequest>,
    /// When the engine may have lost notes.
    losses: Vec<(Moment, Moment)>,
}

impl TickHistory {
    /// Builds the history from the events of each process, in their order.
    pub(crate) fn new(events: &[JobEvent], losses: Vec<(Moment, Moment)>) -> TickHistory {
        let mut requests: BTreeMap<(usize, u64), TickRequest> = BTreeMap::new();
        for event in events {
            let request = requests.entry((event.process, event.attempt)).or_insert_with(|| TickRequest {
                process: event.process,
                job: event.job,
                tick: NO_TICK.to_owned(),
                asked: event.at,
                told_done: None,
                runs: None,
                finishes: None,
                succeeded: None,
                is_exhausted: false,
            });
            request.tick.clone_from(&event.tick);
            match event.step {
                JobStep::ToldDone => request.told_done = Some(event.at),
                JobStep::Runs => request.runs = Some(event.at),
                JobStep::Finishes => request.finishes = Some(event.at),
                JobStep::Succeeded => request.succeeded = Some(event.at),
                JobStep::Exhausted => request.is_exhausted = true,
                JobStep::Asks | JobStep::Failed | JobStep::InDoubt => {}
            }
        }
        TickHistory { requests: requests.into_values().collect(), losses }
    }

    /// Returns the first violation with its job and tick.
    pub(crate) fn check(&self) -> Option<(TickViolation, TickJob, String)> {
        let mut ticks: BTreeMap<(TickJob, &str), Vec<&TickRequest>> = BTreeMap::new();
        for request in self.requests.iter().filter(|request| request.tick != NO_TICK) {
            ticks.entry((request.job, &request.tick)).or_default().push(request);
        }
        let mut all = ticks.into_iter();
        all.find_map(|((job, tick), requests)| Some((self.check_tick(job, &requests)?, job, tick.to_owned())))
    }

    fn check_tick(&self, job: TickJob, requests: &[&TickRequest]) -> Option<TickViolation> {
        let runs: Vec<&&TickRequest> = requests.iter().filter(|request| request.runs.is_some()).collect();
        let succeeded: Vec<&&TickRequest> = requests.iter().filter(|request| request.succeeded.is_some()).collect();
        let ends = requests.iter().filter_map(|request| request.finishes);
        let (known, first_end) = (requests.iter().filter_map(|request| request.knew()), ends.min());
        if known.clone().any(|knew| first_end.is_none_or(|end| knew < end)) {
            return Some(TickViolation::DoneWithoutRun);
        }
        if self.has_unexplained_pair(&succeeded) {
            return Some(TickViolation::TwoSuccesses);
        }
        let ran_after = |run: &TickRequest, knew: Moment| run.asked > knew && !self.is_lost_between(knew, run.runs);
        if known.min().is_some_and(|knew| runs.iter().any(|run| ran_after(run, knew))) {
            return Some(TickViolation::RanAfterDone);
        }
        (job == TickJob::AtMostOnce && self.has_unexplained_pair(&runs)).then_some(TickViolation::TooManyRuns)
    }

    /// Returns whether two of these runs are of the same tick although no note was lost between them.
    fn has_unexplained_pair(&self, runs: &[&&TickRequest]) -> bool {
        let mut runs = runs.to_vec();
        runs.sort_by_key(|run| run.runs);
        runs.windows(2).any(|pair| !self.is_lost_between(pair[0].asked, pair[1].runs))
    }

    fn is_lost_between(&self, from: Moment, to: Option<Moment>) -> bool {
        self.losses.iter().any(|(begin, end)| *end >= from && to.is_some_and(|to| *begin <= to))
    }

    /// Returns the job and tick for which a process asked last, if it was not told what became of it.
    pub(crate) fn unsettled(&self, process: usize) -> Option<(TickJob, String)> {
        TickJob::ALL.iter().find_map(|(_, job)| {
            let mut of_job = self.requests.iter().filter(|request| request.process == process && request.job == *job);
            let last = of_job.next_back()?;
            (!last.is_settled()).then(|| (last.job, last.tick.clone()))
        })
    }

    /// Returns how many ticks a worker knew to be done.
    pub(crate) fn done(&self) -> usize {
        let done = self.requests.iter().filter(|request| request.knew().is_some());
        done.map(|request| (request.job, &request.tick)).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Returns how many runs were started.
    pub(crate) fn runs(&self) -> usize {
        self.requests.iter().filter(|request| request.runs.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use JobStep::*;

    /// Returns the history of these requests for one tick, each of a process of its own: what it did, and when.
    fn history(job: TickJob, requests: &[&[(u64, JobStep)]], losses: &[(u64, u64)]) -> TickHistory {
        let event = |process, (at, step): &(u64, JobStep)| JobEvent {
            at: Moment::from_nanos(*at),
            process,
            attempt: 1,
            job,
            step: *step,
            tick: "name:1".into(),
        };
        let events = requests.iter().enumerate();
        let events: Vec<JobEvent> =
            events.flat_map(|(at, steps)| steps.iter().map(move |step| event(at, step))).collect();
        let losses = losses.iter().map(|(from, to)| (Moment::from_nanos(*from), Moment::from_nanos(*to))).collect();
        TickHistory::new(&events, losses)
    }

    fn verdict(job: TickJob, requests: &[&[(u64, JobStep)]], losses: &[(u64, u64)]) -> Option<TickViolation> {
        history(job, requests, losses).check().map(|(violation, _, _)| violation)
    }

    #[test]
    fn a_tick_that_fails_is_repeated_and_succeeds_once() {
        let requests: &[&[_]] = &[
            &[(1, Asks), (3, Runs), (4, Failed)],
            &[(2, Asks), (6, Runs), (7, Finishes), (9, Succeeded)],
            &[(8, Asks), (10, ToldDone)],
            &[(5, Asks), (12, InDoubt)],
        ];
        let history = history(TickJob::Named, requests, &[]);
        assert_eq!(history.check(), None);
        assert_eq!((history.done(), history.runs()), (1, 2));
    }

    #[test]
    fn two_successes_are_found_unless_the_engine_lost_its_data_between() {
        let requests: &[&[_]] = &[
            &[(1, Asks), (2, Runs), (5, Finishes), (9, Succeeded)],
            &[(1, Asks), (6, Runs), (7, Finishes), (8, Succeeded)],
        ];
        assert_eq!(verdict(TickJob::Named, requests, &[]), Some(TickViolation::TwoSuccesses));
        assert_eq!(verdict(TickJob::Named, requests, &[(7, 8)]), Some(TickViolation::TwoSuccesses), "too late");
        assert_eq!(verdict(TickJob::Named, requests, &[(3, 3)]), None);
    }

    #[test]
    fn a_run_of_a_request_that_began_after_the_tick_was_done_is_found() {
        let first: &[_] = &[(1, Asks), (2, Runs), (3, Finishes), (4, Succeeded)];
        let late: &[_] = &[(5, Asks), (6, Runs), (7, Failed)];
        assert_eq!(verdict(TickJob::Named, &[first, late], &[]), Some(TickViolation::RanAfterDone));
        assert_eq!(verdict(TickJob::Named, &[first, late], &[(5, 5)]), None, "the note is lost");
        let told: &[_] = &[(4, Asks), (5, ToldDone)];
        let in_doubt: &[_] = &[(1, Asks), (2, Runs), (3, Finishes), (9, InDoubt)];
        let late: &[_] = &[(6, Asks), (7, Runs), (8, Failed)];
        assert_eq!(verdict(TickJob::Named, &[in_doubt, told, late], &[]), Some(TickViolation::RanAfterDone));
        let concurrent: &[_] = &[(4, Asks), (7, Runs), (8, Failed)];
        assert_eq!(verdict(TickJob::Named, &[in_doubt, told, concurrent], &[]), None, "it asked before");
    }

    #[test]
    fn a_second_run_is_found_where_one_is_allowed() {
        let requests: &[&[_]] = &[&[(1, Asks), (2, Runs), (3, Failed)], &[(1, Asks), (6, Runs), (7, Failed)]];
        assert_eq!(verdict(TickJob::AtMostOnce, requests, &[]), Some(TickViolation::TooManyRuns));
        assert_eq!(verdict(TickJob::AtMostOnce, requests, &[(4, 5)]), None);
        assert_eq!(verdict(TickJob::Named, requests, &[]), None);
    }

    #[test]
    fn a_tick_is_not_done_before_a_run_of_it_has_come_to_its_end() {
        let told: &[_] = &[(4, Asks), (5, ToldDone)];
        assert_eq!(verdict(TickJob::Named, &[told], &[(0, 9)]), Some(TickViolation::DoneWithoutRun));
        let failed: &[_] = &[(1, Asks), (2, Runs), (3, Failed)];
        assert_eq!(verdict(TickJob::Named, &[told, failed], &[]), Some(TickViolation::DoneWithoutRun));
        let later: &[_] = &[(1, Asks), (2, Runs), (6, Finishes)];
        assert_eq!(verdict(TickJob::Named, &[told, later], &[]), Some(TickViolation::DoneWithoutRun));
        let killed: &[_] = &[(1, Asks), (2, Runs), (3, Finishes)];
        assert_eq!(verdict(TickJob::Named, &[told, killed], &[]), None, "it may have been noted before it was killed");
    }

    #[test]
    fn a_process_that_was_told_nothing_is_found() {
        let requests: &[&[_]] = &[
            &[(1, Asks), (2, InDoubt)],
            &[(1, Asks), (2, Exhausted)],
            &[(1, Asks), (2, Runs), (3, Finishes), (4, Succeeded)],
            &[(1, Asks), (2, Runs), (3, Failed)],
        ];
        let history = history(TickJob::Named, requests, &[]);
        let unsettled: Vec<bool> = (0..4).map(|process| history.unsettled(process).is_some()).collect();
        assert_eq!(unsettled, [true, false, false, true]);
        assert_eq!(history.unsettled(9), None, "it asked for nothing");
    }
}
