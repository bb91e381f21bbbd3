//! `distlock-chaos ENGINE --seconds N --seed S` and `distlock-chaos soak --seconds N`, the programs behind `cargo
//! xtask chaos` and `cargo xtask soak`.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use distlock_chaos::{Engine, Order, describe, run, soak, worker};

const USAGE: &str = "\
usage: cargo xtask chaos redis|sentinel|redlock|cluster|etcd|file|postgres [--seconds N] [--seed S]
       cargo xtask soak [--seconds N]";

/// How long all workers may take to be served after the last fault: generous, since machines are busy.
const SERVE_LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (first, rest) = words.split_first().map_or(("", &words[..]), |(first, rest)| (first.as_str(), rest));
    let outcome = match first {
        "worker" => worker::main(rest).map(|()| true),
        "soak-worker" => soak::worker(rest).map(|()| true),
        "soak" => run_soak(rest),
        engine => run_chaos(engine, rest),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

fn run_chaos(engine: &str, words: &[String]) -> Result<bool, String> {
    let engine: Engine = engine.parse().map_err(usage)?;
    let flags = Flags::parse(words, &["--seconds", "--seed"])?;
    let (time, seed) = (Duration::from_secs(flags.seconds), flags.seed);
    let keep = Some(PathBuf::from(format!("target/chaos/{}-{seed}", engine.name())));
    let order = Order { engine, seed, time, serve_limit: SERVE_LIMIT, broken: None, program: program()?, keep };
    let outcome = run(&order);
    print!("{}", describe(&order, &outcome));
    Ok(outcome.findings.is_empty())
}

fn run_soak(words: &[String]) -> Result<bool, String> {
    let flags = Flags::parse(words, &["--seconds"])?;
    Ok(soak::soak(&program()?, Duration::from_secs(flags.seconds)))
}

fn program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| error.to_string())
}

fn usage(problem: impl Display) -> String {
    format!("{problem}\n{USAGE}")
}

struct Flags {
    seconds: u64,
    seed: u64,
}

impl Flags {
    /// Parses flags with their values; only those of `known`.
    fn parse(mut words: &[String], known: &[&str]) -> Result<Flags, String> {
        let mut flags = Flags { seconds: 30, seed: 1 };
        while let [flag, value, rest @ ..] = words {
            let number = value.parse::<u64>().map_err(|error| usage(format_args!("{flag} {value}: {error}")))?;
            match flag.as_str() {
                other if !known.contains(&other) => return Err(usage(format_args!("`{other}` is no option"))),
                "--seconds" => flags.seconds = number,
                _ => flags.seed = number,
            }
            words = rest;
        }
        match words {
            [] => Ok(flags),
            [alone, ..] => Err(usage(format_args!("`{alone}` has no value"))),
        }
    }
}
