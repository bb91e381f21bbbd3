//! The arguments of the command line, reordered for the parser.

use std::ffi::{OsStr, OsString};

use clap::{Args, FromArgMatches};

use crate::flags::{self, Command, Flags, Run};

/// Returns the arguments of this process, the program's name first.
#[must_use]
pub fn words() -> Vec<OsString> {
    name_first(std::env::args_os().collect())
}

/// Parses `words`, which begin with the program's name.
///
/// # Errors
/// What cannot be parsed; also the texts of `--help` and `--version`.
pub fn parse(words: Vec<OsString>) -> Result<Flags, clap::Error> {
    let words = help_last(name_first(words));
    if let Some(run) = parse_run(&words) {
        return Ok(Flags { command: Command::Run(run) });
    }
    let mut definition = flags::definition();
    let mut matches = definition.try_get_matches_from_mut(words)?;
    Flags::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut definition))
}

/// Parses the words of `run` with its own definition alone: building those of all commands takes longer than acquiring a
/// lock of this machine. Returns `None` for other commands and for words that cannot be parsed: the whole definition
/// words the error.
fn parse_run(words: &[OsString]) -> Option<Run> {
    if words.get(1)? != "run" {
        return None;
    }
    let definition = Run::augment_args(clap::Command::new("run").args_override_self(true));
    let mut matches = definition.try_get_matches_from(&words[1..]).ok()?;
    Run::from_arg_matches_mut(&mut matches).ok()
}

/// Replaces `help COMMAND` by `COMMAND --help`.
fn help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.truncate(2);
        words.push("--help".into());
    }
    words
}

/// Moves options in front of the command's name behind it: there the command's own definition accepts or refuses them,
/// and options behind the name override them.
pub(crate) fn name_first(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        return words;
    }
    let definition = flags::definition();
    let mut at = 1;
    while let Some(length) = words.get(at).and_then(|word| option_words(word, &definition)) {
        at += length;
    }
    // The parser refuses an unknown option or a missing name.
    if words.get(at).is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        words[1..=at].rotate_right(1);
    }
    words
}

/// Returns how many words an option of `definition` takes; `None` when `word` is no such option.
pub(crate) fn option_words(word: &OsStr, definition: &clap::Command) -> Option<usize> {
    let takes_value = |arg: &clap::Arg| arg.get_action().takes_values();
    let bytes = word.as_encoded_bytes();
    if let Some(long) = bytes.strip_prefix(b"--") {
        let mut parts = long.splitn(2, |byte| *byte == b'=');
        let (name, value) = (parts.next()?, parts.next());
        let arg = definition.get_arguments().find(|arg| arg.get_long().is_some_and(|long| long.as_bytes() == name))?;
        return Some(if takes_value(arg) && value.is_none() { 2 } else { 1 });
    }
    let letters = bytes.strip_prefix(b"-").filter(|letters| !letters.is_empty())?;
    for (at, letter) in (1..).zip(letters) {
        let letter = Some(char::from(*letter));
        let arg = definition.get_arguments().find(|arg| arg.get_short() == letter)?;
        if takes_value(arg) {
            // The rest of the word is its value, else the next word.
            return Some(if at < letters.len() { 1 } else { 2 });
        }
    }
    Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(line: &str) -> String {
        let words = name_first(line.split(' ').map(OsString::from).collect());
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn options_before_the_command_move_behind_its_name() {
        let rows = [
            ("distlock run job true", "distlock run job true"),
            ("distlock --json ls", "distlock ls --json"),
            ("distlock -v --url mem:// run job ls --json", "distlock run -v --url mem:// job ls --json"),
            ("distlock --url=mem:// --config f -q ls --json", "distlock ls --url=mem:// --config f -q --json"),
            ("distlock --url run ls", "distlock ls --url run"),
        ];
        for (line, expected) in rows {
            assert_eq!(ordered(line), expected, "{line}");
        }
        // Left to the parser: nothing is moved.
        for line in ["distlock", "distlock --help", "distlock -q --help", "distlock --ttl 5 run a b", "distlock --url"]
        {
            assert_eq!(ordered(line), line);
        }
    }

    /// The short way accepts what the whole definition accepts, with the same result.
    #[test]
    fn run_is_parsed_as_by_the_whole_definition() {
        let accepted = [
            "distlock run job true",
            "distlock run job -- true --ttl 5",
            "distlock run -n --ttl 5s --ttl 7s --label a=b --label c=d -j 3 job sh -c x",
            "distlock run -v --json --url mem:// --url file:///x -o --kill-after 3s -- job make",
            "distlock run -c 'make' job",
        ];
        let refused =
            ["distlock run", "distlock run --help", "distlock run -q -v job true", "distlock run -j 0 job true"];
        for line in accepted.into_iter().chain(refused) {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let whole = flags::definition().try_get_matches_from(&words);
            let whole = whole.and_then(|matches| Flags::from_arg_matches(&matches)).ok().map(|flags| flags.command);
            let run = parse_run(&words).map(Command::Run);
            assert_eq!(format!("{run:?}"), format!("{whole:?}"), "{line}");
            assert_eq!(run.is_some(), accepted.contains(&line), "{line}");
        }
        assert!(parse_run(&["distlock", "ls"].map(OsString::from)).is_none(), "not run");
    }

    #[test]
    fn moved_options_are_checked_by_the_commands_definition() {
        let parsed = |line: &str| parse(line.split(' ').map(OsString::from).collect());
        let Command::Ls(ls) = parsed("distlock --url mem://a -v ls --url mem://b").unwrap().command else {
            panic!("ls")
        };
        assert!(
            ls.output.verbose && ls.engine.url.as_deref() == Some("mem://b"),
            "an option behind the name overrides one before it"
        );
        for line in [
            "distlock -q run -v job true",
            "distlock --url mem:// doctor mem://",
            "distlock --url mem:// release job --token t",
            "distlock --json completions bash",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
