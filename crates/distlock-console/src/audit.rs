//! The audit log: who broke which lock, when and why.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use distlock::{FencingToken, Holder, Key};
use distlock_http::Refused;
use serde::{Serialize, Serializer};

use crate::lock::{Hold, Who, now_ms};
use crate::timeline::{End, PastHold};

/// How many rows are kept in memory.
const MAX_ROWS: usize = 1_000;

/// A break, requested or done.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    at_ms: u64,
    event: AuditEvent,
    #[serde(serialize_with = "name")]
    lock: Key,
    #[serde(serialize_with = "text")]
    token: FencingToken,
    /// The holder, if it could be read.
    #[serde(serialize_with = "who")]
    holder: Option<Holder>,
    reason: String,
    remote: String,
    /// The error of a break that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The state of a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AuditEvent {
    /// The break is about to be done. Written only to the file: the row is there even if this process dies during the
    /// break.
    Asked,
    /// The break was done.
    Broken,
    /// The break was refused.
    Refused,
    /// No answer came: the break may or may not have been done.
    Unknown,
}

impl Row {
    pub(crate) fn asked(lock: Key, token: FencingToken, holder: Option<Holder>, reason: String, remote: String) -> Row {
        Row { at_ms: now_ms(), event: AuditEvent::Asked, lock, token, holder, reason, remote, error: None }
    }

    /// Returns the same row with its outcome.
    pub(crate) fn ended(&self, event: AuditEvent, error: Option<String>) -> Row {
        Row { at_ms: now_ms(), event, error, ..self.clone() }
    }

    /// Returns the lock and its broken hold, if the break was done.
    pub(crate) fn broken_hold(&self) -> Option<(&Key, PastHold)> {
        let record = self.holder.as_ref().and_then(|holder| holder.record.clone());
        let hold = Hold { record, ..Hold::unseen(self.token) };
        let reason = Some(self.reason.clone());
        let past = PastHold { hold, seen_ms: self.at_ms, ended_ms: self.at_ms, end: End::Broken, reason };
        (self.event == AuditEvent::Broken).then_some((&self.lock, past))
    }
}

fn name<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(key.as_str())
}

fn text<S: Serializer>(token: &FencingToken, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(token)
}

fn who<S: Serializer>(holder: &Option<Holder>, serializer: S) -> Result<S::Ok, S::Error> {
    holder.as_ref().and_then(|holder| holder.record.as_deref()).map(Who::from).serialize(serializer)
}

/// All breaks: the last ones in memory, and all of them in a file if there is one.
#[derive(Debug)]
pub(crate) struct Audit {
    rows: Mutex<VecDeque<Arc<Row>>>,
    /// The mutex serializes appends: two rows at once could both find a complete last line.
    path: Option<Mutex<PathBuf>>,
}

impl Audit {
    /// Opens the log. A new file at `path` is readable by its owner only.
    pub(crate) fn open(path: Option<&Path>) -> Result<Audit, Refused> {
        if let Some(path) = path {
            open(path).map_err(|error| Refused::new(format!("the audit file {}: {error}", path.display())))?;
        }
        Ok(Audit { rows: Mutex::default(), path: path.map(|path| Mutex::new(path.into())) })
    }

    /// Writes a row. Blocks until the disk has it.
    ///
    /// # Errors
    /// When the file cannot be written; the row is then in memory only.
    pub(crate) fn write(&self, row: &Row) -> io::Result<()> {
        if row.event != AuditEvent::Asked {
            let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.push_back(Arc::new(row.clone()));
            if rows.len() > MAX_ROWS {
                rows.pop_front();
            }
        }
        let Some(path) = &self.path else { return Ok(()) };
        let mut line = serde_json::to_vec(row)?;
        line.push(b'\n');
        append(&path.lock().unwrap_or_else(PoisonError::into_inner), line)
    }

    /// Returns the last rows, the newest first.
    pub(crate) fn rows(&self) -> Vec<Arc<Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    /// Whether this console broke that hold.
    pub(crate) fn has_broken(&self, key: &Key, token: FencingToken) -> bool {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().any(|row| row.event == AuditEvent::Broken && row.token == token && row.lock == *key)
    }

    /// Returns how many of the last breaks had this outcome.
    pub(crate) fn count(&self, event: AuditEvent) -> usize {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().filter(|row| row.event == event).count()
    }
}

