//! The events of a run, merged from the journals of all workers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use distlock::{Mode, Moment};
use distlock_testkit::history::Hold;

use crate::engine::Engine;
use crate::fault::Fault;
use crate::job::TickJob;
use crate::journal::{self, Entry, What};
use crate::tick_judge::{JobEvent, TickHistory};
use crate::worker::name;
use crate::workers::Life;

/// How long links and queues may take to recover after a fault.
const RECOVERY: Duration = Duration::from_secs(2);

/// A fault, from just before it began until just after it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Injected {
    pub(crate) fault: Fault,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

impl Injected {
    /// Returns how long links and queues may take to recover after this fault.
    fn recovery(&self) -> Duration {
        match self.fault {
            // TCP backs off: a lost packet is retransmitted after up to as long a silence again.
            Fault::Partition { .. } => RECOVERY + self.to.since(self.from),
            // The other masters may have considered it dead, and it must hear from them before it serves again.
            Fault::HangMaster { .. } => RECOVERY * 2,
            _ => RECOVERY,
        }
    }
}

/// One attempt of a worker, from its request on.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) life: usize,
    pub(crate) worker: usize,
    pub(crate) lock: usize,
    pub(crate) asked: Moment,
    pub(crate) queued: Option<Moment>,
    pub(crate) granted: Option<Grant>,
    /// When the worker learned that the lock is lost, if it still believed in it.
    pub(crate) lost: Option<Moment>,
    /// Whether the attempt ended without a grant.
    pub(crate) failed: bool,
    /// All its journal entries.
    pub(crate) entries: Vec<Entry>,
}

/// A hold that a worker believed in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) at: Moment,
    pub(crate) token: u64,
    /// The last deadline that is recorded.
    deadline: Moment,
    /// When the worker stopped believing in it, if that was recorded.
    left: Option<Moment>,
    told: Option<Moment>,
}

/// The merged journals.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) turns: Vec<Turn>,
    pub(crate) injected: Vec<Injected>,
    /// The steps of jobs, in the order of each process.
    jobs: Vec<JobEvent>,
    lives: Vec<Life>,
    /// When each process was stalled, by its index.
    stalls: BTreeMap<usize, Vec<(Moment, Moment)>>,
    /// When the runner was stalled, and with it the links.
    own_stalls: Vec<(Moment, Moment)>,
}

impl Timeline {
    pub(crate) fn read(lives: &[Life], injected: Vec<Injected>, own_stalls: Vec<(Moment, Moment)>) -> Timeline {
        let mut timeline = Timeline { injected, own_stalls, lives: lives.to_vec(), ..Timeline::default() };
        for (number, life) in lives.iter().enumerate() {
            timeline.add(number, life.worker, journal::read(&life.journal));
        }
        timeline
    }

    fn add(&mut self, life: usize, worker: usize, entries: Vec<Entry>) {
        let mut turns: HashMap<u64, usize> = HashMap::new();
        for entry in entries {
            match entry.what {
                What::Job { job, step, tick } => {
                    let (at, attempt) = (entry.at, entry.attempt);
                    self.jobs.push(JobEvent { at, process: life, attempt, job, step, tick });
                }
                What::Stalled { since } => self.stalls.entry(life).or_default().push((since, entry.at)),
                What::Asks { lock } => {
                    turns.insert(entry.attempt, self.turns.len());
                    let (asked, entries) = (entry.at, vec![entry]);
                    let turn = Turn {
                        life,
                        worker,
                        lock,
                        asked,
                        queued: None,
                        granted: None,
                        lost: None,
                        failed: false,
                        entries,
                    };
                    self.turns.push(turn);
                }
                _ => {
                    let turn = turns.get(&entry.attempt).map(|at| &mut self.turns[*at]);
                    turn.expect("an attempt is asked for first").add(entry);
                }
            }
        }
    }

