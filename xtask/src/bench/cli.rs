//! `cargo xtask bench cli`: `distlock run x -- true` against `flock x true`, in alternation.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cmd::Cmd;
use crate::test::target_directory;

const RUNS: usize = 500;
const WARM_UP: usize = 20;
/// The most that distlock may take longer.
const AIM: Duration = Duration::from_millis(2);

/// How many times the fastest tenth a median may be before the machine counts as busy.
const MOST_SPREAD: f64 = 1.25;

/// Prints the median times and their difference.
pub(super) fn run() -> bool {
    if !Cmd::cargo(&["build", "--release", "-q", "-p", "distlock-cli"]).succeeds() {
        return false;
    }
    let target = target_directory();
    let target = std::path::absolute(&target).unwrap_or(target);
    let directory = target.join("bench-cli");
    if let Err(error) = std::fs::create_dir_all(&directory) {
        eprintln!("{}: {error}", directory.display());
        return false;
    }
    let mut ours = Command::new(target.join("release/distlock"));
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
    println!("{}", report(&mut our_times, &mut flock_times));
    true
}

/// Returns the text with the differences. A busy machine delays both programs by more than they differ, so the text says
/// when the times spread too far to compare medians.
fn report(ours: &mut [f64], flock: &mut [f64]) -> String {
    let [our_fast, our_median] = fast_and_median(ours);
    let [flock_fast, flock_median] = fast_and_median(flock);
    let mut text = format!(
        "distlock run x -- true: median {our_median:.2} ms, fastest tenth {our_fast:.2} ms\n\
         flock x true:           median {flock_median:.2} ms, fastest tenth {flock_fast:.2} ms\n\
         difference:             {:+.2} ms, {:+.2} ms (aim: at most +{} ms; {RUNS} runs each in alternation)",
        our_median - flock_median,
        our_fast - flock_fast,
        AIM.as_millis()
    );
    if our_median > MOST_SPREAD * our_fast || flock_median > MOST_SPREAD * flock_fast {
        text += "\nthe machine is busy: its medians say nothing; run this again when it is idle";
    }
    text
}

/// Returns the time that a tenth of the runs do not exceed, and the median.
fn fast_and_median(times: &mut [f64]) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times.len() / 10, times.len() / 2].map(|at| times.get(at).copied().unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_a_busy_machine_are_not_taken_for_figures() {
        let mut ours: Vec<f64> = (0..100).map(|number| 3.0 + f64::from(number) / 1_000.0).collect();
        let mut flock: Vec<f64> = ours.iter().map(|time| time - 1.5).collect();
        let idle = report(&mut ours, &mut flock);
        assert!(idle.contains("+1.50 ms, +1.50 ms") && !idle.contains("busy"), "{idle}");
        // Most runs of both wait for a processor.
        let slow =
            |times: &[f64]| times.iter().enumerate().map(|(at, time)| if at < 20 { *time } else { 4.5 }).collect();
        let (mut ours, mut flock): (Vec<f64>, Vec<f64>) = (slow(&ours), slow(&flock));
        let busy = report(&mut ours, &mut flock);
        assert!(busy.contains("+0.00 ms, +1.50 ms") && busy.contains("busy"), "{busy}");
    }
}
