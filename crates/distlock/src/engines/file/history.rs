//! The file with a lock's history: one entry per line, the oldest first.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use super::error::file_error;
use super::protocol::lock_contents::read_at;
use super::state::State;
use super::wire::lock_file::{Links, LockFile};
use crate::engines::file::lock_entries::{group_by_lock, outcomes_of_entries};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::{HistoryEntry, LONGEST_LINE, MAX_HISTORY};
use crate::types::key::Key;
use crate::types::token::AttemptId;

/// A file is shortened when it has more than so many bytes for each entry; most entries are shorter.
const BYTES_PER_ENTRY: u64 = 512;
/// How every line of a history begins, in every version.
const MARK: &[u8] = br#"{"at_ms":"#;
/// How often, and after which pause, to try a file that another process is writing to.
const WRITE_TRIES: usize = 20;
const WRITE_PAUSE: Duration = Duration::from_millis(5);

/// Adds entries to the histories of their locks, each of which then keeps its last `most`.
pub(super) async fn write(state: &State, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
    let groups = group_by_lock(entries);
    let mut outcomes = Vec::with_capacity(groups.len());
    for group in &groups {
        outcomes.push(write_to_lock(state, group.key, &group.entries, most).await);
    }
    outcomes_of_entries(&groups, outcomes)
}

async fn write_to_lock(state: &State, key: &Key, entries: &[&HistoryEntry], most: u32) -> Result<()> {
    let paths = state.layout.find(key)?;
    let lines = entries.iter().map(|entry| Ok(entry.to_line()? + "\n")).collect::<Result<String>>()?;
    append(&paths.history, &lines, most).await
}

/// Returns the last entries of a lock's history, at most `most`.
pub(super) fn read(state: &State, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
    read_file(&state.layout.find(key)?.history, most)
}

/// Adds lines, each with its line end, to the file at `path`, which then keeps its last `most`.
async fn append(path: &Path, lines: &str, most: u32) -> Result<()> {
    let failed = |error| file_error("write history", path, error);
    for _ in 0..WRITE_TRIES {
        {
            let file = LockFile::open(path, Links::Refuse).map_err(failed)?;
            refuse_foreign(path, &file)?;
            if try_append(path, &file, lines, most).map_err(failed)? {
                return Ok(());
            }
        }
        // A pause instead of a blocking flock: a writer that is suspended would block this one too.
        tokio::time::sleep(WRITE_PAUSE).await;
    }
    Err(Error::unavailable(format!("another process is writing to {}", path.display())))
}

/// Refuses the log of another program, which may have the name of a lock's history in the same directory.
fn refuse_foreign(path: &Path, file: &LockFile) -> Result<()> {
    if is_ours(file.contents()).map_err(|error| file_error("read history", path, error))? {
        return Ok(());
    }
    let message = format!("{} is not a history of locks, and stays as it is", path.display());
    Err(Error::new(ErrorKind::Foreign, message).with_help("move it away, or keep locks in another directory"))
}

/// Whether the file is empty or begins as a history does.
fn is_ours(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.is_file() && MARK.starts_with(&read_at(file, 0, MARK.len())?))
}

/// Returns false when another process is writing to the file.
fn try_append(path: &Path, file: &LockFile, lines: &str, most: u32) -> io::Result<bool> {
    if !file.try_lock()? || !file.is_at(path)? {
        return Ok(false);
    }
    let mut contents = file.contents();
    let end = contents.seek(SeekFrom::End(0))?;
    // A writer that was killed may have left half a line.
    let is_whole = end == 0 || last_byte(contents, end)? == b'\n';
    let glue = if is_whole { "" } else { "\n" };
    contents.seek(SeekFrom::End(0))?;
    contents.write_all([glue, lines].concat().as_bytes())?;
    if end + lines.len() as u64 > u64::from(most) * BYTES_PER_ENTRY {
        shorten(path, contents, most)?;
    }
    Ok(true)
}

fn last_byte(mut file: &File, end: u64) -> io::Result<u8> {
    let mut last = [0];
    file.seek(SeekFrom::Start(end - 1))?;
    file.read_exact(&mut last)?;
    Ok(last[0])
}

