//! Every promise of docs/guarantees.md and SECURITY.md is backed by a test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The number of rows of the failure catalogue.
const ROWS: usize = 87;

/// The directories with tests.
const SOURCES: [&str; 4] = ["crates", "chaos", "models", "simulation"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(root().join("docs/guarantees.md")).expect("the page")
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    number: usize,
    promise: String,
    tests: Vec<String>,
    engines: BTreeSet<String>,
}

/// Returns the numbered rows.
fn rows(page: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, promise, tests, engines, _] = cells[..] else { return None };
        Some(Row {
            number: number.parse().ok()?,
            promise: promise.to_owned(),
            tests: quoted(tests),
            engines: engines.split(", ").map(str::to_owned).collect(),
        })
    };
    page.lines().filter_map(row).collect()
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
    let rows = rows(&page());
    let numbers: Vec<usize> = rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, Vec::from_iter(1..=ROWS));
    for row in rows {
        assert!(!row.promise.is_empty() && !row.tests.is_empty(), "{row:?}");
    }
}

#[test]
fn every_named_test_exists_and_the_engines_match() {
    let functions = functions();
    let page = page();
    for row in rows(&page) {
        let files = |test: &String| functions.get(test).unwrap_or_else(|| panic!("row {}: no {test}", row.number));
        let engines: BTreeSet<String> = row.tests.iter().flat_map(files).map(|file| engine(file).to_owned()).collect();
        assert_eq!(row.engines, engines, "row {}", row.number);
    }
    // Elsewhere on the pages, names of tests stand between other text; they look like sentences.
    let security = fs::read_to_string(root().join("SECURITY.md")).expect("SECURITY.md");
    let rest = page.split("\n## ").skip(1).chain([security.as_str()]).flat_map(quoted);
    for test in rest.filter(|name| name.matches('_').count() > 3) {
        assert!(functions.contains_key(&test), "no {test}");
    }
}

#[test]
fn every_fault_test_is_in_its_row_of_the_page() {
    let rows = rows(&page());
    for test in functions().into_keys() {
        let Some(number) = row_of(&test) else { continue };
        let row = rows.iter().find(|row| row.number == number).unwrap_or_else(|| panic!("no row for {test}"));
        assert!(row.tests.contains(&test), "row {number} lacks {test}");
    }
}

#[test]
fn a_page_is_parsed() {
    let rows = rows("| 7 | a | b | `f07_x`<br>`y` | core, redis |\n| | **Group** | | | |\n|---|---|---|---|---|\n");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].number, rows[0].tests.len(), rows[0].engines.len()), (7, 2, 2));
    assert_eq!(names("pub async fn a<S>() {}\n    fn b() {}\n// fn c()").collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((row_of("f07_x"), row_of("f1_x"), row_of("fence_x")), (Some(7), None, None));
}
