//! `cargo xtask bench NAME`: figures, each with the command that produces it.

mod chart;
mod cli;
mod figures;
mod page;
mod peers;
mod table;

use crate::cmd::Cmd;

/// Runs the benchmark `name`; returns whether it succeeded.
pub(crate) fn run(name: &str, rest: &[&str]) -> bool {
    match name {
        "cli" => cli::run(),
        "peers" => peers::run(rest),
        // It measures the program itself.
        "serve" if !Cmd::cargo(&["build", "--release", "-q", "-p", "distlock-cli"]).succeeds() => false,
        _ => Cmd::cargo(&["run", "--release", "-q", "-p", "distlock-bench", "--", name]).args(rest).succeeds(),
    }
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}
