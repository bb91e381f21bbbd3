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

use std::collections::HashMap;
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
    /// The step with which it begins, if both are wanted: it uses one core, where the steps from that one on wait much.
    beside: Option<&'static str>,
}

impl Step {
    const fn new(name: &'static str, run: fn() -> Outcome) -> Self {
        Step { name, run, beside: None }
    }
}

const STEPS: &[Step] = &[
    Step::new("tools", tools::run),
    Step::new("fmt", || Outcome::of(&Cmd::cargo(&["fmt", "--all", "--", "--check"]))),
    Step::new("clippy", || Outcome::of(&clippy())),
    Step::new("docs", || Outcome::of(&docs())),
    // The pages are there already when the step before has run.
    Step::new("api", || Outcome::new(Tally::one(docs().succeeds() && api::check()), "cargo xtask api")),
    Step::new("tidy", || Outcome::new(Tally::one(tidy::run()), "cargo xtask tidy")),
    Step::new("tests", suite::tests),
    Step::new("conformance", conformance::run),
    Step::new("versions", || Outcome::new(matrix::short(), "cargo xtask test versions")),
    Step::new("doctests", suite::doc_tests),
    Step::new("examples", examples::run),
    Step { name: "features", run: features::run, beside: Some("versions") },
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
    std::thread::scope(|scope| {
        let mut running = HashMap::new();
        for (number, step) in (1..).zip(&chosen) {
            for other in chosen.iter().filter(|other| other.beside == Some(step.name)) {
                running.insert(other.name, scope.spawn(other.run));
            }
            let outcome = announced(number, chosen.len(), step, || match running.remove(step.name) {
                Some(run) => run.join().unwrap_or_else(|_| Outcome::new(Tally::one(false), step.name)),
                None => (step.run)(),
            });
            total += outcome.tally;
            if !outcome.tally.is_good() {
                failures.push((step.name, outcome.again));
            }
        }
    });
    for (name, again) in &failures {
        println!("{name} failed; to run it alone:");
        again.iter().for_each(|command| println!("    {command}"));
    }
    println!("{total}");
    crate::exit_code(total.is_good())
}

fn announced(number: usize, of: usize, step: &Step, run: impl FnOnce() -> Outcome) -> Outcome {
    println!("[{number}/{of}] {} …", step.name);
    // Children of the step write to the same terminal, so earlier output must be flushed first.
    let _ = std::io::stdout().flush();
    let start = Instant::now();
    let outcome = run();
    let verdict = if outcome.tally.is_good() { "ok" } else { "FAILED" };
    println!("[{number}/{of}] {} {verdict}, {:.1} s", step.name, start.elapsed().as_secs_f64());
    outcome
}
