//! `--record`: runs another command of this program and writes what came out into `docs/proof.md`.
//!
//! Only a run writes a row: of a tree without changes, so that the commit says what was run, with the result that the
//! command printed.

mod outcome;
mod page;

use crate::cmd::Cmd;
use crate::matrix;
use page::Row;

/// Runs a command and records it. Returns whether it succeeded, and was recorded.
pub(crate) fn record(words: &[&str]) -> bool {
    let Some(subject) = outcome::subject(words) else {
        eprintln!("only {} can be recorded", outcome::RECORDED.join(", "));
        return false;
    };
    if matrix::has_changes() {
        eprintln!("the tree has changes, so no commit says what would be run: nothing is recorded");
        return false;
    }
    let commit = matrix::commit();
    let cmd = Cmd::cargo(&["xtask"]).args(words);
    let mut lines = Vec::new();
    let good = cmd.stream(|line| lines.push(line.to_owned()));
    let Some(result) = outcome::result(words[0], &lines) else {
        eprintln!("the command ended without a result: nothing is recorded");
        return false;
    };
    let result = if good { result } else { format!("**failed**: {result}") };
    let row = Row { subject, command: cmd.to_string(), result, day: matrix::today(), commit };
    match page::write(&row) {
        Ok(()) => {
            println!("recorded in {}: {}", page::PATH, row.result);
            good
        }
        Err(error) => {
            eprintln!("{} cannot be written: {error}", page::PATH);
            false
        }
    }
}