/// Appends a line to the file that is at `path` now: log rotation may have moved the last one.
fn append(path: &Path, mut line: Vec<u8>) -> io::Result<()> {
    let mut file = open(path)?;
    let end = file.metadata()?.len();
    let mut last = [b'\n'];
    // Reads nothing from an empty file.
    file.read_at(&mut last, end.saturating_sub(1))?;
    // A full disk may have left an incomplete line.
    if last != [b'\n'] {
        line.insert(0, b'\n');
    }
    // In one write at the end, so that several consoles can append to one file.
    file.write_all(&line)?;
    file.sync_data()?;
    if end == 0 {
        // A new file survives a crash only when its directory entry is on disk too.
        let dir = path.parent().filter(|dir| *dir != "").unwrap_or(Path::new("."));
        match File::open(dir) {
            Ok(dir) => dir.sync_all()?,
            // Write permission does not imply read permission. The row itself is on disk; its directory entry soon
            // will be.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    // Other file types have no end to check and no disk.
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token: u64) -> Row {
        let key = Key::new("a").unwrap();
        Row::asked(key, FencingToken::new(token), None, "because".into(), "127.0.0.1".into())
    }

    #[test]
    fn rows_in_memory_are_bounded_and_find_broken_holds() {
        let audit = Audit::open(None).unwrap();
        let key = Key::new("a").unwrap();
        for token in 0..=MAX_ROWS as u64 {
            audit.write(&row(token)).unwrap();
            audit.write(&row(token).ended(AuditEvent::Broken, None)).unwrap();
        }
        audit.write(&row(5).ended(AuditEvent::Refused, Some("no".into()))).unwrap();
        assert_eq!(audit.rows().len(), MAX_ROWS);
        assert_eq!(audit.rows()[0].event, AuditEvent::Refused, "the newest first");
        assert!(audit.has_broken(&key, FencingToken::new(MAX_ROWS as u64)));
        assert!(!audit.has_broken(&key, FencingToken::new(0)), "forgotten");
    }

    /// Returns a path for one test, where no file exists.
    fn vacant(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("distlock-audit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// Removes the file and returns the tokens of its rows, `None` for a malformed row.
    fn take(path: &Path) -> Vec<Option<String>> {
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::remove_file(path).unwrap();
        let row = |line| serde_json::from_str::<serde_json::Value>(line).ok();
        text.lines().map(|line| Some(row(line)?["token"].as_str()?.to_owned())).collect()
    }

    #[test]
    fn an_incomplete_line_does_not_damage_the_next() {
        let path = vacant("half");
        let audit = Audit::open(Some(&path)).unwrap();
        audit.write(&row(1)).unwrap();
        let mut line = std::fs::read(&path).unwrap();
        line.truncate(line.len() / 2);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&line).unwrap();
        audit.write(&row(2)).unwrap();
        audit.write(&row(3)).unwrap();
        assert_eq!(take(&path), [Some("1".into()), None, Some("2".into()), Some("3".into())]);
    }

    #[test]
    fn a_renamed_or_removed_file_is_created_again() {
        use std::os::unix::fs::PermissionsExt;

        let (path, rotated) = (vacant("rotated"), vacant("rotated-1"));
        let audit = Audit::open(Some(&path)).unwrap();
        audit.write(&row(1)).unwrap();
        std::fs::rename(&path, &rotated).unwrap();
        audit.write(&row(2)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!((take(&rotated), take(&path)), (vec![Some("1".into())], vec![Some("2".into())]));
        audit.write(&row(3)).unwrap();
        assert_eq!(take(&path), [Some("3".into())]);
    }

    #[test]
    fn files_that_cannot_be_appended_to_are_refused() {
        let path = vacant("directory");
        let audit = Audit::open(Some(&path)).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(audit.write(&row(1)).is_err());
        assert!(Audit::open(Some(&path)).is_err());
        std::fs::remove_dir(&path).unwrap();
        assert!(Audit::open(Some(Path::new("/dev/null"))).is_err(), "not a regular file");
    }

    #[test]
    fn rows_are_written_in_an_unreadable_directory() {
        use std::os::unix::fs::PermissionsExt;

        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        let dir = vacant("unreadable");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o300)).unwrap();
        // Root may read everything, unless its thread gives that up.
        let mut rights = capabilities(None).unwrap();
        rights.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, rights).unwrap();
        assert!(File::open(&dir).is_err(), "the directory is unreadable");
        let path = dir.join("rows");
        Audit::open(Some(&path)).unwrap().write(&row(1)).unwrap();
        assert_eq!(take(&path), [Some("1".into())]);
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn the_file_has_one_line_for_the_request_and_one_for_the_outcome() {
        let path = vacant("rows");
        let audit = Audit::open(Some(&path)).unwrap();
        audit.write(&row(7)).unwrap();
        audit.write(&row(7).ended(AuditEvent::Unknown, Some("no\nreply".into()))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&rows[0]["event"], &rows[1]["event"], rows.len()), (&"asked".into(), &"unknown".into(), 2));
        assert_eq!((&rows[0]["token"], &rows[0]["remote"]), (&"7".into(), &"127.0.0.1".into()));
        std::fs::remove_file(&path).unwrap();
    }
}
