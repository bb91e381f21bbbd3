//! `distlock-simulation ENGINE --seeds N --from S`, the program behind `cargo xtask simulate`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use distlock_simulation::{Engine, Order, Outcome, run};

const USAGE: &str = "usage: cargo xtask simulate [redis|redlock] [--seeds N] [--from S]";
/// For how long faults occur in a world.
const TIME: Duration = Duration::from_secs(15);
/// The directory for the logs of seeds with findings.
const LOGS: &str = "target/simulation";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match Job::parse(&words) {
        Ok(job) => simulate(&job),
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

struct Job {
    engine: Engine,
    seeds: u64,
    from: u64,
}

impl Job {
    fn parse(words: &[String]) -> Result<Job, String> {
        let engine = words.first().and_then(|word| Engine::named(word));
        let mut rest = &words[usize::from(engine.is_some())..];
        let mut job = Job { engine: engine.unwrap_or(Engine::Redis), seeds: 1000, from: 0 };
        while let [flag, value, others @ ..] = rest {
            let number = value.parse().map_err(|error| format!("{flag} {value}: {error}"))?;
            match flag.as_str() {
                "--seeds" => job.seeds = number,
                "--from" => job.from = number,
                other => return Err(format!("`{other}` is no option")),
            }
            rest = others;
        }
        rest.first().map_or(Ok(job), |alone| Err(format!("`{alone}` has no value and is no engine")))
    }
}

/// Runs as many worlds at once as there are processors.
fn simulate(job: &Job) -> ExitCode {
    let Job { engine, seeds, from } = *job;
    let (start, next, bad) = (Instant::now(), AtomicU64::new(from), AtomicUsize::new(0));
    let sums = std::array::from_fn::<_, 5, _>(|_| AtomicUsize::new(0));
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from.saturating_add(seeds) {
                return;
            }
            let outcome = run(&Order { engine, seed, time: TIME, broken: None });
            let figures = outcome.figures.into_iter().chain([outcome.faults]);
            for (sum, figure) in sums.iter().zip(figures) {
                sum.fetch_add(figure, Ordering::Relaxed);
            }
            if !outcome.findings.is_empty() {
                bad.fetch_add(1, Ordering::Relaxed);
                report(engine, seed, &outcome);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let (time, bad) = (start.elapsed().as_secs_f64(), bad.into_inner());
    let [asked, granted, in_order, stale, faults] = sums.map(AtomicUsize::into_inner);
    println!("{seeds} seeds in {time:.1} s, {:.1} a second", seeds as f64 / time);
    println!("{asked} locks requested, {granted} granted, {in_order} waits judged for their order, {faults} faults");
    println!("{stale} stale writes refused by the fence, {bad} seeds with findings");
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(engine: Engine, seed: u64, outcome: &Outcome) {
    outcome.findings.iter().for_each(|finding| println!("seed {seed}: {finding}"));
    let path = Path::new(LOGS).join(format!("{}-{seed}.log", engine.name()));
    let written = std::fs::create_dir_all(LOGS).and_then(|()| std::fs::write(&path, outcome.log.join("\n")));
    match written {
        Ok(()) => println!(
            "its log: {}; again: cargo xtask simulate {} --seeds 1 --from {seed}",
            path.display(),
            engine.name()
        ),
        Err(error) => println!("its log cannot be written: {error}"),
    }
}
