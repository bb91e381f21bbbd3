//! `cargo xtask deny`: licenses, bans and sources of all dependencies.

use std::process::ExitCode;

use crate::cmd::Cmd;

/// Runs the checks. Advisories need a download, so they are checked only on request.
pub(crate) fn run(flags: &[&str]) -> ExitCode {
    let mut checks = vec!["deny", "check", "licenses", "bans", "sources"];
    match flags {
        [] => {}
        ["--advisories"] => checks.push("advisories"),
        _ => return crate::usage(&format!("deny takes only --advisories, not `{}`", flags.join(" "))),
    }
    let install = Cmd::cargo(&["install", "--locked", "cargo-deny"]);
    if !Cmd::cargo(&["deny", "--version"]).succeeds_silently() {
        println!("cargo-deny is missing: {install}");
        if !install.succeeds() {
            eprintln!("cargo-deny could not be installed; try by hand: {install}");
            return ExitCode::FAILURE;
        }
    }
    crate::exit_code(Cmd::cargo(&checks).succeeds())
}
