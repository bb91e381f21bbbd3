//! `cargo xtask test`: the one command that verifies the project.
//!
//! Every step runs, even after a failure, so that one run shows all problems.

mod conformance;
pub(crate) mod counts;
mod examples;
mod features;
mod names;
mod service_policy;
mod skips;
mod suite;
mod tools;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use crate::cmd::Cmd;
use crate::tally::Tally;
use crate::{api, matrix, tidy};

pub(crate) use suite::target_directory;

/// The outcome of a step.
struct Outcome {
    tally: Tally,
    /// The commands that run only the failures.
    again: Vec<String>,
}

impl Outcome {
    /// Runs a step that is one command and counts as one.
    fn of(cmd: &Cmd) -> Self {
        Outcome::new(Tally::one(cmd.succeeds()), cmd.to_string())
    }

    /// Returns the outcome of a step that `again` repeats.
    fn new(tally: Tally, again: impl Into<String>) -> Self {
        Outcome { tally, again: vec![again.into()] }
    }
}

/// A named part of the run.
struct Step {
    name: &'static str,
    run: fn() -> Outcome,
}

const STEPS: &[Step] = &[
    Step { name: "tools", run: tools::run },
    Step { name: "fmt", run: || Outcome::of(&Cmd::cargo(&["fmt", "--all", "--", "--check"])) },
    Step { name: "clippy", run: || Outcome::of(&clippy()) },
    Step { name: "docs", run: || Outcome::of(&docs()) },
    // The pages are there already when the step before has run.
    Step { name: "api", run: || Outcome::new(Tally::one(docs().succeeds() && api::check()), "cargo xtask api") },
    Step { name: "tidy", run: || Outcome::new(Tally::one(tidy::run()), "cargo xtask tidy") },
    Step { name: "tests", run: suite::tests },
    Step { name: "conformance", run: conformance::run },
    Step { name: "versions", run: || Outcome::new(matrix::short(), "cargo xtask test versions") },
    Step { name: "doctests", run: suite::doc_tests },
    Step { name: "examples", run: examples::run },
    Step { name: "features", run: features::run },
];

/// Returns the names of the steps.
#[cfg(test)]
pub(crate) fn step_names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|step| step.name)
}

fn clippy() -> Cmd {
    Cmd::cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])
}

/// Returns the command that writes the pages of all crates.
pub(crate) fn docs() -> Cmd {
    Cmd::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]).env("RUSTDOCFLAGS", "-D warnings")
}

/// Runs the named steps, or all of them, and prints the total.
pub(crate) fn run(wanted: &[&str]) -> ExitCode {
    if let Some(unknown) = wanted.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        return crate::usage(&format!("`{unknown}` is not a step; the steps are {}", names.join(", ")));
    }
    let chosen: Vec<&Step> = STEPS.iter().filter(|step| wanted.is_empty() || wanted.contains(&step.name)).collect();
    let mut total = Tally::default();
    let mut failures = Vec::new();
    for (number, step) in (1..).zip(&chosen) {
        let outcome = announced(number, chosen.len(), step);
        total += outcome.tally;
        if !outcome.tally.is_good() {
            failures.push((step.name, outcome.again));
        }
    }
    for (name, again) in &failures {
        println!("{name} failed; to run it alone:");
        again.iter().for_each(|command| println!("    {command}"));
    }
    println!("{total}");
    crate::exit_code(total.is_good())
}

fn announced(number: usize, of: usize, step: &Step) -> Outcome {
    println!("[{number}/{of}] {} …", step.name);
    // Children of the step write to the same terminal, so earlier output must be flushed first.
    let _ = std::io::stdout().flush();
    let start = Instant::now();
    let outcome = (step.run)();
    let verdict = if outcome.tally.is_good() { "ok" } else { "FAILED" };
    println!("[{number}/{of}] {} {verdict}, {:.1} s", step.name, start.elapsed().as_secs_f64());
    outcome
}
