//! `cargo xtask bench cli`: `distlock run x -- true` against `flock x true`, in alternation.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::median;
use crate::cmd::Cmd;
use crate::test::target_directory;

const RUNS: usize = 500;
const WARM_UP: usize = 20;
/// The most that distlock may take longer.
const AIM: Duration = Duration::from_millis(2);

/// Prints the median times and their difference.
pub(super) fn run() -> bool {
    if !Cmd::cargo(&["build", "--release", "-q", "-p", "distlock-cli"]).succeeds() {
        return false;
    }
    let directory = target_directory().join("bench-cli");
    if let Err(error) = std::fs::create_dir_all(&directory) {
        eprintln!("{}: {error}", directory.display());
        return false;
    }
    let program = target_directory().join("release/distlock");
    let mut ours = Command::new(std::path::absolute(&program).unwrap_or(program));
    ours.args(["run", "x", "--", "true"]).env("DISTLOCK_LOCK_DIR", &directory).env_remove("DISTLOCK_URL");
    let mut flock = Command::new("flock");
    flock.arg(directory.join("x")).arg("true");
    let (mut our_times, mut flock_times) = (Vec::new(), Vec::new());
    for round in 0..RUNS + WARM_UP {
        let (Some(one), Some(other)) = (time(&mut ours, &directory), time(&mut flock, &directory)) else {
            return false;
        };
        if round >= WARM_UP {
            our_times.push(one);
            flock_times.push(other);
        }
    }
    let (ours, flock) = (median(our_times).unwrap_or_default(), median(flock_times).unwrap_or_default());
    println!(
        "distlock run x -- true: {ours:.2} ms, flock x true: {flock:.2} ms (medians of {RUNS} in alternation), {:+.2} ms \
         (aim: at most +{} ms)",
        ours - flock,
        AIM.as_millis()
    );
    true
}

/// Returns how many milliseconds the command takes; `None` when it fails.
fn time(command: &mut Command, directory: &Path) -> Option<f64> {
    command.current_dir(directory).stdin(Stdio::null());
    let start = Instant::now();
    let status = command.status();
    let took = start.elapsed();
    match status {
        Ok(status) if status.success() => Some(took.as_secs_f64() * 1_000.0),
        problem => {
            eprintln!("{command:?}: {problem:?}");
            None
        }
    }
}
