//! Locks among the processes of this machine, by flock(2).

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{
    Attachment, Backend, Busy, Capabilities, Claim, Claimed, Grant, Lease, LockInfo, Release, Renewal, Scope, Wake,
};
use crate::types::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::history::{HistoryEntry, answer_all, by_lock};
use crate::types::key::Key;
use crate::types::owner::Holder;
use crate::types::token::{AttemptId, FencingToken};
use fault::fault;
use hold::{Hold, Taking};
use inspect::Inspector;
use line::{Line, Standing};
use lock_file::Obstacle;
use place::{Place, Places};
use waiter::{Queue, Waiter, seems_stuck};

mod doctor;
mod fault;
mod folder;
mod hold;
mod home;
mod inside;
mod inspect;
mod journal;
mod kernel_locks;
mod ledger;
mod line;
mod lock_file;
mod mount;
mod name;
pub(crate) mod open;
mod place;
#[cfg(test)]
mod tests;
mod waiter;
mod watcher;

pub(crate) use doctor::examine;
pub use home::default_dir;
pub use mount::private_mount;

/// How often to begin again when a file or a ticket changes under our hands. Each time somebody else gets on.
const TRIES: usize = 64;

/// When to look again without a hint: only the first in the queue can get the lock.
const FIRST_POLL: Duration = Duration::from_millis(100);
const OTHERS_POLL: Duration = Duration::from_secs(1);
/// The same where no hint will come.
const UNTOLD_FIRST_POLL: Duration = Duration::from_millis(20);
const UNTOLD_OTHERS_POLL: Duration = Duration::from_millis(200);

/// inotify tells of a close a moment before the kernel frees the lock: how long to wait before each new try after a hint.
const AFTER_A_HINT: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
];

/// A look at a lock shares its file for a moment. A claim that is not to wait and meets nothing else looks again, after
/// each of these pauses: a quarter of a second in all, for a look that the scheduler interrupted.
const AFTER_SHARERS: [Duration; 20] = {
    let mut pauses = [Duration::from_millis(16); 20];
    (pauses[0], pauses[1], pauses[2]) = (Duration::ZERO, Duration::from_millis(1), Duration::from_millis(2));
    (pauses[3], pauses[4]) = (Duration::from_millis(4), Duration::from_millis(8));
    pauses
};

/// Locks among the processes of this machine, by flock(2).
///
/// There is no lease: the kernel frees a lock the moment its holder is gone, and never before. A lock's file stays when
/// the lock is released, since the fencing counter is in it. `docs/backends/file.md` says which files there are, and
/// what is not guaranteed.
///
/// Clones are handles to the same engine.
#[derive(Clone)]
pub struct FileBackend(Arc<Engine>);

impl FileBackend {
    /// Every lock is a file in `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// Kind `Backend`, with the [`std::io::Error`] as source, when the directory cannot be made.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Result<FileBackend> {
        let dir = dir.into();
        let made = std::fs::create_dir_all(&dir).and_then(|()| dir.canonicalize());
        let dir = made.map_err(|error| fault("create lock directory", &dir, error))?;
        Ok(FileBackend::build(Places::new(dir, false), Clock::system()))
    }

    /// A key with a `/` is the path of its lock file, so that `flock PATH` and we exclude each other; any other key is a
    /// file in `dir`, which is made when it is first needed.
    ///
    /// A file with contents of its own is only ever locked; counter and holder are then in `PATH.distlock`. An empty
    /// file takes them itself. A relative path, of a key or `dir`, starts at the directory in which the process is
    /// when this is called.
    #[must_use]
    pub fn host(dir: impl Into<PathBuf>) -> FileBackend {
        FileBackend::build(Places::new(dir.into(), true), Clock::system())
    }

    /// Reads time from `clock`. To be called before anything else.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> FileBackend {
        FileBackend::build(self.0.places.clone(), clock)
    }

    fn build(places: Places, clock: Clock) -> FileBackend {
        let queue = Queue::new(clock.clone());
        FileBackend(Arc::new(Engine { places, clock, queue, holds: Mutex::default() }))
    }

    /// The processes that hold `key`'s file by flock(2), whoever they are.
    ///
    /// # Errors
    /// When the file or the kernel's list cannot be read.
    pub fn holder_pids(&self, key: &Key) -> Result<Vec<u32>> {
        self.0.inspector().pids(key)
    }
}

