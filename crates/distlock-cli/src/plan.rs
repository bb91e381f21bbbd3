//! What `distlock run` will do, decided from its flags before it starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use distlock::{Key, MAX_KEY_BYTES};

use crate::child::Placement;
use crate::flags;
use crate::note::Level;
use crate::once::Once;
use crate::policy::Policy;

/// The lease unless `--ttl` is given.
const TTL: Duration = Duration::from_secs(30);

/// How long to wait for a lock that is held by another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait.
    No,
    /// At most this long.
    AtMost(Duration),
    /// As long as it takes.
    Forever,
}

impl From<&flags::Lock> for Wait {
    fn from(flags: &flags::Lock) -> Wait {
        match flags.wait {
            _ if flags.nonblock => Wait::No,
            Some(Duration::ZERO) => Wait::No,
            Some(limit) => Wait::AtMost(limit),
            None => Wait::Forever,
        }
    }
}

impl From<&flags::Output> for Level {
    fn from(flags: &flags::Output) -> Level {
        match flags {
            flags::Output { quiet: true, .. } => Level::Quiet,
            flags::Output { verbose: true, .. } => Level::Verbose,
            _ => Level::Normal,
        }
    }
}

/// A validated run.
#[derive(Debug)]
pub struct Plan {
    /// The lock.
    pub key: Key,
    /// How long to wait for it.
    pub wait: Wait,
    /// The lease.
    pub ttl: Duration,
    /// The tick for which it runs once, if it does.
    pub once: Option<Once>,
    /// How the command is supervised.
    pub policy: Policy,
    /// Keep the lock at least this long.
    pub at_least: Option<Duration>,
    program: OsString,
    arguments: Vec<OsString>,
}

impl Plan {
    /// Validates `flags`; `default_ttl` is the configured lease.
    ///
    /// # Errors
    /// What is wrong with the flags, for the user.
    pub fn new(flags: &flags::Run, default_ttl: Option<Duration>) -> Result<Plan, String> {
        let (name, words) = flags.words.split_first().ok_or("the lock's name is missing")?;
        let key = key(name)?;
        let (program, arguments) = invocation(flags.shell.as_ref(), words)?;
        let (ttl, policy) = policy(flags, default_ttl)?;
        let (at_least, once) = (flags.child.at_least, Once::new(&flags.once, &flags.lock)?);
        Ok(Plan { key, wait: Wait::from(&flags.lock), ttl, once, policy, at_least, program, arguments })
    }

    /// Returns the command, with stdin, stdout and stderr inherited.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// Returns the program's name, for messages.
    #[must_use]
    pub fn program(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }
}

fn invocation(shell: Option<&OsString>, words: &[OsString]) -> Result<(OsString, Vec<OsString>), String> {
    let through_shell = |script: &OsString| ("/bin/sh".into(), vec!["-c".into(), script.clone()]);
    match (shell, words) {
        (Some(script), []) => Ok(through_shell(script)),
        (Some(_), _) => Err("both -c and a command are given".into()),
        // The argument order of flock(1).
        (None, [option, script]) if option == "-c" || option == "--command" => Ok(through_shell(script)),
        (None, [dashes, rest @ ..]) if dashes == "--" => command_of(rest),
        (None, rest) => command_of(rest),
    }
}

fn command_of(words: &[OsString]) -> Result<(OsString, Vec<OsString>), String> {
    match words.split_first() {
        Some((program, arguments)) if !program.is_empty() => Ok((program.clone(), arguments.to_vec())),
        _ => Err("the command is missing: distlock run NAME -- COMMAND".into()),
    }
}

/// Parses a lock's name from the command line.
///
/// # Errors
/// What is wrong with the name.
pub fn key(name: &OsStr) -> Result<Key, String> {
    Key::try_from(name.as_bytes()).map_err(|error| {
        // The library's advice names a function of the library.
        let advice = error.help().map(|help| format!(" ({help})")).unwrap_or_default();
        let text = error.to_string();
        let fault = text.strip_suffix(&advice).unwrap_or(&text);
        format!("{fault} (a name is 1 to {MAX_KEY_BYTES} bytes of UTF-8 without control characters)")
    })
}

