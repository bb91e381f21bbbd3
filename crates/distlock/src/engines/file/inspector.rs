//! Reads who holds a lock and who waits for it, without taking anything.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::error::{file_error, is_about_the_file};
use super::protocol::lock_contents::{HolderEntry, LockContents};
use super::protocol::lock_names;
use super::protocol::lock_paths::LockPaths;
use super::protocol::shared_holders::SharedHolders;
use super::protocol::ticket_queue::TicketQueue;
use super::state::State;
use super::wire::kernel_locks::KernelLocks;
use super::wire::lock_file::{Links, LockFile};
use super::wire::process::{is_alive, is_elsewhere};
use crate::contract::LockInfo;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::mode::{AskedMode, Mode};
use crate::types::owner::{Holder, Record};
use crate::types::token::FencingToken;

/// Reads the locks of an engine.
pub(super) struct Inspector<'a>(&'a State);

/// A lock whose queue was read.
struct Queued {
    key: Key,
    paths: LockPaths,
    waiters: Vec<Arc<Record>>,
}

impl<'a> Inspector<'a> {
    pub(super) fn of(state: &'a State) -> Self {
        Inspector(state)
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        let queued = self.queued(key.clone())?;
        self.info(queued, &KernelLocks::read()?)
    }

    /// Returns the locks in the directory. A lock at a path of its own is not listed. Nor is one that cannot be read:
    /// in a directory of several users, an odd file of one must not hide the locks of all.
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut queues = Vec::new();
        for key in self.keys(prefix)? {
            queues.extend(unless_odd(self.queued(key))?);
        }
        // Read after the queues: a waiter that left a queue by then has the lock, and is seen here.
        let locks = KernelLocks::read()?;
        let mut infos = Vec::new();
        for queued in queues {
            infos.extend(unless_odd(self.info(queued, &locks))?.flatten());
        }
        Ok(infos)
    }

    /// Returns the names of the locks in the directory that have a file.
    pub(super) fn keys(&self, prefix: &str) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        collect(self.0.layout.dir(), Path::new(""), &mut keys)?;
        keys.retain(|key| key.as_str().starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
    }

    pub(super) fn pids(&self, key: &Key) -> Result<Vec<u32>> {
        let file = self.0.layout.find(key)?.open_to_read()?;
        file.map_or(Ok(Vec::new()), |file| Ok(KernelLocks::read()?.pids(file.id())))
    }

    /// Returns the error that says why the lock cannot be taken from its holder.
    pub(super) fn refuse_to_break(&self, key: &Key, token: FencingToken) -> Result<()> {
        let mut holders = self.get(key)?.map(|info| info.holders).unwrap_or_default();
        if let Some(meant) = holders.iter().position(|holder| holder.token == Some(token)) {
            holders.swap(0, meant);
        }
        let first = holders.into_iter().next();
        let Some(holder) = first else { return Err(Error::new(ErrorKind::NotHeld, "it is not held")) };
        let (kind, message) = match (holder.token, &holder.record) {
            (Some(held), _) if held != token => {
                (ErrorKind::NotHeld, format!("it is held with token {held}, not {token}"))
            }
            (Some(_), Some(record)) => {
                let pid = record.process.pid;
                (ErrorKind::Unsupported, format!("the kernel's lock of a live process, {pid}, cannot be broken"))
            }
            _ => {
                let pids = self.pids(key)?.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                (ErrorKind::Foreign, format!("the holder, process {pids}, is not distlock"))
            }
        };
        let error = Error::new(kind, message).with_holder(Some(holder));
        Err(if kind == ErrorKind::NotHeld { error } else { error.with_help("the lock is free when that process ends") })
    }

    /// Returns the holder of a lock that was just found busy; of several, the first. To be cheap, it believes an
    /// entry whose process lives.
    pub(super) fn probable_holder(&self, paths: &LockPaths, file: &LockFile) -> Option<Holder> {
        if let Some(holder) = self.first_inside(paths) {
            return Some(holder);
        }
        let entry = entry(paths, file).ok()?;
        if let Some(entry) = entry.as_ref().filter(|entry| is_alive(&entry.record.process)) {
            return Some(self.holder(entry));
        }
        let pids = KernelLocks::read().unwrap_or_default().pids(file.id());
        self.holder_among(entry.as_ref(), &pids)
    }

    /// Returns the same without reading the kernel's list.
    pub(super) fn recorded_holder(&self, paths: &LockPaths, file: &LockFile) -> Option<Holder> {
        if let Some(holder) = self.first_inside(paths) {
            return Some(holder);
        }
        let entry = entry(paths, file).ok()??;
        is_alive(&entry.record.process).then(|| self.holder(&entry))
    }

    fn first_inside(&self, paths: &LockPaths) -> Option<Holder> {
        let holders = SharedHolders::read(&paths.shared_holders).and_then(|holders| holders.list()).ok()?;
        holders.iter().find(|holder| holder.is_live).map(|holder| self.holder(&holder.entry))
    }

    /// Returns the mode of a holder that disagrees with `mode`. `file` is the lock's, if it is open already.
    pub(super) fn disagreeing_holder(
        &self,
        paths: &LockPaths,
        file: Option<&LockFile>,
        asked: AskedMode,
    ) -> Result<Option<Mode>> {
        let broken = |error| file_error("read lock file", &paths.lock, error);
        let inside = SharedHolders::read(&paths.shared_holders)
            .and_then(|holders| holders.disagreeing(asked, None))
            .map_err(broken)?;
        if inside.is_some() || asked.mode.agrees_with(Mode::Exclusive) {
            return Ok(inside);
        }
        let opened = if file.is_some() { None } else { paths.open_to_read()? };
        let Some(file) = file.or(opened.as_ref()) else { return Ok(None) };
        // The entry of a crashed holder does not count, even if another process has its process id now.
        if file.probe().map_err(broken)? {
            return Ok(None);
        }
        let entry = entry(paths, file).map_err(broken)?;
        Ok(entry.filter(|entry| is_alive(&entry.record.process)).map(|entry| entry.record.mode))
    }

    fn queued(&self, key: Key) -> Result<Queued> {
        let paths = self.0.layout.find(&key)?;
        let waiters = TicketQueue::at(&paths.queue).waiters()?;
        Ok(Queued { key, paths, waiters })
    }

    /// Returns the lock, if it has a holder or a waiter. `locks` were read after its queue.
    fn info(&self, queued: Queued, locks: &KernelLocks) -> Result<Option<LockInfo>> {
        let Queued { key, paths, mut waiters } = queued;
        let mut holders = self.sharing_now(&paths, locks)?;
        if holders.is_empty() {
            holders.extend(self.holder_now(&paths, locks)?);
        }
        waiters.retain(|waiter| holders.iter().all(|holder| holder.record.as_ref() != Some(waiter)));
        let is_in_use = !holders.is_empty() || !waiters.is_empty();
        Ok(is_in_use.then(|| LockInfo::new(key, holders, waiters)))
    }

    /// Returns the shared holders, foreign ones included. Empty when none of them is a client of distlock.
    fn sharing_now(&self, paths: &LockPaths, locks: &KernelLocks) -> Result<Vec<Holder>> {
        let broken = |error| file_error("read lock file", &paths.shared_holders, error);
        let mut holders =
            SharedHolders::read(&paths.shared_holders).and_then(|holders| holders.list()).map_err(broken)?;
        if holders.is_empty() {
            return Ok(Vec::new());
        }
        let pids = paths.open_to_read()?.map_or(Vec::new(), |file| locks.pids(file.id()));
        // A child may go on as a reader after the process that took the lock has ended.
        holders.retain(|holder| holder.is_live || pids.contains(&holder.entry.record.process.pid));
        let is_stranger = |pid: &&u32| !holders.iter().any(|holder| can_be(&holder.entry, &[**pid]));
        let strangers = if holders.is_empty() { 0 } else { pids.iter().filter(is_stranger).count() };
        let ours = holders.iter().map(|holder| self.holder(&holder.entry));
        Ok(ours.chain((0..strangers).map(|_| Holder::new(None, None))).collect())
    }

    fn holder_now(&self, paths: &LockPaths, locks: &KernelLocks) -> Result<Option<Holder>> {
        let Some(file) = paths.open_to_read()? else { return Ok(None) };
        let broken = |error| file_error("read lock file", &paths.lock, error);
        let entry = entry(paths, &file).map_err(broken)?;
        let pids = locks.pids(file.id());
        // The kernel does not show the processes of other containers. A probe could make another claim find the lock
        // busy for a moment, so the lock is probed only where an entry names a holder.
        if pids.is_empty() && (entry.is_none() || file.probe().map_err(broken)?) {
            return Ok(None);
        }
        if entry.as_ref().is_some_and(|entry| !can_be(entry, &pids)) {
            // The entry is a crashed holder's, or the lock changed hands between the two reads.
            let pids = KernelLocks::read()?.pids(file.id());
            return Ok(self.holder_among(entry.as_ref(), &pids));
        }
        Ok(self.holder_among(entry.as_ref(), &pids))
    }

    /// Returns the entry's author, if it can be the holder; otherwise a foreign holder, if there is a process.
    fn holder_among(&self, entry: Option<&HolderEntry>, pids: &[u32]) -> Option<Holder> {
        let author = entry.filter(|entry| can_be(entry, pids)).map(|entry| self.holder(entry));
        author.or_else(|| (!pids.is_empty()).then(|| Holder::new(None, None)))
    }

    fn holder(&self, entry: &HolderEntry) -> Holder {
        let granted = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(entry.granted_ms));
        let held = granted.and_then(|granted| self.0.clock.wall().duration_since(granted).ok());
        let token = FencingToken::new(entry.token);
        Holder::new(Some(Arc::new(entry.record.clone())), Some(token)).with_held_for(held)
    }
}

