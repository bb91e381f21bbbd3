//! The file with the notes of a lock's ticks: one note per line; the last line of a tick counts.
//!
//! Only the holder of the lock writes it, so there is one writer at a time. It adds a line at the end: a reader sees the
//! line whole or not at all, and a writer that is killed leaves at most half a line, which is not read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::SystemTime;

use super::error::file_error;
use super::hold::FileHold;
use super::inspector::Inspector;
use super::state::State;
use super::wire::lock_file::{Links, LockFile};
use crate::contract::{Claim, LockTicks, TickNotes};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::LONGEST_LINE;
use crate::types::key::Key;
use crate::types::tick::{MAX_TICKS, Tick, TickNote, check_count, millis};
use crate::types::token::AttemptId;

/// How every line begins, in every version.
const MARK: &[u8] = br#"{"tick":"#;
/// A file is written anew when it has so many more lines than twice as many as count.
const SLACK: usize = 64;
/// How much of the end of a file is read. Others who may write in the directory could leave a file of any length.
const MOST_BYTES: u64 = 4 * (MAX_TICKS * LONGEST_LINE) as u64;

/// Returns the notes of a lock, or that of one tick.
pub(super) fn read(state: &State, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
    let now_ms = wall_ms(state);
    let mut notes = Stored::read(&state.layout.find(key)?.ticks)?.live(now_ms);
    notes.retain(|note| tick.is_none_or(|tick| *tick == note.tick));
    Ok(TickNotes::at(now_ms, notes))
}

/// Writes a note as the holder of the lock. Returns whether it is stored.
pub(super) fn write(state: &State, claim: &Claim, note: &TickNote) -> Result<bool> {
    // Kept until the note is written: no release of this client ends the hold in between.
    let holds = state.holds();
    let is_holder = holds.get(&claim.attempt).map_or(Ok(false), FileHold::is_intact)?;
    let paths = state.layout.find(&claim.key)?;
    let stored = Stored::read(&paths.ticks)?;
    let live = stored.live(wall_ms(state));
    if stored.notes.get(&note.tick) == Some(note) {
        return Ok(true);
    }
    let last = live.iter().find(|other| other.tick == note.tick);
    if !is_holder || last.is_some_and(|last| !note.may_replace(last)) {
        return Ok(false);
    }
    let others = live.iter().filter(|other| other.tick != note.tick);
    if last.is_none() {
        check_count(others.clone().count())?;
    }
    let failed = |error| file_error("write the ticks of a lock to", &paths.ticks, error);
    let line = note.to_line()? + "\n";
    let kept = 1 + others.clone().count();
    if stored.lines >= 2 * kept + SLACK {
        let text = others.map(|other| Ok(other.to_line()? + "\n")).collect::<Result<String>>()? + &line;
        // Where the file is another user's in a sticky directory it cannot be replaced, and grows.
        if replace(&paths.ticks, &text).is_ok() {
            return Ok(true);
        }
    }
    append(&paths.ticks, &line).map_err(failed)?;
    Ok(true)
}

/// Returns the notes of all locks in the directory whose names begin with `prefix`.
pub(super) fn list(state: &State, prefix: &str) -> Result<Vec<LockTicks>> {
    let now_ms = wall_ms(state);
    let mut all = Vec::new();
    for key in Inspector::of(state).keys(prefix)? {
        // In a directory of several users, an odd file of one must not hide the notes of all.
        let found = state.layout.find(&key).and_then(|paths| Stored::read(&paths.ticks));
        let notes = found.map(|stored| stored.live(now_ms)).unwrap_or_default();
        if !notes.is_empty() {
            all.push((key, notes));
        }
    }
    Ok(all)
}

/// The notes in a file.
#[derive(Default)]
struct Stored {
    notes: BTreeMap<Tick, TickNote>,
    lines: usize,
}

impl Stored {
    fn read(path: &Path) -> Result<Stored> {
        let failed = |error| file_error("read the ticks of a lock from", path, error);
        let Some(file) = LockFile::open_to_read(path, Links::Refuse).map_err(failed)? else {
            return Ok(Stored::default());
        };
        let text = tail(file.contents()).map_err(failed)?;
        let mut stored = Stored::default();
        // Without its line end the last line is not written yet.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            stored.lines += 1;
            if let Some(note) = TickNote::from_line(line) {
                stored.notes.insert(note.tick.clone(), note);
            }
        }
        if !text.is_empty() && !text.starts_with(MARK) && stored.notes.is_empty() {
            let message = format!("{} has no notes of ticks, and stays as it is", path.display());
            let help = "move it away, or keep locks in another directory";
            return Err(Error::new(ErrorKind::Foreign, message).with_help(help));
        }
        Ok(stored)
    }

    fn live(&self, now_ms: u64) -> Vec<TickNote> {
        self.notes.values().filter(|note| note.forget_ms > now_ms).cloned().collect()
    }
}

fn tail(mut file: &File) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(MOST_BYTES)))?;
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Adds a line, which is on the disk when this returns.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let file = LockFile::open(path, Links::Refuse)?;
    let mut contents = file.contents();
    let end = contents.seek(SeekFrom::End(0))?;
    // A writer that was killed may have left half a line.
    let is_whole = end == 0 || {
        let mut last = [0];
        contents.seek(SeekFrom::Start(end - 1))?;
        contents.read_exact(&mut last)?;
        last == *b"\n"
    };
    contents.seek(SeekFrom::End(0))?;
    contents.write_all([if is_whole { "" } else { "\n" }, line].concat().as_bytes())?;
    contents.sync_data()
}

/// Puts a file with this text in place of the old one, in one step.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A random name is unique, and no other user can foresee it.
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", AttemptId::random()));
    let file = LockFile::create_new(new.as_ref())?;
    let written = file.contents().write_all(text.as_bytes()).and_then(|()| file.contents().sync_data());
    let moved = written.and_then(|()| std::fs::rename(&new, path));
    if moved.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    moved
}

fn wall_ms(state: &State) -> u64 {
    millis(state.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::Scratch;
    use super::*;
    use crate::types::owner::{OwnerId, Process, Record};
    use crate::types::token::FencingToken;

    const HOUR: Duration = Duration::from_secs(3600);

    fn note(name: &str, starts: u32) -> TickNote {
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        TickNote::start(Tick::named(name).unwrap(), 1_000, HOUR, FencingToken::new(1), record).with_starts(starts)
    }

    #[test]
    fn the_last_line_of_a_tick_counts_and_half_a_line_does_not() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a.ticks");
        for line in [note("a", 1), note("b", 1), note("a", 2)].map(|note| note.to_line().unwrap() + "\n") {
            append(&path, &line).unwrap();
        }
        let half = &note("a", 3).to_line().unwrap()[..40];
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(half.as_bytes()).unwrap();
        let stored = Stored::read(&path).unwrap();
        assert_eq!((stored.notes[&note("a", 2).tick].starts, stored.lines), (2, 3));
        append(&path, &(note("b", 7).to_line().unwrap() + "\n")).unwrap();
        let stored = Stored::read(&path).unwrap();
        assert_eq!(stored.live(1_001).iter().map(|note| note.starts).collect::<Vec<_>>(), [2, 7]);
        assert!(stored.live(1_000 + 3_600_000).is_empty(), "forgotten");
    }

    #[test]
    fn a_file_of_another_program_is_refused_and_stays() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a.ticks");
        std::fs::write(&path, "tock\n").unwrap();
        assert_eq!(Stored::read(&path).err().unwrap().kind(), ErrorKind::Foreign);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "tock\n");
    }
}
