//! `distlock-chaos ENGINE --seconds N --seed S`; what `cargo xtask chaos` starts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use distlock_chaos::{Engine, Order, describe, run, worker};

const USAGE: &str = "usage: cargo xtask chaos redis|sentinel|redlock|etcd|file [--seconds N] [--seed S]";

/// How long everybody may take to be served when nothing is in the way: generous, for machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("worker", rest)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return exit(worker::main(rest));
    }
    let outcome = order(&words).map(|order| {
        let outcome = run(&order);
        print!("{}", describe(&order, &outcome));
        outcome.findings.is_empty()
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => exit(Err(format!("{problem}\n{USAGE}"))),
    }
}

fn exit(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

fn order(words: &[String]) -> Result<Order, String> {
    let (engine, mut rest) = words.split_first().ok_or("which engine?")?;
    let (mut seconds, mut seed) = (30, 1);
    while let [flag, value, others @ ..] = rest {
        let number = value.parse::<u64>().map_err(|error| format!("{flag} {value}: {error}"))?;
        match flag.as_str() {
            "--seconds" => seconds = number,
            "--seed" => seed = number,
            _ => return Err(format!("`{flag}` is no option")),
        }
        rest = others;
    }
    let engine: Engine = engine.parse()?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let keep = PathBuf::from(format!("target/chaos/{}-{seed}", engine.name()));
    let time = Duration::from_secs(seconds);
    Ok(Order { engine, seed, time, patience: PATIENCE, broken: None, program, keep: Some(keep) })
}