impl fmt::Debug for FileBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBackend").field("dir", &self.0.places.dir()).finish_non_exhaustive()
    }
}

// No call below waits in the middle of its work: file operations take microseconds, and a flock is never waited for. A
// claim that is tried again leaves nothing behind in between. So there is no half-done claim for a dropped future to leave.
impl Backend for FileBackend {
    fn name(&self) -> &'static str {
        "file"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Scope::Host);
        (can.fair, can.wakes, can.inspects) = (true, true, true);
        (can.shares, can.slots, can.history) = (true, true, true);
        can
    }

    fn attach(&self, attachment: Attachment) {
        self.0.queue.attach(&attachment.keeper_runtime);
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let waiter = self.0.queue.waiter(claim.attempt);
        waiter.iter().for_each(|waiter| waiter.beat(self.0.clock.now()));
        let claimed = match self.0.attempt_again(claim).await {
            Ok(Outcome::Granted(grant)) => Ok(Claimed::Granted(grant)),
            Ok(Outcome::Busy(poll_after, _)) => self
                .0
                .refuse_disagreement(claim, waiter.is_none())
                .map(|()| Claimed::Busy(Busy { holder: self.0.probable_holder(claim), poll_after })),
            Err(error) => Err(error),
        };
        claimed.map_err(|error| {
            // What failed was not carried out: not even a place in the queue is left. One that was there before stays.
            if waiter.is_none() {
                self.0.queue.leave(claim.attempt);
            }
            error.with_key(&claim.key)
        })
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        let mut pauses = [].iter();
        loop {
            // What changed before this call is seen here; what changes later is a notification.
            match self.0.attempt(claim) {
                Ok(Outcome::Granted(grant)) => return Wake::Granted(grant),
                Ok(Outcome::Busy(..)) => {}
                // The next claim meets the error again and reports it.
                Err(_) => return Wake::Retry,
            }
            if let Some(pause) = pauses.next() {
                tokio::time::sleep(*pause).await;
                continue;
            }
            let Some(waiter) = self.0.queue.waiter(claim.attempt) else { return pending().await };
            waiter.hint().await;
            pauses = AFTER_A_HINT.iter();
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let holds = self.0.holds();
        let renewed = leases.iter().map(|lease| match holds.get(&lease.claim.attempt) {
            Some(hold) if hold.is_intact().map_err(|error| error.with_key(&lease.claim.key))? => {
                Ok(Renewal::Renewed(None))
            }
            // Somebody removed or replaced the file: a new one may be locked by another by now.
            _ => Ok(Renewal::Lost(LossReason::Revoked)),
        });
        renewed.collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.0.queue.leave(claim.attempt);
        let hold = self.0.holds().remove(&claim.attempt);
        Ok(hold.map_or(Release::NotOurs, Hold::end))
    }

    fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>> {
        self.0.holds().get(&claim.attempt).map(Hold::descriptor).transpose()
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.0.settled(|inspector| inspector.list(prefix)).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        let found = self.0.settled(|inspector| Ok(inspector.get(key)?.into_iter().collect())).await;
        found.map(|mut found| found.pop()).map_err(|error| error.with_key(key))
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        self.0.inspector().refuse_to_break(key, token).map_err(|error| error.with_key(key))
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        let mut answers: Vec<_> = entries.iter().map(|_| Ok(())).collect();
        for (key, places) in by_lock(entries) {
            let outcome = self.0.write_history(key, places.iter().map(|place| &entries[*place].1), most).await;
            let all = answer_all(&outcome, places.len());
            places.into_iter().zip(all).for_each(|(place, answer)| answers[place] = answer);
        }
        answers
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        journal::read(&self.0.places.find(key)?.journal, most)
    }

    async fn close(&self) -> Result<()> {
        self.0.queue.close();
        for (_, hold) in self.0.holds().drain() {
            hold.end();
        }
        Ok(())
    }
}

