//! A worker: a process that takes locks, writes to the protected resource, and records what it believes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock::{Clock, LockGuard, Locker, Moment};

use crate::broken::Broken;
use crate::job::TickJob;
use crate::job_worker::JobWorker;
use crate::journal::{Journal, What};
use crate::log_events::{LogEvents, LogSubscriber};
use crate::plan::LOCKS;
use crate::pulse;
use crate::resource::Writer;
use distlock_testkit::Dice;

/// The number of owners of each worker.
const TASKS: usize = 2;
/// The longest pause between the last check of a lock and the write that depends on it.
const BLIND_MS: usize = 120;

/// The command line of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Duty {
    pub(crate) url: String,
    pub(crate) ttl: Duration,
    pub(crate) seed: u64,
    pub(crate) journal: PathBuf,
    pub(crate) socket: PathBuf,
    /// When this file exists, every worker takes each lock once more and exits.
    pub(crate) finish: PathBuf,
    pub(crate) broken: Option<Broken>,
    /// The worker keeps a lock of its own beside each of the others, on the same server, for several leases.
    pub(crate) keeps: bool,
    /// The worker stays in some holds for up to a lease.
    pub(crate) lingers: bool,
}

impl Duty {
    /// Returns the arguments that [`Duty::parse`] reads.
    pub(crate) fn words(&self) -> Vec<String> {
        let path = |path: &PathBuf| path.display().to_string();
        let broken = self.broken.map_or("", Broken::name);
        let numbers = [self.ttl.as_millis().to_string(), self.seed.to_string()];
        let [ttl, seed] = numbers;
        let habits = [("keeps", self.keeps), ("lingers", self.lingers)];
        let habits = habits.map(|(name, has)| if has { name.to_owned() } else { String::new() });
        let paths = [&self.journal, &self.socket, &self.finish].map(path);
        [self.url.clone(), ttl, seed].into_iter().chain(paths).chain([broken.into()]).chain(habits).collect()
    }

    pub(crate) fn parse(words: &[String]) -> Result<Duty, String> {
        let [url, ttl, seed, journal, socket, finish, broken, keeps, lingers] = words else {
            return Err("a worker is started by the runner".into());
        };
        let number = |text: &String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        Ok(Duty {
            url: url.clone(),
            ttl: Duration::from_millis(number(ttl)?),
            seed: number(seed)?,
            journal: journal.into(),
            socket: socket.into(),
            finish: finish.into(),
            broken: Some(broken).filter(|text| !text.is_empty()).map(|text| text.parse()).transpose()?,
            keeps: keeps == "keeps",
            lingers: lingers == "lingers",
        })
    }
}

/// Works until the runner ends the run. Returns an error that the worker cannot continue after.
pub fn main(words: &[String]) -> Result<(), String> {
    let duty = Duty::parse(words)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(work(duty))
}

async fn work(duty: Duty) -> Result<(), String> {
    let journal = Arc::new(Journal::open(&duty.journal).map_err(|error| error.to_string())?);
    let log_events = Arc::new(LogEvents::new(journal.clone()));
    tracing::subscriber::set_global_default(LogSubscriber(log_events.clone())).map_err(|error| error.to_string())?;
    watch_pulse(journal.clone());
    let Some(locker) = connect(&duty).await else { return Ok(()) };
    let attempts = Arc::new(AtomicU64::new(1));
    let mut tasks = Vec::new();
    let keepers = if duty.keeps { LOCKS } else { 0 };
    for number in 0..TASKS + keepers {
        let worker = Worker {
            duty: duty.clone(),
            locker: locker.clone(),
            journal: journal.clone(),
            log_events: log_events.clone(),
            attempts: attempts.clone(),
            resource: Writer::connect(&duty.socket).map_err(|error| error.to_string())?,
            dice: Dice::new(duty.seed.wrapping_mul(TASKS as u64).wrapping_add(number as u64)),
            clock: Clock::system(),
            first_token: 0,
        };
        tasks.push(match number.checked_sub(TASKS) {
            None => tokio::spawn(worker.run()),
            Some(beside) => tokio::spawn(worker.keep(beside)),
        });
    }
    if locker.capabilities().ticks && matches!(duty.broken, None | Some(Broken::RepeatsTicks)) {
        let job_worker = |(_, job)| JobWorker::new(job, &duty, &locker, &journal, &attempts);
        tasks.extend(TickJob::ALL.map(job_worker).map(|worker| tokio::spawn(worker.run())));
    }
    for task in tasks {
        task.await.map_err(|error| error.to_string())?;
    }
    if duty.broken == Some(Broken::Litters) {
        litter(&locker).await;
        // Exits instead of returning, which would release the lock.
        std::process::exit(0);
    }
    let _ = locker.close().await;
    Ok(())
}