/// Replaces `file` by one with its last `most` lines. A writer that waits for the old file notices that it is not at
/// `path` any more.
fn shorten(path: &Path, file: &File, most: u32) -> io::Result<()> {
    let text = tail(file, most)?;
    let kept = last_lines(&text, most);
    if kept.len() as u64 == file.metadata()?.len() {
        return Ok(());
    }
    // A random name is unique, and no other user can foresee it.
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", AttemptId::random()));
    let written = LockFile::create_new(new.as_ref())?.contents().write_all(&kept);
    let moved = written.and_then(|()| std::fs::rename(&new, path));
    if moved.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    moved
}

fn read_file(path: &Path, most: u32) -> Result<Vec<HistoryEntry>> {
    let failed = |error| file_error("read history", path, error);
    let Some(file) = LockFile::open_to_read(path, Links::Refuse).map_err(failed)? else { return Ok(Vec::new()) };
    refuse_foreign(path, &file)?;
    let text = tail(file.contents(), most).map_err(failed)?;
    Ok(last_lines(&text, most).split(|byte| *byte == b'\n').filter_map(HistoryEntry::from_line).collect())
}

/// Returns the end of a file, as far as its last `most` lines can reach. The bound matters: other writers of the
/// directory could leave a file of any length.
fn tail(mut file: &File, most: u32) -> io::Result<Vec<u8>> {
    let longest = (u64::from(most.min(MAX_HISTORY)) + 1) * LONGEST_LINE as u64;
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(longest)))?;
    let mut text = Vec::new();
    file.take(longest).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the last `most` lines of `text` that begin as a history's do. Any other line would make the whole file
/// foreign if it came first.
fn last_lines(text: &[u8], most: u32) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.starts_with(MARK));
    let mut last: Vec<_> = lines.rev().take(most as usize).collect();
    last.reverse();
    last.concat()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;

    fn line(number: u32) -> String {
        format!("{{\"at_ms\":{number:02}}}\n")
    }

    #[test]
    fn the_last_lines_are_the_last() {
        let [first, second, third] = [1, 2, 3].map(line);
        let all = [&*first, "garbage\n\n", &second, &third].concat();
        assert_eq!(last_lines(all.as_bytes(), 2), [&*second, &third].concat().as_bytes());
        for most in [3, 9] {
            assert_eq!(last_lines(all.as_bytes(), most), [&*first, &second, &third].concat().as_bytes());
        }
        assert_eq!(last_lines(b"", 1), b"");
    }

    #[test]
    fn of_a_file_the_end_is_read_as_far_as_its_last_lines_can_reach() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a.log");
        let long = format!("{{\"at_ms\":{}\n", "1".repeat(LONGEST_LINE - MARK.len()));
        std::fs::write(&path, long.repeat(9)).unwrap();
        let file = File::open(&path).unwrap();
        for most in [1, 3, 9, 20_000] {
            let text = tail(&file, most).unwrap();
            assert!(text.len() <= (most as usize + 1) * LONGEST_LINE, "{most}: {}", text.len());
            assert_eq!(last_lines(&text, most).len(), long.len() * most.min(9) as usize, "{most}");
        }
    }

    #[tokio::test]
    async fn a_file_stays_short_and_half_a_line_costs_no_other() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a.log");
        append(&path, &line(1), 3).await.unwrap();
        let half = &line(2)[..MARK.len()];
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(half.as_bytes()).unwrap();
        append(&path, &line(3), 3).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}{half}\n{}", line(1), line(3)));
        let long = "x".repeat(600);
        for number in 0..20 {
            append(&path, &line(number).replace('}', &long), 3).await.unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() <= 3 * 612, "after {number}");
        }
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().map(|line| &line[MARK.len()..][..2]).collect::<Vec<_>>(), ["17", "18", "19"]);
        let other = LockFile::open(&path, Links::Refuse).unwrap();
        assert!(other.try_lock().unwrap());
        assert!(append(&path, &line(20), 3).await.unwrap_err().is_retryable(), "another process is writing");
    }
}
