//! The step that checks that every set-up runs every conformance case.
//!
//! The tests are named `conformance::<setup>::<case>`; the first part may be the name of the test binary and is then
//! missing in the list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Outcome;
use super::names::{self, Listed};
use crate::tally::Tally;

const SUITE: &str = "crates/distlock/tests/conformance.rs";
const AGAIN: &str = "cargo xtask test conformance";

type Setups<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Compares the set-ups with each other.
pub(super) fn run() -> Outcome {
    if !Path::new(SUITE).exists() {
        println!("no conformance set-ups found: there is no {SUITE}");
        return Outcome::new(Tally::one(true), AGAIN);
    }
    let lists = [Listed::All, Listed::Ignored].map(|listed| names::list(&["--test", "conformance"], listed));
    let [Some(all), Some(ignored)] = lists else {
        eprintln!("the conformance tests cannot be listed");
        return Outcome::new(Tally::one(false), AGAIN);
    };
    let setups = setups(&all, &ignored);
    if setups.is_empty() {
        println!("no conformance set-ups found in {SUITE}");
    }
    let missing = missing(&setups, &every_case(&all));
    for (setup, cases) in &setups {
        println!("{setup}: {} cases", cases.len());
    }
    missing.iter().for_each(|(setup, case)| eprintln!("missing: {setup} does not run {case}"));
    let tally = if missing.is_empty() { Tally::one(true) } else { Tally { failed: missing.len(), ..Tally::default() } };
    Outcome::new(tally, AGAIN)
}

fn setup_and_case(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("conformance::").unwrap_or(name).split_once("::")
}

/// Returns the cases of each set-up. An ignored test does not run, so its set-up misses that case.
fn setups<'a>(all: &'a [String], ignored: &[String]) -> Setups<'a> {
    let mut setups = Setups::new();
    for name in all {
        let Some((setup, case)) = setup_and_case(name) else { continue };
        let cases = setups.entry(setup).or_default();
        if !ignored.contains(name) {
            cases.insert(case);
        }
    }
    setups
}

fn every_case(all: &[String]) -> BTreeSet<&str> {
    all.iter().filter_map(|name| setup_and_case(name)).map(|(_, case)| case).collect()
}

fn missing<'a>(setups: &Setups<'a>, every_case: &BTreeSet<&'a str>) -> Vec<(&'a str, &'a str)> {
    let of_setup = |(setup, cases): (&&'a str, &BTreeSet<&'a str>)| {
        let setup = *setup;
        every_case.difference(cases).map(move |case| (setup, *case)).collect::<Vec<_>>()
    };
    setups.iter().flat_map(of_setup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing_in(all: &[&str], ignored: &[&str]) -> Vec<String> {
        let [all, ignored] = [all, ignored].map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
        let missing = missing(&setups(&all, &ignored), &every_case(&all));
        missing.iter().map(|(setup, case)| format!("{setup}/{case}")).collect()
    }

    #[test]
    fn a_missing_case_of_a_set_up_is_named() {
        let names = ["conformance::memory::a", "conformance::memory::b", "conformance::file::b"];
        assert_eq!(missing_in(&names, &[]), ["file/a"]);
    }

    #[test]
    fn complete_set_ups_miss_nothing_with_or_without_the_first_part() {
        assert_eq!(missing_in(&["memory::a", "file::a"], &[]), [""; 0]);
        assert_eq!(missing_in(&["conformance::memory::a", "conformance::file::a"], &[]), [""; 0]);
        assert_eq!(missing_in(&["a_test_beside_the_suite", "memory::a"], &[]), [""; 0]);
    }

    #[test]
    fn an_ignored_case_is_a_missing_case() {
        let names = ["memory::a", "memory::b", "file::a", "file::b"];
        assert_eq!(missing_in(&names, &["file::b"]), ["file/b"]);
        assert_eq!(missing_in(&["memory::a", "file::a"], &["file::a"]), ["file/a"], "also when a set-up runs nothing");
    }
}