/// Retries until the servers are reachable: they may be down when a worker is started. Returns `None` when the run is
/// over.
async fn connect(duty: &Duty) -> Option<Locker> {
    loop {
        if let Ok(locker) = Locker::connect(&duty.url).await {
            return Some(locker);
        }
        if duty.finish.exists() {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Records the stalls of this process: a stalled waiter may lose its queue place.
fn watch_pulse(journal: Arc<Journal>) {
    std::thread::spawn(move || {
        let clock = Clock::system();
        loop {
            if let Some((since, now)) = pulse::beat(&clock) {
                journal.write(now, 0, What::Stalled { since });
            }
        }
    });
}

struct Worker {
    duty: Duty,
    locker: Locker,
    journal: Arc<Journal>,
    log_events: Arc<LogEvents>,
    attempts: Arc<AtomicU64>,
    resource: Writer,
    dice: Dice,
    clock: Clock,
    first_token: u64,
}

impl Worker {
    async fn run(mut self) {
        while !self.duty.finish.exists() {
            let lock = self.dice.below(LOCKS);
            let wait = self.dice.millis(200..3000);
            self.turn(lock, Some(wait)).await;
            let rest = self.dice.millis(0..30);
            tokio::time::sleep(rest).await;
        }
        // All faults have ended: each lock must be granted, however long it takes.
        for lock in 0..LOCKS {
            while !self.turn(lock, None).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Keeps a lock that no other worker requests, so that only a fault on its path can end it.
    async fn keep(mut self, beside: usize) {
        let lock = beside + LOCKS * usize::try_from(self.duty.seed + 1).unwrap_or(1);
        while !self.duty.finish.exists() {
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            self.journal.write(self.clock.now(), attempt, What::Asks { lock });
            match self.ask(lock, attempt, Some(self.duty.ttl * 2)).await {
                Ok(Some(guard)) => self.stay(attempt, guard).await,
                Ok(None) => {}
                Err(how) => self.journal.write(self.clock.now(), attempt, What::Failed { how }),
            }
            let rest = self.dice.millis(0..30);
            tokio::time::sleep(rest).await;
        }
    }

    async fn stay(&mut self, attempt: u64, guard: LockGuard) {
        let deadline = guard.deadline().unwrap_or(Moment::NEVER);
        self.journal.write(self.clock.now(), attempt, What::Granted { token: guard.fencing_token().get(), deadline });
        let until = self.clock.now().after(self.duty.ttl * 4);
        while !guard.is_lost() && self.clock.now() < until && !self.duty.finish.exists() {
            let deadline = guard.deadline().unwrap_or(Moment::NEVER);
            self.journal.write(self.clock.now(), attempt, What::Good { deadline });
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.leave(attempt, guard).await;
    }

    /// Requests a lock and uses it; returns whether it was granted. Without `wait` it waits without limit.
    async fn turn(&mut self, lock: usize, wait: Option<Duration>) -> bool {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        self.journal.write(self.clock.now(), attempt, What::Asks { lock });
        match self.ask(lock, attempt, wait).await {
            Ok(Some(guard)) => {
                self.hold(lock, attempt, guard).await;
                true
            }
            Ok(None) => false,
            Err(how) => {
                self.journal.write(self.clock.now(), attempt, What::Failed { how });
                false
            }
        }
    }

    async fn ask(&mut self, lock: usize, attempt: u64, wait: Option<Duration>) -> Result<Option<LockGuard>, String> {
        let name = name(lock);
        let owner = attempt.to_string();
        match self.duty.broken {
            Some(Broken::SkipsLock) => return self.enter_unasked(lock, attempt).await,
            Some(Broken::Barges) => return self.barge(&name, &owner, attempt).await,
            _ => {}
        }
        let asking = self.locker.lock(name.as_str()).ttl(self.duty.ttl).owner(owner.as_str());
        // Without renewal, so that the deadline passes for certain.
        let is_left = matches!(self.duty.broken, Some(Broken::IgnoresDeadline | Broken::NeverRenews));
        let asking = asking.watchdog(!is_left);
        let failed = |error: distlock::Error| format!("{:?}: {error}", error.kind());
        let Some(wait) = wait else { return asking.await.map(Some).map_err(failed) };
        if self.dice.percent(15) {
            // Some waits are given up by dropping the future.
            let dropped = tokio::time::timeout(wait / 4, asking).await;
            return dropped.map_err(|_| "dropped".to_owned())?.map(Some).map_err(failed);
        }
        asking.wait(wait).await.map(Some).map_err(failed)
    }

    async fn hold(&mut self, lock: usize, attempt: u64, guard: LockGuard) {
        let (now, deadline) = (self.clock.now(), guard.deadline().unwrap_or(Moment::NEVER));
        let token = self.token_of(&guard);
        self.journal.write(now, attempt, What::Granted { token, deadline });
        if self.duty.broken == Some(Broken::Hoards) {
            std::future::pending::<()>().await;
        }
        if matches!(self.duty.broken, Some(Broken::IgnoresDeadline | Broken::NeverRenews)) {
            tokio::time::sleep(self.duty.ttl * 3 / 2).await;
        }
        let checks = if self.duty.lingers && self.dice.percent(20) { self.duty.ttl.as_millis() / 12 } else { 3 };
        for _ in 0..=self.dice.below(usize::try_from(checks).unwrap_or(3)) {
            let work = self.dice.millis(1..25);
            tokio::time::sleep(work).await;
            if guard.is_lost() {
                break;
            }
            let deadline = guard.deadline().unwrap_or(Moment::NEVER);
            self.journal.write(self.clock.now(), attempt, What::Good { deadline });
        }
        // The process may always stall here, between the last check and the write. Fencing exists for this case.
        let blind = self.dice.millis(0..BLIND_MS);
        tokio::time::sleep(blind).await;
        self.write(lock, attempt, token);
        self.leave(attempt, guard).await;
    }

    fn write(&mut self, lock: usize, attempt: u64, token: u64) {
        let used = if self.duty.broken == Some(Broken::OpensFence) { self.first_token } else { token };
        if let Ok(accepted) = self.resource.write(lock, used) {
            self.journal.write(self.clock.now(), attempt, What::Wrote { token: used, accepted });
        }
    }

    async fn leave(&mut self, attempt: u64, guard: LockGuard) {
        // The time is read first: a lock that is valid afterwards was valid at that time.
        let now = self.clock.now();
        let is_lost = guard.is_lost() && self.duty.broken != Some(Broken::IgnoresDeadline);
        let deadline = guard.deadline().filter(|_| is_lost).unwrap_or(now);
        let told = self.log_events.told(attempt).filter(|_| is_lost).unwrap_or(now);
        self.journal.write(now.min(deadline).min(told), attempt, What::Left);
        let how = if self.dice.percent(20) {
            drop(guard);
            "dropped".to_owned()
        } else {
            let unlocked = guard.unlock().await;
            unlocked.map_or_else(|error| format!("{:?}", error.kind()), |()| "confirmed".to_owned())
        };
        self.journal.write(self.clock.now(), attempt, What::Released { how });
    }

    fn token_of(&mut self, guard: &LockGuard) -> u64 {
        let token = guard.fencing_token().get();
        if self.first_token == 0 {
            self.first_token = token;
        }
        match self.duty.broken {
            Some(Broken::LowersToken) => u64::MAX - token,
            Some(Broken::RepeatsToken) => self.first_token,
            _ => token,
        }
    }

    /// Breaks mutual exclusion: returns a guard of another lock that no worker requests.
    async fn enter_unasked(&self, lock: usize, attempt: u64) -> Result<Option<LockGuard>, String> {
        let name = format!("{}-{attempt}-{}", name(lock), std::process::id());
        let taken = self.locker.lock(name.as_str()).ttl(self.duty.ttl).await;
        taken.map(Some).map_err(|error| error.to_string())
    }

    /// Breaks the order: the worker that polls at the right moment is granted the lock.
    async fn barge(&mut self, name: &str, owner: &str, attempt: u64) -> Result<Option<LockGuard>, String> {
        let mut is_known = false;
        loop {
            match self.locker.try_lock(name).ttl(self.duty.ttl).owner(owner).await {
                Ok(Some(guard)) => return Ok(Some(guard)),
                Ok(None) if !is_known => {
                    self.journal.write(self.clock.now(), attempt, What::Queued);
                    is_known = true;
                }
                _ => {}
            }
            let pause = self.dice.millis(1..60);
            tokio::time::sleep(pause).await;
        }
    }
}

/// Breaks the rule that no state remains.
async fn litter(locker: &Locker) {
    if let Ok(Some(guard)) = locker.try_lock("litter").ttl(Duration::from_secs(600)).await {
        guard.detach();
    }
}

/// Returns the name of a lock. The locks that one worker keeps share a hash slot with one that all workers use.
pub(crate) fn name(lock: usize) -> String {
    match lock / LOCKS {
        0 => format!("chaos{lock}"),
        keeper => format!("{{chaos{}}}-{keeper}", lock % LOCKS),
    }
}
