//! The steps that run tests and count them.

use std::path::PathBuf;

use super::names::{self, Listed};
use super::skips::{self, Skips};
use super::{Outcome, counts, tools};
use crate::cmd::Cmd;
use crate::tally::Tally;

/// A requirement that not every machine meets.
struct Need {
    /// The part of the names of tests that need it.
    name: &'static str,
    what: &'static str,
    is_there: fn() -> bool,
}

const NEEDS: [Need; 4] = [
    Need { name: "needs_root", what: "needs root", is_there: tools::is_root },
    Need { name: "needs_browser", what: "needs chromium and chromedriver", is_there: tools::has_browser },
    Need { name: "needs_zsh", what: "needs zsh", is_there: tools::has_zsh },
    Need { name: "needs_fish", what: "needs fish", is_there: tools::has_fish },
];

/// How many tests may pass only when they are run again: more are a defect that the machine does not excuse.
const MOST_FLAKY: usize = 2;

/// Runs every unit and integration test.
pub(super) fn tests() -> Outcome {
    let skips = match Skips::begin(&target_directory().join("xtask")) {
        Ok(skips) => skips,
        Err(error) => {
            eprintln!("the file for {} cannot be written: {error}", skips::VARIABLE);
            return Outcome::new(Tally::one(false), "cargo xtask test tests");
        }
    };
    // Together with the programs that tests start: otherwise the first test would build them, and others would wait
    // for it.
    Cmd::cargo(&["build", "--workspace", "--all-features", "--tests", "--examples"]).succeeds();
    let nextest = Cmd::cargo(&["nextest", "--version"]).succeeds_silently();
    let lacking: Vec<&Need> = NEEDS.iter().filter(|need| !(need.is_there)()).collect();
    let names: Vec<&str> = lacking.iter().map(|need| need.name).collect();
    let shown = if nextest { with_nextest(&names) } else { with_cargo_test(&names) };
    let cmd = shown.clone().hidden_env(skips::VARIABLE, &skips.path().to_string_lossy());
    let (mut tally, mut flaky) = (Tally::default(), 0);
    let good = cmd.stream(|line| {
        let found = if nextest { counts::of_nextest(line) } else { counts::of_libtest(line) };
        tally += found.unwrap_or_default();
        flaky += counts::flaky(line).unwrap_or_default();
    });
    if flaky > 0 {
        println!(
            "flaky: {flaky} passed only when run again, {MOST_FLAKY} may; each is a bug to find (CONTRIBUTING.md)"
        );
    }
    let good = good && flaky <= MOST_FLAKY;
    // The runner counts these itself.
    left_out(&lacking).iter().for_each(|skip| println!("skipped: {skip}"));
    let skipped = skips.read();
    skipped.iter().for_each(|skip| println!("skipped: {skip}"));
    Outcome::new(tally.of_run(good).with_skips(skipped.len()), shown.to_string())
}

/// Runs every doc test.
pub(super) fn doc_tests() -> Outcome {
    let cmd = Cmd::cargo(&["test", "--doc", "--workspace", "--all-features", "--no-fail-fast"]);
    let mut tally = Tally::default();
    let good = cmd.stream(|line| tally += counts::of_libtest(line).unwrap_or_default());
    Outcome::new(tally.of_run(good), cmd.to_string())
}

fn with_nextest(without: &[&str]) -> Cmd {
    let cmd = Cmd::cargo(&["nextest", "run", "--workspace", "--all-features", "--no-fail-fast"]);
    let filter: Vec<String> = without.iter().map(|name| format!("not test({name})")).collect();
    if filter.is_empty() { cmd } else { cmd.args(&["-E", &filter.join(" and ")]) }
}

fn with_cargo_test(without: &[&str]) -> Cmd {
    // `--tests` excludes the doc tests: they are a separate step, and would count twice.
    let cmd = Cmd::cargo(&["test", "--workspace", "--all-features", "--no-fail-fast", "--tests"]);
    let cmd = if without.is_empty() { cmd } else { cmd.args(&["--"]) };
    without.iter().fold(cmd, |cmd, name| cmd.args(&["--skip", name]))
}

/// Returns the tests that were not run because the machine lacks a requirement.
fn left_out(lacking: &[&Need]) -> Vec<String> {
    if lacking.is_empty() {
        return Vec::new();
    }
    let all = names::list(&["--tests"], Listed::All).unwrap_or_default();
    let why = |name: &String| lacking.iter().find(|need| name.contains(need.name)).map(|need| need.what);
    all.iter().filter_map(|name| Some(format!("{name}: {}", why(name)?))).collect()
}

pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_with_missing_requirements_are_excluded_by_name() {
        assert!(with_nextest(&["needs_root"]).to_string().ends_with("-E 'not test(needs_root)'"));
        assert!(with_cargo_test(&["needs_root"]).to_string().ends_with("-- --skip needs_root"));
        let both = ["needs_root", "needs_browser"];
        assert!(with_nextest(&both).to_string().ends_with("'not test(needs_root) and not test(needs_browser)'"));
        assert!(with_cargo_test(&both).to_string().ends_with("-- --skip needs_root --skip needs_browser"));
        for cmd in [with_nextest(&[]), with_cargo_test(&[])] {
            assert!(!cmd.to_string().contains("needs_"), "{cmd}");
        }
    }
}
