//! `distlock completions`: prints a completion script for a shell.

use crate::exit::Exit;
use crate::flags::{self, Completions};

pub(super) fn main(flags: &Completions) -> Exit {
    clap_complete::generate(flags.shell, &mut flags::definition(), "distlock", &mut std::io::stdout());
    Exit::SUCCESS
}