/// Returns the lease: from the flag, else from the configuration, else 30 s.
#[must_use]
pub fn ttl(flag: Option<Duration>, configured: Option<Duration>) -> Duration {
    flag.or(configured.filter(|ttl| !ttl.is_zero())).unwrap_or(TTL)
}

fn policy(flags: &flags::Run, default_ttl: Option<Duration>) -> Result<(Duration, Policy), String> {
    let child = &flags.child;
    if let (Some(least), Some(most)) = (child.at_least, child.at_most)
        && least > most
    {
        return Err("--at-least is longer than --at-most".into());
    }
    if flags.lock.ttl.is_some_and(|ttl| ttl < Duration::from_millis(100)) {
        return Err("--ttl must be at least 100ms".into());
    }
    // A default lease may be extended to fit an explicit `--kill-after`.
    let ttl = flags.lock.ttl.unwrap_or_else(|| Policy::ttl_for(ttl(None, default_ttl), child.kill_after));
    let mut policy = Policy::new(ttl, child.kill_after)?;
    policy.placement = if child.foreground { Placement::Foreground } else { Placement::OwnGroup };
    policy.on_lost = child.on_lost.into();
    policy.signal = child.signal;
    policy.at_most = child.at_most;
    Ok((ttl, policy))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn plan(words: &[&str]) -> Result<Plan, String> {
        let line = ["distlock", "run"].iter().chain(words);
        let flags = flags::Flags::try_parse_from(line).map_err(|error| error.to_string())?;
        let flags::Command::Run(run) = flags.command else { panic!("not run") };
        Plan::new(&run, None)
    }

    fn words_of(plan: &Plan) -> Vec<String> {
        let text = |word: &std::ffi::OsStr| word.to_str().unwrap().to_string();
        let command = plan.command();
        [command.get_program()].into_iter().chain(command.get_args()).map(text).collect()
    }

    #[test]
    fn every_form_of_the_command_is_accepted() {
        let cases: [(&[&str], &[&str]); 7] = [
            (&["job", "cmd", "-x"], &["cmd", "-x"]),
            (&["job", "--", "cmd", "-x"], &["cmd", "-x"]),
            (&["--", "job", "cmd", "-x"], &["cmd", "-x"]),
            (&["job", "cmd", "--", "-x"], &["cmd", "--", "-x"]),
            (&["-c", "a | b", "job"], &["/bin/sh", "-c", "a | b"]),
            (&["job", "-c", "a | b"], &["/bin/sh", "-c", "a | b"]),
            (&["job", "a | b"], &["a | b"]),
        ];
        for (line, expected) in cases {
            assert_eq!(words_of(&plan(line).unwrap()), expected, "{line:?}");
        }
    }

    #[test]
    fn invalid_combinations_are_refused() {
        let cases: [(&[&str], &str); 8] = [
            (&["job"], "command is missing"),
            (&["job", "--"], "command is missing"),
            (&["", "true"], "name is empty"),
            (&["a\nb", "true"], "control character"),
            (&["-c", "x", "job", "true"], "both -c"),
            (&["--at-least", "5", "--at-most", "4", "job", "true"], "--at-least"),
            (&["--ttl", "0", "job", "true"], "--ttl"),
            (&["--ttl", "30", "-k", "20", "job", "true"], "--kill-after"),
        ];
        for (line, expected) in cases {
            let problem = plan(line).expect_err(expected);
            assert!(problem.contains(expected), "{line:?}: {problem}");
        }
    }

    #[test]
    fn waiting_and_the_lease_follow_the_flags() {
        assert_eq!(plan(&["job", "true"]).unwrap().wait, Wait::Forever);
        assert_eq!(plan(&["-n", "job", "true"]).unwrap().wait, Wait::No);
        assert_eq!(plan(&["-w", "0", "job", "true"]).unwrap().wait, Wait::No);
        assert_eq!(plan(&["-w", "0.3", "job", "true"]).unwrap().wait, Wait::AtMost(Duration::from_millis(300)));
        assert_eq!(plan(&["job", "true"]).unwrap().ttl, TTL);
        assert_eq!(plan(&["-k", "20", "job", "true"]).unwrap().ttl, Duration::from_millis(40_500));
    }
}
