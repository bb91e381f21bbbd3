//! Who broke which lock, when and why.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use distlock::{FencingToken, Holder, Key};
use serde::{Serialize, Serializer};

use crate::lock::{Hold, Who, now_ms};
use crate::options::Refused;
use crate::timeline::{End, PastHold};

/// How many rows are kept in memory.
const MOST: usize = 1_000;

/// A break, asked for or done.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    at_ms: u64,
    event: Event,
    #[serde(serialize_with = "name")]
    lock: Key,
    #[serde(serialize_with = "text")]
    token: FencingToken,
    /// Who had it, as far as could be found out.
    #[serde(serialize_with = "who")]
    holder: Option<Holder>,
    reason: String,
    remote: IpAddr,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// How far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// It is about to be done. Only in the file: what is done is there even if we die on the way.
    Asked,
    /// It was done.
    Broken,
    /// It was not done.
    Refused,
    /// No answer came: it may or may not have been done.
    Unknown,
}

impl Row {
    pub(crate) fn asked(lock: Key, token: FencingToken, holder: Option<Holder>, reason: String, remote: IpAddr) -> Row {
        Row { at_ms: now_ms(), event: Event::Asked, lock, token, holder, reason, remote, error: None }
    }

    /// The same, with its outcome.
    pub(crate) fn ended(&self, event: Event, error: Option<String>) -> Row {
        Row { at_ms: now_ms(), event, error, ..self.clone() }
    }

    /// The lock and the hold of it that was broken, if one was.
    pub(crate) fn broken_hold(&self) -> Option<(&Key, PastHold)> {
        let record = self.holder.as_ref().and_then(|holder| holder.record.clone());
        let hold = Hold { record, ..Hold::unseen(self.token) };
        let reason = Some(self.reason.clone());
        let past = PastHold { hold, seen_ms: self.at_ms, ended_ms: self.at_ms, end: End::Broken, reason };
        (self.event == Event::Broken).then_some((&self.lock, past))
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
    /// Whoever writes to the file has it: two rows at once could both find the end of a line there.
    path: Option<Mutex<PathBuf>>,
}

impl Audit {
    /// Appends to `path`, which only its owner may read when it is new.
    pub(crate) fn open(path: Option<&Path>) -> Result<Audit, Refused> {
        if let Some(path) = path {
            open(path).map_err(|error| Refused::new(format!("the audit file {}: {error}", path.display())))?;
        }
        Ok(Audit { rows: Mutex::default(), path: path.map(|path| Mutex::new(path.into())) })
    }

    /// Writes a row down. Blocks until the disk has it.
    ///
    /// # Errors
    /// When the file cannot be written; the row is then in memory only.
    pub(crate) fn write(&self, row: &Row) -> io::Result<()> {
        if row.event != Event::Asked {
            let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.push_back(Arc::new(row.clone()));
            if rows.len() > MOST {
                rows.pop_front();
            }
        }
        let Some(path) = &self.path else { return Ok(()) };
        let mut line = serde_json::to_vec(row)?;
        line.push(b'\n');
        append(&path.lock().unwrap_or_else(PoisonError::into_inner), line)
    }

    /// The last rows, the newest first.
    pub(crate) fn rows(&self) -> Vec<Arc<Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    /// Whether this console ended that hold.
    pub(crate) fn has_broken(&self, key: &Key, token: FencingToken) -> bool {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().any(|row| row.event == Event::Broken && row.token == token && row.lock == *key)
    }

