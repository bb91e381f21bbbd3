//! The page with the record, `docs/proof.md`.

use std::fs;
use std::io;

pub(super) const PATH: &str = "docs/proof.md";
const BEGIN: &str = "<!-- record begin -->";
const END: &str = "<!-- record end -->";
const HEAD: &str = "| what | command | result | day | commit |\n|---|---|---|---|---|\n";

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// What was run: the command and its engine. There is one row for each.
    pub(super) subject: String,
    /// The whole command line.
    pub(super) command: String,
    pub(super) result: String,
    pub(super) day: String,
    pub(super) commit: String,
}

impl Row {
    fn read(line: &str) -> Option<Row> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, subject, command, result, day, commit, _] = cells[..] else { return None };
        let commit = commit.strip_prefix('`')?.strip_suffix('`')?.to_owned();
        let command = command.strip_prefix('`')?.strip_suffix('`')?.to_owned();
        Some(Row { subject: subject.to_owned(), command, result: result.to_owned(), day: day.to_owned(), commit })
    }

    fn write(&self) -> String {
        let Row { subject, command, result, day, commit } = self;
        // A cell ends at this character.
        let result = result.replace('|', "/");
        format!("| {subject} | `{command}` | {result} | {day} | `{commit}` |\n")
    }
}

/// Puts a row into the page, in place of the one with the same subject.
pub(super) fn write(row: &Row) -> io::Result<()> {
    let page = fs::read_to_string(PATH)?;
    let merged = merge(&page, Some(row)).ok_or_else(|| io::Error::other(format!("no {BEGIN} and {END} in it")))?;
    fs::write(PATH, merged)
}

fn merge(page: &str, row: Option<&Row>) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    let is_replaced = |old: &Row| row.is_some_and(|row| row.subject == old.subject);
    let mut rows: Vec<Row> = table.lines().filter_map(Row::read).filter(|old| !is_replaced(old)).collect();
    rows.extend(row.cloned());
    rows.sort_by(|a, b| a.subject.cmp(&b.subject));
    let rows: String = rows.iter().map(Row::write).collect();
    Some(format!("{before}{BEGIN}\n{HEAD}{rows}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::Cmd;
    use crate::proof::outcome;

    fn row(subject: &str, result: &str) -> Row {
        let command = format!("cargo xtask {subject}");
        Row {
            subject: subject.into(),
            command,
            result: result.into(),
            day: "2026-11-18".into(),
            commit: "0123456789".into(),
        }
    }

    #[test]
    fn a_row_survives_the_page() {
        let row = row("chaos redis", "60 grants");
        assert_eq!(Row::read(row.write().trim_end()), Some(row));
        assert_eq!(Row::read("|---|---|---|---|---|"), None);
        assert_eq!(Row::read("| what | command | result | day | commit |"), None);
    }

    #[test]
    fn a_run_replaces_its_row_and_leaves_the_others() {
        let page = format!("above\n{BEGIN}\n{HEAD}{}{END}\nbelow\n", row("chaos redis", "old").write());
        let page = merge(&page, Some(&row("models", "m"))).unwrap();
        let page = merge(&page, Some(&row("chaos redis", "new"))).unwrap();
        let rows = [row("chaos redis", "new"), row("models", "m")].map(|row| row.write()).concat();
        assert_eq!(page, format!("above\n{BEGIN}\n{HEAD}{rows}{END}\nbelow\n"));
        assert_eq!(merge("no marks", None), None);
    }

    /// The marked part has the form that the commands write, its rows are about what can be recorded, and its commits are of
    /// this project and not from after the day of the run.
    #[test]
    fn the_page_claims_only_what_was_run() {
        let root = format!("{}/..", env!("CARGO_MANIFEST_DIR"));
        let page = fs::read_to_string(format!("{root}/{PATH}")).unwrap();
        assert_eq!(merge(&page, None).as_deref(), Some(page.as_str()), "as the commands write it");
        let table = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).expect("a table").0;
        let rows: Vec<Row> = table.lines().filter_map(Row::read).collect();
        assert_eq!(table.lines().filter(|line| line.starts_with("| ")).count(), rows.len() + 1, "each line is a row");
        let git = |words: &[&str]| Cmd::new("git").args(&["-C", &root]).args(words).read();
        // Without the whole history, as in an unpacked archive, commits cannot be looked up.
        let is_shallow = git(&["rev-parse", "--is-shallow-repository"]).is_none_or(|text| text.trim() != "false");
        for row in &rows {
            let words: Vec<&str> = row.command.split(' ').collect();
            assert_eq!(words[..2], ["cargo", "xtask"], "{row:?}");
            assert_eq!(outcome::subject(&words[2..]), Some(row.subject.clone()), "{row:?}");
            assert!(row.commit.len() == 10 && row.commit.chars().all(|c| c.is_ascii_hexdigit()), "{row:?}");
            assert!(row.day.len() == 10 && row.day.starts_with("20") && !row.result.is_empty(), "{row:?}");
            if !is_shallow {
                let made = git(&["show", "--no-patch", "--format=%cs", &row.commit]).expect("a commit");
                assert!(made.trim() <= row.day.as_str(), "{row:?}: the commit is of {made}");
                let is_ours = Cmd::new("git").args(&["-C", &root, "merge-base", "--is-ancestor", &row.commit, "HEAD"]);
                assert!(is_ours.succeeds_silently(), "{row:?}: the commit is not in the history");
            }
        }
    }
}
