//! The project's own commands: `cargo xtask test | tidy | deny | bench | matrix | check-macos | package | book | record | chaos | soak | simulate | fuzz`.
//!
//! It uses only the standard library, so that it compiles in seconds on a machine that has nothing but Rust.

mod api;
mod bench;
mod book;
mod cmd;
mod debian;
mod deny;
mod macos;
mod manifest;
mod markdown;
mod matrix;
mod package;
mod proof;
mod record;
mod tally;
mod test;
mod tidy;
#[cfg(test)]
mod workflows;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cmd::Cmd;

const HELP: &str = "\
The project's own commands.

  cargo xtask test [STEP…]         all checks and tests, or only the named steps
  cargo xtask tidy                 layering and habits
  cargo xtask deny [--advisories]  licenses, bans and sources of all dependencies
  cargo xtask bench NAME [ARG…]    a benchmark of the crate `bench`, in release mode; `cli` for the program
  cargo xtask bench peers [--short] [SCENARIO…]
                                   other lock libraries and raw lower bounds beside this one; without arguments it
                                   writes docs/performance.md
  cargo xtask matrix [VERSION…]    conformance and fault tests on every server version, or the named ones
  cargo xtask api [--write]        compares the public items with api/distlock.txt, or writes that
  cargo xtask check-macos          type-checks the library for aarch64-apple-darwin
  cargo xtask package              the packages of the published crates, each built by itself
  cargo xtask package deb [--program FILE] [--into DIR]
                                   the Debian package of the program; of this one, else built in release mode
  cargo xtask package release [--program FILE] [--into DIR]
                                   the files of a release: archive, Debian package, checksums
  cargo xtask book                 the pages as a book in target/book/html, by mdBook
  cargo xtask record               the terminal recording of README.md, from the program's real output
  cargo xtask chaos ENGINE [--seconds N] [--seed S] [--server VERSION]
                                   locks on real servers (redis, sentinel, redlock, cluster, etcd, file, postgres) while
                                   all around them fails; on a server version of the matrix if one is named
  cargo xtask models               every protocol model, explored to the end
  cargo xtask soak [--seconds N]   a thousand locks, eight processes, restarts: what grows
  cargo xtask simulate [redis|redlock] [--seeds N] [--from S]
                                   locks in simulated time, in as many worlds; a seed decides all of one
  cargo xtask fuzz --seconds N     every decoder with hostile input, each for so long
  cargo xtask chaos|simulate|models|soak|fuzz|matrix … --record
                                   runs it and writes the result into docs/proof.md
  cargo xtask help                 this text
";

fn main() -> ExitCode {
    // Every command runs in the root, so that printed paths and commands can be pasted there.
    if let Err(error) = std::env::set_current_dir(root()) {
        eprintln!("cannot enter {}: {error}", root().display());
        return ExitCode::FAILURE;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Some(at) = args.iter().position(|word| *word == "--record") {
        return exit_code(proof::record(&[&args[..at], &args[at + 1..]].concat()));
    }
    match args.as_slice() {
        ["test", steps @ ..] => test::run(steps),
        ["tidy"] => exit_code(tidy::run()),
        ["deny", flags @ ..] => deny::run(flags),
        ["bench", name, rest @ ..] => exit_code(bench::run(name, rest)),
        ["api"] => exit_code(test::docs().succeeds() && api::check()),
        ["api", "--write"] => exit_code(test::docs().succeeds() && api::write()),
        ["check-macos"] => exit_code(macos::check()),
        ["package"] => exit_code(package::check()),
        ["package", "deb", flags @ ..] => packed(flags, package::deb),
        ["package", "release", flags @ ..] => packed(flags, package::release),
        ["book"] => exit_code(book::run()),
        ["record"] => exit_code(record::run()),
        ["matrix", wanted @ ..] => exit_code(matrix::run(wanted)),
        ["chaos", before @ .., "--server", version] => chaos_on(version, before, &[]),
        ["chaos", engine, "--server", version, after @ ..] => chaos_on(version, &[engine], after),
        ["chaos", rest @ ..] => exit_code(chaos(rest).succeeds()),
        ["models"] => exit_code(models().succeeds()),
        ["soak", rest @ ..] => exit_code(chaos(&["soak"]).args(rest).succeeds()),
        ["simulate", rest @ ..] => exit_code(simulate(rest).succeeds()),
        ["fuzz", "--seconds", seconds] if seconds.parse::<u32>().is_ok() => exit_code(fuzz(seconds).succeeds()),
        [] | ["help" | "-h" | "--help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        unknown => usage(&format!("`{}` is not a command", unknown.join(" "))),
    }
}

/// Packs the program that the flags name, or one that is built for it.
fn packed(flags: &[&str], pack: fn(Option<&str>, Option<&str>) -> bool) -> ExitCode {
    match flags {
        [] => exit_code(pack(None, None)),
        ["--program", program] => exit_code(pack(Some(program), None)),
        ["--into", into] => exit_code(pack(None, Some(into))),
        ["--program", program, "--into", into] => exit_code(pack(Some(program), Some(into))),
        unknown => usage(&format!("`{}` are no options of package", unknown.join(" "))),
    }
}

/// Not in release mode, to use the build of the tests.
fn chaos(rest: &[&str]) -> Cmd {
    Cmd::cargo(&["run", "-q", "-p", "distlock-chaos", "--"]).args(rest)
}

/// Runs chaos on a server version of the matrix.
fn chaos_on(version: &str, before: &[&str], after: &[&str]) -> ExitCode {
    match matrix::variable(version) {
        Ok((name, value)) => exit_code(chaos(before).args(after).hidden_env(name, &value).succeeds()),
        Err(problem) => usage(&problem),
    }
}

fn simulate(rest: &[&str]) -> Cmd {
    Cmd::cargo(&["run", "--profile", "simulation", "-q", "-p", "distlock-simulation", "--"]).args(rest)
}

/// Explores every model, each showing how many states it has.
fn models() -> Cmd {
    Cmd::cargo(&["test", "-q", "-p", "distlock-models", "--", "--nocapture", "--test-threads", "1"])
}

/// Runs the unit tests that are fuzzers, from a new seed. A failing one prints the seed and the line for the corpus.
fn fuzz(seconds: &str) -> Cmd {
    let tests = ["test", "-q", "-p", "distlock", "--all-features", "--lib", "fuzz_", "--", "--nocapture"];
    Cmd::cargo(&tests).env("DISTLOCK_FUZZ_SECONDS", seconds).hidden_env("RUST_BACKTRACE", "0")
}

/// Returns the workspace root as cargo reports it now, because the binary may have been built for another checkout.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map(PathBuf::from).unwrap_or(here)
}

fn exit_code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what is wrong with the command line, and the help.
fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}\n\n{HELP}");
    ExitCode::from(2)
}
