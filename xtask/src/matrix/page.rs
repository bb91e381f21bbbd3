//! The page with the results, `docs/compatibility.md`.

use std::fs;
use std::io;

use super::version::VERSIONS;
use crate::tally::Tally;

pub(super) const PATH: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- matrix begin -->";
const END: &str = "<!-- matrix end -->";
const HEAD: &str = "| version | server | tests passed | tests failed | day | commit |\n|---|---|---|---|---|---|\n";

/// What stands before the versions that were never run.
const NOT_RUN: &str = "Not run yet: ";

/// The result of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    name: String,
    server: String,
    passed: usize,
    pub(super) failed: usize,
    day: String,
    commit: String,
}

impl Row {
    pub(super) fn new(name: &str, server: &str, tally: Tally, day: String, commit: &str) -> Row {
        let (name, server, commit) = (name.to_owned(), server.to_owned(), commit.to_owned());
        Row { name, server, passed: tally.passed, failed: tally.failed, day, commit }
    }

    fn read(line: &str) -> Option<Row> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, server, passed, failed, day, commit, _] = cells[..] else { return None };
        let text = |cell: &str| cell.trim_matches('`').to_owned();
        let (passed, failed) = (passed.parse().ok()?, failed.parse().ok()?);
        Some(Row { name: text(name), server: text(server), passed, failed, day: text(day), commit: text(commit) })
    }

    fn write(&self) -> String {
        let Row { name, server, passed, failed, day, commit } = self;
        format!("| `{name}` | {server} | {passed} | {failed} | {day} | `{commit}` |\n")
    }
}

/// Puts `rows` into the page. Versions that were not run keep the row that they have.
pub(super) fn write(rows: &[Row]) -> io::Result<()> {
    let page = fs::read_to_string(PATH)?;
    let merged = merge(&page, rows).ok_or_else(|| io::Error::other(format!("no {BEGIN} and {END} in it")))?;
    fs::write(PATH, merged)
}

fn merge(page: &str, rows: &[Row]) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    let old: Vec<Row> = table.lines().filter_map(Row::read).collect();
    let row = |name: &str| rows.iter().chain(&old).find(|row| row.name == name).map(Row::write);
    let body: String = VERSIONS.iter().filter_map(|version| row(version.name)).collect();
    let missing = VERSIONS.iter().map(|version| version.name).filter(|name| row(name).is_none());
    let missing: Vec<String> = missing.map(|name| format!("`{name}`")).collect();
    let note = if missing.is_empty() { String::new() } else { format!("\n{NOT_RUN}{}\n", missing.join(", ")) };
    Some(format!("{before}{BEGIN}\n{HEAD}{body}{note}{END}{after}"))
}

/// Returns the day that is so many days after 1970-01-01.
pub(super) fn day(days: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, passed: usize) -> Row {
        let tally = Tally { passed, failed: 0, skipped: 0 };
        Row::new(name, "Valkey 8.1.1", tally, "2026-11-18".into(), "0123456789")
    }

    #[test]
    fn a_row_survives_the_page() {
        let row = row("valkey-8.1", 92);
        assert_eq!(Row::read(row.write().trim_end()), Some(row));
        assert_eq!(Row::read("|---|---|---|---|---|---|"), None);
    }

    #[test]
    fn new_rows_replace_old_ones_and_the_others_stay_in_the_order_of_the_table() {
        let page = format!("above\n{BEGIN}\n{HEAD}{}{END}\nbelow\n", row("valkey-8.1", 1).write());
        let merged = merge(&page, &[row("redis-8.0", 7), row("valkey-8.1", 2)]).unwrap();
        let expected = [row("redis-8.0", 7), row("valkey-8.1", 2)].map(|row| row.write()).concat();
        assert!(merged.starts_with(&format!("above\n{BEGIN}\n{HEAD}{expected}\n{NOT_RUN}`redis-7.0`, ")), "{merged}");
        assert!(merged.ends_with(&format!("\n{END}\nbelow\n")) && !merged.contains("`redis-8.0`, "), "{merged}");
        let kept = merge(&merged, &[row("etcd-3.4", 3)]).unwrap();
        assert!(kept.contains(&row("redis-8.0", 7).write()) && kept.contains(&row("etcd-3.4", 3).write()));
        assert_eq!(merge("no marks", &[]), None);
    }

    /// Every version of the table has a row that says when and on which commit it was run, or is said not to have been
    /// run. The commit is one of this project's, and not from after that day.
    #[test]
    fn the_page_claims_only_what_was_run() {
        let root = format!("{}/..", env!("CARGO_MANIFEST_DIR"));
        let page = fs::read_to_string(format!("{root}/{PATH}")).unwrap();
        let table = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).expect("a table").0;
        let rows: Vec<Row> = table.lines().filter_map(Row::read).collect();
        assert_eq!(merge(&page, &rows).as_deref(), Some(page.as_str()), "as `cargo xtask matrix` writes it");
        assert!(rows.iter().all(|row| VERSIONS.iter().any(|version| version.name == row.name)), "{rows:?}");
        let git = |words: &[&str]| crate::cmd::Cmd::new("git").args(&["-C", &root]).args(words).read();
        // Without the whole history, as in an unpacked archive, commits cannot be looked up.
        let is_shallow = git(&["rev-parse", "--is-shallow-repository"]).is_none_or(|text| text.trim() != "false");
        for row in &rows {
            assert!(row.passed > 0, "{row:?}");
            assert!(row.commit.len() == 10 && row.commit.chars().all(|c| c.is_ascii_hexdigit()), "{row:?}");
            assert!(row.day.len() == 10 && row.day.starts_with("20"), "{row:?}");
            if !is_shallow {
                let made = git(&["show", "--no-patch", "--format=%cs", &row.commit]).expect("a commit");
                assert!(made.trim() <= row.day.as_str(), "{row:?}: the commit is of {made}");
            }
        }
    }

    #[test]
    fn days_are_counted_as_calendars_do() {
        let cases =
            [(0, "1970-01-01"), (58, "1970-02-28"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_775, "2026-11-18")];
        for (days, expected) in cases {
            assert_eq!(day(days), expected);
        }
    }
}