/// Whether the entry's author can be the holder, when the kernel names these processes.
fn can_be(entry: &HolderEntry, pids: &[u32]) -> bool {
    let process = &entry.record.process;
    pids.is_empty() || pids.contains(&process.pid) || is_elsewhere(process)
}

fn entry(paths: &LockPaths, file: &LockFile) -> io::Result<Option<HolderEntry>> {
    if let Some(entry) = LockContents::of(file.contents()).holder()? {
        return Ok(Some(entry));
    }
    let Some(path) = &paths.side else { return Ok(None) };
    let side = LockFile::open_to_read(path, Links::Refuse)?;
    side.map_or(Ok(None), |side| LockContents::of(side.contents()).holder())
}

/// Returns `None` for a lock whose own files are at fault.
fn unless_odd<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error) if is_about_the_file(&error) => {
            tracing::debug!(target: "distlock", %error, "a lock that cannot be read is not listed");
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// Collects the keys of all lock files in the directory `inside` of the lock directory `dir`, and below.
fn collect(dir: &Path, inside: &Path, keys: &mut Vec<Key>) -> Result<()> {
    let broken = |error| file_error("read lock directory", dir, error);
    let entries = match std::fs::read_dir(dir.join(inside)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(broken)?,
    };
    for entry in entries {
        let entry = entry.map_err(broken)?;
        let path = inside.join(entry.file_name());
        if entry.file_type().map_err(broken)?.is_dir() {
            if lock_names::goes_on(&entry.file_name()) {
                unless_odd(collect(dir, &path, keys))?;
            }
        } else {
            keys.extend(lock_names::key_of(&path));
        }
    }
    Ok(())
}
