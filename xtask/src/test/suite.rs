//! The steps that run tests and count them.

use std::path::PathBuf;

use super::names::{self, Listed};
use super::skips::{self, Skips};
use super::{Outcome, counts, tools};
use crate::cmd::Cmd;
use crate::tally::Tally;

/// What the name of a test holds that only root can run.
const NEEDS_ROOT: &str = "needs_root";

/// Runs every unit and integration test.
pub(super) fn tests() -> Outcome {
    let skips = match Skips::begin(&target_directory().join("xtask")) {
        Ok(skips) => skips,
        Err(error) => {
            eprintln!("the file for {} cannot be written: {error}", skips::VARIABLE);
            return Outcome::new(Tally::one(false), "cargo xtask test tests");
        }
    };
    let nextest = Cmd::cargo(&["nextest", "--version"]).succeeds_silently();
    let shown = if nextest { with_nextest(tools::is_root()) } else { with_cargo_test(tools::is_root()) };
    let cmd = shown.clone().hidden_env(skips::VARIABLE, &skips.path().to_string_lossy());
    let mut tally = Tally::default();
    let good = cmd.stream(|line| {
        let found = if nextest { counts::of_nextest(line) } else { counts::of_libtest(line) };
        tally += found.unwrap_or_default();
    });
    if !tools::is_root() {
        print_needs_root();
    }
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

fn with_nextest(is_root: bool) -> Cmd {
    let cmd = Cmd::cargo(&["nextest", "run", "--workspace", "--all-features", "--no-fail-fast"]);
    if is_root { cmd } else { cmd.args(&["-E", &format!("not test({NEEDS_ROOT})")]) }
}

fn with_cargo_test(is_root: bool) -> Cmd {
    // `--tests` leaves out the doc tests: they are a step of their own, and would count twice.
    let cmd = Cmd::cargo(&["test", "--workspace", "--all-features", "--no-fail-fast", "--tests"]);
    if is_root { cmd } else { cmd.args(&["--", "--skip", NEEDS_ROOT]) }
}

fn print_needs_root() {
    let all = names::list(&["--tests"], Listed::All).unwrap_or_default();
    all.iter().filter(|name| name.contains(NEEDS_ROOT)).for_each(|name| println!("skipped: {name}: needs root"));
}

fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_root_the_tests_that_need_it_are_left_out_by_name() {
        assert!(with_nextest(false).to_string().ends_with("-E 'not test(needs_root)'"));
        assert!(with_cargo_test(false).to_string().ends_with("-- --skip needs_root"));
        for cmd in [with_nextest(true), with_cargo_test(true)] {
            assert!(!cmd.to_string().contains(NEEDS_ROOT), "{cmd}");
        }
    }
}