    /// How many breaks came to which end, of the last ones.
    pub(crate) fn count(&self, event: Event) -> usize {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().filter(|row| row.event == event).count()
    }
}

/// Adds a line to what is at `path` now: the file of the last row may have been taken away since, as logs are.
fn append(path: &Path, mut line: Vec<u8>) -> io::Result<()> {
    let mut file = open(path)?;
    let end = file.metadata()?.len();
    let mut last = [b'\n'];
    // Nothing is read where there is nothing, or nothing any more.
    file.read_at(&mut last, end.saturating_sub(1))?;
    // A disk that was full has left half a line.
    if last != [b'\n'] {
        line.insert(0, b'\n');
    }
    // In one piece, at the end: also when several consoles append to one file.
    file.write_all(&line)?;
    file.sync_data()?;
    if end == 0 {
        // What is new is on disk only when its name is too.
        let dir = path.parent().filter(|dir| *dir != "").unwrap_or(Path::new("."));
        match File::open(dir) {
            Ok(dir) => dir.sync_all()?,
            // Who may write there need not be allowed to read. The row itself is on disk, and its name soon.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    // Anything else has no end to look at, and no disk.
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token: u64) -> Row {
        let key = Key::new("a").unwrap();
        Row::asked(key, FencingToken::new(token), None, "because".into(), IpAddr::from([127, 0, 0, 1]))
    }

    #[test]
    fn memory_is_bounded_and_knows_what_was_broken() {
        let audit = Audit::open(None).unwrap();
        let key = Key::new("a").unwrap();
        for token in 0..=MOST as u64 {
            audit.write(&row(token)).unwrap();
            audit.write(&row(token).ended(Event::Broken, None)).unwrap();
        }
        audit.write(&row(5).ended(Event::Refused, Some("no".into()))).unwrap();
        assert_eq!(audit.rows().len(), MOST);
        assert_eq!(audit.rows()[0].event, Event::Refused, "the newest first");
        assert!(audit.has_broken(&key, FencingToken::new(MOST as u64)));
        assert!(!audit.has_broken(&key, FencingToken::new(0)), "forgotten");
    }

    /// A path of a test's own, at which there is nothing.
    fn vacant(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("distlock-audit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// The tokens of the rows in a file, `None` for what is no row; and the file is gone.
    fn take(path: &Path) -> Vec<Option<String>> {
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::remove_file(path).unwrap();
        let row = |line| serde_json::from_str::<serde_json::Value>(line).ok();
        text.lines().map(|line| Some(row(line)?["token"].as_str()?.to_owned())).collect()
    }

    #[test]
    fn half_a_line_costs_no_other() {
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
    fn a_file_that_was_renamed_or_removed_is_followed_by_a_new_one() {
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
    fn what_cannot_be_appended_to_is_refused_at_the_start_and_later() {
        let path = vacant("directory");
        let audit = Audit::open(Some(&path)).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(audit.write(&row(1)).is_err());
        assert!(Audit::open(Some(&path)).is_err());
        std::fs::remove_dir(&path).unwrap();
        assert!(Audit::open(Some(Path::new("/dev/null"))).is_err(), "it forgets");
    }

    #[test]
    fn a_directory_that_may_not_be_read_is_no_reason_to_write_nothing() {
        use std::os::unix::fs::PermissionsExt;

        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        let dir = vacant("unreadable");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o300)).unwrap();
        // Root may read everything, unless its thread gives that up.
        let mut rights = capabilities(None).unwrap();
        rights.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, rights).unwrap();
        assert!(File::open(&dir).is_err(), "it may not be read");
        let path = dir.join("rows");
        Audit::open(Some(&path)).unwrap().write(&row(1)).unwrap();
        assert_eq!(take(&path), [Some("1".into())]);
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn the_file_has_the_wish_and_the_outcome_one_a_line() {
        let path = vacant("rows");
        let audit = Audit::open(Some(&path)).unwrap();
        audit.write(&row(7)).unwrap();
        audit.write(&row(7).ended(Event::Unknown, Some("no\nreply".into()))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&rows[0]["event"], &rows[1]["event"], rows.len()), (&"asked".into(), &"unknown".into(), 2));
        assert_eq!((&rows[0]["token"], &rows[0]["remote"]), (&"7".into(), &"127.0.0.1".into()));
        std::fs::remove_file(&path).unwrap();
    }
}
