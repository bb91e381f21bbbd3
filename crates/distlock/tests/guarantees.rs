//! Every promise of docs/guarantees.md and SECURITY.md is backed by a test, which docs/guarantees-tests.md names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The number of rows of the failure catalogue.
const ROWS: usize = 87;

/// The part of the page with the table.
const TABLE: &str = "Failures and promises";

/// The directories with tests.
const SOURCES: [&str; 4] = ["crates", "chaos", "models", "simulation"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a page of docs/.
fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).expect("the page")
}

/// A row of the table, with its tests.
#[derive(Debug)]
struct Row {
    number: usize,
    promise: String,
    tests: Vec<String>,
    engines: BTreeSet<String>,
}

/// Returns the numbered rows of both pages.
fn pages() -> Vec<Row> {
    rows(&page("guarantees.md"), &page("guarantees-tests.md"))
}

/// Returns the numbered rows of the promises, with those of the same number of the tests.
fn rows(promises: &str, tests: &str) -> Vec<Row> {
    let tests = numbered(tests).map(|(number, cells)| match cells[..] {
        [tests] => (number, quoted(tests)),
        _ => panic!("row {number} is not | number | tests |"),
    });
    let tests: BTreeMap<usize, Vec<String>> = tests.collect();
    let row = |(number, cells): (usize, Vec<&str>)| match cells[..] {
        [_, promise, engines] => Row {
            number,
            promise: promise.to_owned(),
            tests: tests.get(&number).cloned().unwrap_or_default(),
            engines: engines.split(", ").map(str::to_owned).collect(),
        },
        _ => panic!("row {number} is not | number | failure | promised | engines |"),
    };
    let rows: Vec<Row> = numbered(promises).map(row).collect();
    let promised: BTreeSet<usize> = rows.iter().map(|row| row.number).collect();
    assert_eq!(promised, tests.keys().copied().collect(), "the rows of the promises and of the tests");
    rows
}

/// Returns the rows of tables that begin with a number, each with its other cells.
fn numbered(page: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let (number, rest) = cells.split_first()?;
        Some((number.parse().ok()?, rest.to_vec()))
    })
}

/// Returns the texts in backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns every function of the sources, with its files.
fn functions() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut directories: Vec<PathBuf> = SOURCES.iter().map(|name| root().join(name)).collect();
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                let shown = path.strip_prefix(root()).expect("below the root").display().to_string();
                for name in names(&text) {
                    found.entry(name.to_owned()).or_default().insert(shown.clone());
                }
            }
        }
    }
    found
}

/// Returns the names of functions that are declared at the start of a line, after `pub` and `async`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let line = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
        line.split(['(', '<']).next()
    })
}

/// Returns the engine of the tests in this file.
fn engine(file: &str) -> &'static str {
    let has = |part: &str| file.contains(part);
    match file {
        _ if has("redlock_faults") || has("engines/redlock") => "redlock",
        _ if has("redis_faults") || has("engines/redis") => "redis",
        _ if has("etcd_faults") || has("engines/etcd") => "etcd",
        _ if has("postgres_faults") || has("engines/postgres") => "postgres",
        _ if has("engines/file") => "file",
        _ if has("testkit/src/cases") => "all",
        _ if has("distlock-cli") => "program",
        _ => "core",
    }
}

/// Returns the catalogue row of a fault test: `f07_…`.
fn row_of(test: &str) -> Option<usize> {
    let (number, _) = test.strip_prefix('f')?.split_once('_')?;
    (number.len() == 2).then(|| number.parse().ok())?
}

#[test]
fn every_row_of_the_catalogue_has_a_promise_and_a_test() {
    let rows = pages();
    let numbers: Vec<usize> = rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, Vec::from_iter(1..=ROWS));
    for row in rows {
        assert!(!row.promise.is_empty() && !row.tests.is_empty(), "{row:?}");
    }
}

#[test]
fn every_named_test_exists_and_the_engines_match() {
    let functions = functions();
    for row in pages() {
        let files = |test: &String| functions.get(test).unwrap_or_else(|| panic!("row {}: no {test}", row.number));
        let engines: BTreeSet<String> = row.tests.iter().flat_map(files).map(|file| engine(file).to_owned()).collect();
        assert_eq!(row.engines, engines, "row {}", row.number);
    }
    // Elsewhere on the pages, names of tests stand between other text; they look like sentences.
    let security = fs::read_to_string(root().join("SECURITY.md")).expect("SECURITY.md");
    let guarantees = page("guarantees.md");
    let parts = guarantees.split("\n## ").filter(|part| !part.starts_with(TABLE));
    let rest = parts.chain([security.as_str()]).flat_map(quoted);
    for test in rest.filter(|name| name.matches('_').count() > 3) {
        assert!(functions.contains_key(&test), "no {test}");
    }
}

#[test]
fn every_fault_test_is_in_its_row_of_the_page() {
    let rows = pages();
    for test in functions().into_keys() {
        let Some(number) = row_of(&test) else { continue };
        let row = rows.iter().find(|row| row.number == number).unwrap_or_else(|| panic!("no row for {test}"));
        assert!(row.tests.contains(&test), "row {number} lacks {test}");
    }
}

#[test]
fn a_page_is_parsed() {
    let promises = "| 7 | a | b | core, redis |\n| | **Group** | | |\n|---|---|---|---|\n";
    let rows = rows(promises, "| | tests |\n| 7 | `f07_x`<br>`y` |\n");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].number, rows[0].tests.len(), rows[0].engines.len()), (7, 2, 2));
    assert_eq!(names("pub async fn a<S>() {}\n    fn b() {}\n// fn c()").collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((row_of("f07_x"), row_of("f1_x"), row_of("fence_x")), (Some(7), None, None));
}