/// What became of one attempt.
enum Outcome {
    Granted(Grant),
    /// When to look again at the latest, and what is in the way.
    Busy(Option<Duration>, Obstacle),
}

struct Engine {
    places: Places,
    clock: Clock,
    queue: Queue,
    holds: Mutex<HashMap<AttemptId, Hold>>,
}

impl Engine {
    fn holds(&self) -> MutexGuard<'_, HashMap<AttemptId, Hold>> {
        self.holds.lock()
    }

    fn inspector(&self) -> Inspector<'_> {
        Inspector::new(&self.places, &self.clock)
    }

    async fn write_history(&self, key: &Key, entries: impl Iterator<Item = &HistoryEntry>, most: u32) -> Result<()> {
        let place = self.places.find(key)?;
        let lines = entries.map(|entry| Ok(entry.to_line()? + "\n")).collect::<Result<String>>()?;
        journal::append(&place.journal, &lines, most).await
    }

    /// Looks, and once more where the holder seems a stranger: it may be one of ours that has not written its name yet.
    async fn settled(&self, look: impl Fn(Inspector<'_>) -> Result<Vec<LockInfo>>) -> Result<Vec<LockInfo>> {
        let found = look(self.inspector())?;
        if found.iter().all(|info| info.holders.iter().all(|holder| holder.record.is_some())) {
            return Ok(found);
        }
        tokio::time::sleep(AFTER_A_HINT[0]).await;
        look(self.inspector())
    }

    /// Tries to take the lock; again if the claim is not to wait and nothing but a look at the lock seems to be in the way.
    async fn attempt_again(&self, claim: &Claim) -> Result<Outcome> {
        let mut pauses = AFTER_SHARERS.iter().filter(|_| !claim.queue);
        loop {
            match (self.attempt(claim)?, pauses.next()) {
                (Outcome::Busy(_, Obstacle::Sharers), Some(pause)) => self.queue.pause(*pause).await,
                (outcome, _) => return Ok(outcome),
            }
        }
    }

    fn attempt(&self, claim: &Claim) -> Result<Outcome> {
        if let Some(granted) = self.granted_before(claim.attempt)? {
            return Ok(granted);
        }
        let place = self.places.find(&claim.key)?;
        let line = Line::at(&place.line);
        for _ in 0..TRIES {
            if let Some(claimed) = self.step(claim, &place, &line)? {
                return Ok(claimed);
            }
        }
        Err(Error::unavailable(format!("{} keeps changing", place.lock.display())))
    }

    fn granted_before(&self, attempt: AttemptId) -> Result<Option<Outcome>> {
        let mut holds = self.holds();
        match holds.get(&attempt) {
            None => Ok(None),
            Some(hold) if hold.is_intact()? => Ok(Some(Outcome::Granted(hold.grant()))),
            Some(_) => {
                holds.remove(&attempt);
                Ok(None)
            }
        }
    }

    /// One try; `None` when something changed meanwhile and it is worth another.
    fn step(&self, claim: &Claim, place: &Place, line: &Line) -> Result<Option<Outcome>> {
        let waiter = self.queue.waiter(claim.attempt);
        let stuck = |before| match &waiter {
            Some(mine) => mine.finds_stuck(before, line.beat(before), self.clock.now()),
            None => seems_stuck(before, line.beat(before), self.clock.now()),
        };
        // Whoever is still behind the same waiter need not read the whole queue to know.
        if let Some(waiter) = &waiter
            && let Some(before) = waiter.follows().or_else(|| waiter.stood_behind(self.clock.now()))
            && line.is_behind(waiter.name(), before)
            && !stuck(before)
        {
            let poll = if waiter.is_told() { OTHERS_POLL } else { UNTOLD_OTHERS_POLL };
            return Ok(Some(Outcome::Busy(Some(poll), Obstacle::Holder)));
        }
        match (line.standing(waiter.as_ref().map(|waiter| waiter.name()), claim.mode(), stuck)?, waiter) {
            (Standing::Gone, _) => {
                self.queue.leave(claim.attempt);
                Ok(None)
            }
            (Standing::First, waiter) => self.try_to_take(claim, place, line, waiter.as_deref()),
            (Standing::Behind(..), None) if claim.queue => {
                if self.queue.enter(claim, line, None)? {
                    return Ok(None);
                }
                // Without the right to queue we are as flock(1) is.
                self.try_to_take(claim, place, line, None)
            }
            (Standing::Behind(..), None) => Ok(Some(Outcome::Busy(None, Obstacle::Holder))),
            (Standing::Behind(before, ahead), Some(waiter)) => {
                waiter.stands_behind(before, self.clock.now());
                if self.queue.follow(&waiter, line, before, ahead) {
                    // It may have gone before we listened.
                    return Ok(None);
                }
                let poll = if waiter.is_told() { OTHERS_POLL } else { UNTOLD_OTHERS_POLL };
                Ok(Some(Outcome::Busy(Some(poll), Obstacle::Holder)))
            }
        }
    }

    fn try_to_take(
        &self,
        claim: &Claim,
        place: &Place,
        line: &Line,
        waiter: Option<&Waiter>,
    ) -> Result<Option<Outcome>> {
        let kept = waiter.and_then(|waiter| waiter.file().take());
        let file = match kept {
            Some(file) if place.has(&file)? => file,
            _ => place.open()?,
        };
        if let Some(waiter) = waiter {
            self.queue.listen(waiter, place, &file);
        }
        match Hold::take(claim, place, file, &self.clock)? {
            Taking::Taken(hold) => {
                let grant = hold.grant();
                self.holds().insert(claim.attempt, hold);
                self.queue.leave(claim.attempt);
                Ok(Some(Outcome::Granted(grant)))
            }
            Taking::Moved => Ok(None),
            Taking::Busy(file, obstacle) => match waiter {
                Some(waiter) => {
                    *waiter.file() = Some(file);
                    let poll = if waiter.is_told() { FIRST_POLL } else { UNTOLD_FIRST_POLL };
                    Ok(Some(Outcome::Busy(Some(poll), obstacle)))
                }
                None if !claim.queue => Ok(Some(Outcome::Busy(None, obstacle))),
                None if self.queue.enter(claim, line, Some(file))? => Ok(None),
                None => Ok(Some(Outcome::Busy(Some(UNTOLD_FIRST_POLL), obstacle))),
            },
        }
    }

    /// Refuses a claim that has to wait, and uses the lock in another way than those who hold it or wait for it. Who is
    /// in the queue and not the first agreed with them all when it came.
    fn refuse_disagreement(&self, claim: &Claim, is_new: bool) -> Result<()> {
        let (place, mode) = (self.places.find(&claim.key)?, claim.mode());
        let waiter = self.queue.waiter(claim.attempt);
        let against = {
            let kept = waiter.as_ref().map(|waiter| waiter.file());
            match kept.as_ref().and_then(|kept| kept.as_ref()) {
                None if !is_new => return Ok(()),
                kept => self.inspector().disagreeing_holder(&place, kept, mode)?,
            }
        };
        let against = match against {
            None if is_new => Line::at(&place.line).disagreeing(mode, claim.attempt)?,
            against => against,
        };
        against.map_or(Ok(()), |other| Err(mode.disagrees(other)))
    }

    fn probable_holder(&self, claim: &Claim) -> Option<Holder> {
        let place = self.places.find(&claim.key).ok()?;
        // The first in the queue has the file open already; to open and close it again would be a hint to itself.
        let waiter = self.queue.waiter(claim.attempt);
        let kept = waiter.as_ref().map(|waiter| waiter.file());
        match kept.as_ref().and_then(|kept| kept.as_ref()) {
            Some(file) => self.inspector().probable_holder(&place, file),
            // To read the kernel's list stops every flock of the machine for a moment: not for everybody in the queue.
            None if waiter.is_some() => self.inspector().recorded_holder(&place, &place.look().ok()??),
            None => self.inspector().probable_holder(&place, &place.look().ok()??),
        }
    }
}