    /// Returns every hold for the checker of histories; the client of a hold is the number of its turn. A queue place
    /// counts only if no event may have cost it.
    pub(crate) fn holds(&self, is_fair: bool) -> impl Iterator<Item = Hold> + '_ {
        self.turns.iter().enumerate().filter_map(move |(number, turn)| {
            let grant = turn.granted?;
            let end = self.end(turn, grant);
            Some(Hold {
                key: name(turn.lock),
                client: u32::try_from(number).unwrap_or(u32::MAX),
                mode: Mode::Exclusive,
                slot: None,
                asked: turn.asked,
                queued: turn.queued.filter(|_| is_fair && !self.is_disturbed(turn, grant.at)),
                // A worker that woke up after its deadline never held the lock, but may have a token.
                granted: grant.at.min(end),
                token: grant.token,
                end,
            })
        })
    }

    /// Returns the earliest moment at which the worker may have stopped believing: only certain overlaps count against
    /// it.
    fn end(&self, turn: &Turn, grant: Grant) -> Moment {
        let killed = self.lives[turn.life].killed.unwrap_or(grant.at);
        let unsaid = || killed.min(grant.deadline).min(grant.told.unwrap_or(Moment::NEVER));
        grant.left.unwrap_or_else(unsaid)
    }

    /// Returns whether a waiter may have lost its place because of a planned fault or a busy machine.
    fn is_disturbed(&self, turn: &Turn, granted: Moment) -> bool {
        let meets = |from: Moment, to: Moment| from < granted && turn.asked < to;
        let is_about = |fault: &Fault| fault.worker().is_none_or(|worker| worker == turn.worker);
        let stalls = self.stalls.get(&turn.life).into_iter().flatten().chain(&self.own_stalls);
        self.injected.iter().any(|one| is_about(&one.fault) && meets(one.from, one.to.after(one.recovery())))
            || stalls.into_iter().any(|(from, to)| meets(*from, to.after(RECOVERY)))
    }

    /// Returns the turns of holders with an unexplained loss: for one lease, the server of the lock, the link to it
    /// and the worker had no fault, and no process was stalled.
    pub(crate) fn unexplained<'a>(
        &'a self,
        server_of: &'a [Option<usize>],
        ttl: Duration,
    ) -> impl Iterator<Item = usize> + 'a {
        let is_unexplained = move |turn: &Turn| {
            let Some((lost, server)) = turn.lost.zip(server_of[turn.lock % server_of.len()]) else { return false };
            let meets = |from: Moment, to: Moment| from < lost && lost.since(to) < ttl;
            let is_about = |fault: &Fault| match (fault.worker(), fault.server()) {
                (Some(worker), _) => worker == turn.worker,
                (None, Some(other)) => other == server,
                (None, None) => true,
            };
            let stalls = self.stalls.get(&turn.life).into_iter().flatten().chain(&self.own_stalls);
            !self.injected.iter().any(|one| is_about(&one.fault) && meets(one.from, one.to.after(one.recovery())))
                && !stalls.into_iter().any(|(from, to)| meets(*from, *to))
        };
        self.turns.iter().enumerate().filter(move |(_, turn)| is_unexplained(turn)).map(|(number, _)| number)
    }

    /// Returns the turns of a process that have a request and no end.
    pub(crate) fn unserved(&self, life: usize) -> impl Iterator<Item = usize> + '_ {
        let turns = self.turns.iter().enumerate();
        turns.filter(move |(_, turn)| turn.life == life && turn.granted.is_none() && !turn.failed).map(|(at, _)| at)
    }

    /// Returns the history of ticks on `engine`.
    pub(crate) fn ticks(&self, engine: Engine) -> TickHistory {
        let losses = self.injected.iter().filter(|one| one.fault.loses_data(engine));
        TickHistory::new(&self.jobs, losses.map(|one| (one.from, one.to)).collect())
    }

    /// Returns the steps of the requests for a tick and the concurrent faults, in order of time.
    pub(crate) fn tick_excerpt(&self, job: TickJob, tick: &str) -> String {
        let is_of_tick = |event: &&JobEvent| event.job == job && event.tick == tick;
        let requests: BTreeSet<_> =
            self.jobs.iter().filter(is_of_tick).map(|event| (event.process, event.attempt)).collect();
        let events = self.jobs.iter().filter(|event| requests.contains(&(event.process, event.attempt)));
        let text = |event: &JobEvent| {
            let worker = self.lives[event.process].worker;
            format!("worker {worker} (process {}) request {}: {}", event.process, event.attempt, event.step)
        };
        let mut lines: Vec<(Moment, String)> = events.map(|event| (event.at, text(event))).collect();
        let processes: BTreeSet<usize> = requests.iter().map(|(process, _)| *process).collect();
        let killed = |process: &usize| Some((self.lives[*process].killed?, format!("process {process} killed")));
        let times = || lines.iter().map(|(at, _)| *at);
        let (first, last) = (times().min().unwrap_or(Moment::NEVER), times().max().unwrap_or(Moment::NEVER));
        lines.extend(processes.iter().filter_map(killed).filter(|(at, _)| *at <= last));
        self.render(lines, first, last)
    }

    /// Returns the entries of some turns and the concurrent faults, in order of time.
    pub(crate) fn excerpt(&self, turns: &[usize]) -> String {
        let turns: Vec<&Turn> = turns.iter().filter_map(|number| self.turns.get(*number)).collect();
        let mut lines: Vec<(Moment, String)> = Vec::new();
        for turn in &turns {
            let who = format!("worker {} (process {}) {}", turn.worker, turn.life, name(turn.lock));
            lines.extend(turn.entries.iter().map(|entry| (entry.at, format!("{who}: {:?}", entry.what))));
            lines.extend(self.lives[turn.life].killed.map(|at| (at, format!("{who}: killed"))));
        }
        let times = || turns.iter().flat_map(|turn| &turn.entries).map(|entry| entry.at);
        let (first, last) = (times().min().unwrap_or(Moment::NEVER), times().max().unwrap_or(Moment::NEVER));
        lines.retain(|(at, _)| *at <= last);
        self.render(lines, first, last)
    }

    /// Returns the lines together with the faults between `first` and `last`, in order of time.
    fn render(&self, mut lines: Vec<(Moment, String)>, first: Moment, last: Moment) -> String {
        for one in self.injected.iter().filter(|one| one.from <= last && one.to >= first) {
            lines.push((one.from, format!("begins: {}", one.fault)));
            lines.push((one.to, format!("is over: {}", one.fault)));
        }
        lines.sort();
        let base = first.as_nanos();
        let text = |(at, line): (Moment, String)| {
            let ms = (i128::from(at.as_nanos()) - i128::from(base)) as f64 / 1e6;
            format!("{ms:>12.3} ms  {line}\n")
        };
        lines.into_iter().map(text).collect()
    }
}

impl Turn {
    fn add(&mut self, entry: Entry) {
        match &entry.what {
            What::Queued => self.queued = self.queued.or(Some(entry.at)),
            What::Granted { token, deadline } => {
                let (token, deadline) = (*token, *deadline);
                self.granted = Some(Grant { at: entry.at, token, deadline, left: None, told: None });
            }
            What::Good { deadline } => self.amend(|grant| grant.deadline = *deadline),
            What::Told { .. } => {
                self.lost = self.granted.filter(|grant| grant.left.is_none()).map(|_| entry.at).or(self.lost);
                self.amend(|grant| grant.told = Some(entry.at));
            }
            What::Left => self.amend(|grant| grant.left = Some(entry.at)),
            What::Failed { .. } => self.failed = true,
            _ => {}
        }
        self.entries.push(entry);
    }

    fn amend(&mut self, change: impl FnOnce(&mut Grant)) {
        // A lock may be lost before its worker has recorded the grant.
        if let Some(grant) = &mut self.granted {
            change(grant);
        }
    }
}
