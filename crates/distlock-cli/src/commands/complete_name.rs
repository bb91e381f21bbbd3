//! The internal command of completion scripts: prints the names of locks that the word being typed may become.
//!
//! It prints nothing where the command line has no name of a lock, and nothing when the engine fails: a key press is not the
//! place for a message.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use distlock::Error;
use tokio::time::timeout;

use crate::command_line;
use crate::commands::block_on;
use crate::engine::Settings;
use crate::exit::Exit;
use crate::flags::{self, Command, Flags};

/// The internal command; help and manual pages do not list it.
pub(super) const COMMAND: &str = "complete-name";
/// How long a user waits for names.
const LONGEST: Duration = Duration::from_secs(2);

/// Prints names for `words`: the command line as far as it is typed, without the program's name.
pub(super) fn main(words: &[OsString]) -> Exit {
    if let Some(flags) = listing(words) {
        block_on(async {
            if let Ok(Ok(names)) = timeout(LONGEST, names(&flags)).await {
                let _ = io::stdout().write_all(names.as_bytes());
            }
            Exit::SUCCESS
        });
    }
    Exit::SUCCESS
}

/// Returns the locks that begin as the typed word does, one a line.
async fn names(flags: &flags::Ls) -> Result<String, Error> {
    let engine = Settings::read(&flags.engine)?.open().await?;
    let locks = engine.locker.inspect().list(&flags.prefix).await?;
    // A name with a dash in front would be taken for an option.
    let names = locks.iter().map(|lock| lock.key.as_str()).filter(|name| !name.starts_with('-'));
    Ok(names.map(|name| format!("{name}\n")).collect())
}

/// Returns how to list the locks for the last word; `None` when that is not the name of a lock.
fn listing(words: &[OsString]) -> Option<flags::Ls> {
    let (typed, before) = words.split_last()?;
    let program: &[OsString] = &["distlock".into()];
    let before = command_line::name_first([program, before].concat());
    let (command, given) = before.get(1..)?.split_first()?;
    let definition = flags::definition();
    let command = definition.find_subcommand(command)?;
    let takes_name = command.get_positionals().next().is_some_and(|first| NAMES.contains(&first.get_id().as_str()));
    let mut line: Vec<OsString> = ["distlock", "ls"].map(OsString::from).into();
    let mut given = given.iter().peekable();
    while let Some(word) = given.next_if(|word| *word != "--") {
        // A word that is no option is the name: it was typed before.
        let length = command_line::option_words(word, command)?;
        let value = if length == 2 { Some(given.next()?) } else { None };
        if ENGINE.iter().any(|option| word.to_string_lossy().starts_with(option)) {
            line.push(word.clone());
            line.extend(value.cloned());
        }
    }
    // After `--` the next word is the name.
    given.next();
    if !takes_name || given.next().is_some() {
        return None;
    }
    line.extend(["--".into(), typed.clone()]);
    match command_line::parse(line) {
        Ok(Flags { command: Command::Ls(flags) }) => Some(flags),
        _ => None,
    }
}

/// The arguments that are, or begin with, the name of a lock.
const NAMES: [&str; 3] = ["name", "prefix", "words"];
/// The options that say where the locks are.
const ENGINE: [&str; 2] = ["--url", "--config"];

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the engine and the prefix to list; words are separated by single spaces, and the last may be empty.
    fn wanted(line: &str) -> Option<(Option<String>, String)> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        listing(&words).map(|flags| (flags.engine.url, flags.prefix))
    }

    #[test]
    fn the_first_argument_of_most_commands_is_a_name() {
        for line in ["show ni", "run ni", "run -n -w 5 -j3 --ttl=5s ni", "run -- ni", "break --if-token 7 ni", "ls ni"]
        {
            assert_eq!(wanted(line), Some((None, "ni".into())), "{line}");
        }
        assert_eq!(wanted("show "), Some((None, String::new())));
    }

    #[test]
    fn the_engine_of_the_line_is_asked() {
        let on = |url: &str, prefix: &str| Some((Some(url.to_owned()), prefix.to_owned()));
        assert_eq!(wanted("show --url mem:// ni"), on("mem://", "ni"));
        assert_eq!(wanted("--url=mem:// show "), on("mem://", ""));
    }

    #[test]
    fn nothing_else_is_a_name() {
        for line in [
            "ni",
            "",
            "show a ni",
            "run a ni",
            "run -- a ni",
            "run -w ni",
            "show --url ni",
            "doctor ni",
            "man ni",
            "x ni",
        ] {
            assert_eq!(wanted(line), None, "{line}");
        }
    }
}
