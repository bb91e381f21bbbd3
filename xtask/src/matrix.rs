//! `cargo xtask matrix`: conformance and fault tests on every server version of a table.
//!
//! Newer servers are packages of other Debian suites. They are unpacked with their own libraries into the target directory;
//! nothing is installed. A version whose suite cannot be reached is skipped by name.

mod archive;
mod page;
mod version;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::cmd::Cmd;
use crate::tally::Tally;
use crate::test::{self, counts};
use page::Row;
use version::{VERSIONS, Version};

/// How much of the tests to run on a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What `cargo xtask test` runs on it: conformance on one set-up, or the tests of native commands.
    Short,
    /// Conformance on all set-ups of the product, and the fault tests.
    Whole,
}

/// Runs all versions, or those whose names contain one of `wanted`, and writes the page.
pub(crate) fn run(wanted: &[&str]) -> bool {
    let is_wanted = |version: &&Version| wanted.is_empty() || wanted.iter().any(|name| version.name.contains(name));
    let chosen: Vec<&Version> = VERSIONS.iter().filter(is_wanted).collect();
    if chosen.is_empty() {
        eprintln!("no version has such a name; the versions are {}", names());
        return false;
    }
    let mut rows = Vec::new();
    for (number, version) in (1..).zip(&chosen) {
        println!("[{number}/{}] {} …", chosen.len(), version.name);
        let start = Instant::now();
        match try_version(version, Extent::Whole) {
            Some((shown, tally)) => {
                println!("[{number}/{}] {}: {tally}, {} s", chosen.len(), version.name, start.elapsed().as_secs());
                rows.push(Row::new(version.name, &shown, tally, today(), &commit()));
            }
            None => println!("[{number}/{}] skipped: {}: its package cannot be had", chosen.len(), version.name),
        }
    }
    if has_changes() {
        println!("{} is not written: the tree has changes, so no commit says what was run", page::PATH);
    } else if let Err(error) = page::write(&rows) {
        eprintln!("{} cannot be written: {error}", page::PATH);
        return false;
    }
    rows.iter().all(|row| row.failed == 0)
}

/// Runs the short form on the newer versions that `cargo xtask test` covers. Skipped versions are counted.
pub(crate) fn short() -> Tally {
    let mut total = Tally::default();
    for version in VERSIONS.iter().filter(|version| version.short_form.is_some()) {
        match try_version(version, Extent::Short) {
            Some((shown, tally)) => {
                println!("{} ({shown}): {tally}", version.name);
                total += tally;
            }
            None => {
                println!("skipped: {}: its package cannot be had", version.name);
                total.skipped += 1;
            }
        }
    }
    total
}

/// Returns the variable, and its value, with which the version `name` is the server that tests and programs start.
///
/// # Errors
/// Says why there is none.
pub(crate) fn variable(name: &str) -> Result<(&'static str, String), String> {
    let found = VERSIONS.iter().find(|version| version.name == name);
    let version = found.ok_or_else(|| format!("no version is called {name}; the versions are {}", names()))?;
    let programs = archive::provide(version).ok_or_else(|| format!("the package of {name} cannot be had"))?;
    Ok(version.product.variable(&programs))
}

fn names() -> String {
    VERSIONS.iter().map(|version| version.name).collect::<Vec<_>>().join(", ")
}

/// Runs the tests on one version. Returns what the server says of its version, and the counts; `None` when the version
/// cannot be had.
fn try_version(version: &Version, extent: Extent) -> Option<(String, Tally)> {
    let programs = archive::provide(version)?;
    let shown = version.product.ask_version(&programs)?;
    Some((shown, tests(version.filter(extent), version.product.variable(&programs))))
}

fn tests(filter: &str, (variable, value): (&str, String)) -> Tally {
    // Of the whole workspace, as `cargo xtask test` builds it: with other features the library would be compiled again.
    let cmd = Cmd::cargo(&["nextest", "run", "--workspace", "--all-features", "--no-fail-fast", "-E", filter])
        .hidden_env(variable, &value);
    let mut tally = Tally::default();
    let good = cmd.stream(|line| tally += counts::of_nextest(line).unwrap_or_default());
    // The tests that the filter leaves out are not skipped: they are no part of this run.
    Tally { skipped: 0, ..tally.of_run(good) }
}

/// Returns the first digits of the commit.
pub(crate) fn commit() -> String {
    let head = Cmd::new("git").args(&["rev-parse", "--short=10", "HEAD"]).read();
    head.map_or_else(|| "unknown".into(), |text| text.trim().to_owned())
}

/// Returns whether files other than documentation differ from the commit.
pub(crate) fn has_changes() -> bool {
    let status = Cmd::new("git").args(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]).read();
    status.is_none_or(|changes| !changes.trim().is_empty())
}

/// Returns the day as year-month-day.
pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    page::day(seconds / 86_400)
}

/// Returns where unpacked servers are kept.
fn cache() -> std::path::PathBuf {
    let target = test::target_directory();
    std::path::absolute(&target).unwrap_or(target).join("matrix")
}
