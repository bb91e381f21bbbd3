//! `distlock completions`: prints a completion script for a shell.

use std::io::{self, Write};

use clap_complete::Shell;

use crate::exit::Exit;
use crate::flags::{self, Completions};

/// The last part of clap's script for zsh, in whose place ours registers the completion.
const ZSH_END: &str = "\nif [ \"$funcstack[1]\" = \"_distlock\" ]; then";

pub(super) fn main(flags: &Completions) -> Exit {
    // A reader that stops reading is not a failure.
    let _ = io::stdout().write_all(script(flags.shell).as_bytes());
    Exit::SUCCESS
}

/// Returns the script for commands and options, followed by ours for names of locks where the shell has one.
fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut flags::definition(), "distlock", &mut script);
    let script = String::from_utf8_lossy(&script);
    match shell {
        Shell::Bash => format!("{script}{}", include_str!("completions/bash")),
        Shell::Fish => format!("{script}{}", include_str!("completions/fish")),
        Shell::Zsh => {
            let definitions = script.split(ZSH_END).next().unwrap_or_default();
            format!("{definitions}{}", include_str!("completions/zsh"))
        }
        _ => script.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zsh_registers_one_function() {
        let script = script(Shell::Zsh);
        assert_eq!(script.matches("compdef ").count(), 2, "the mark of the file, and ours");
        assert!(script.starts_with("#compdef distlock\n") && script.contains("compdef _distlock_locks distlock\n"));
        assert!(script.contains("\n_distlock() {\n"), "clap's function is still there");
    }
}
