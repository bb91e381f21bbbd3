//! The command line as typed. Other modules decide what follows from it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use distlock::{MAX_SLOTS, Mode};
use distlock_console::HostName;
use rustix::process::Signal;

use crate::{duration, help, policy, signal_name};

mod serve;

pub use serve::Serve;

/// Run a command while holding a lock, on this machine or across many.
#[derive(Debug, Parser)]
#[command(name = "distlock", version, disable_help_subcommand = true, args_override_self = true)]
pub struct Flags {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command while holding a lock
    Run(Run),
    /// Run a command only while leader, and stand for election again after a loss
    Elect(Elect),
    /// Hold a lock until a signal or the end of stdin
    Hold(Hold),
    /// Take a lock and leave it held, for scripts that cannot wrap a command
    Acquire(Acquire),
    /// Renew a lock taken with `acquire`
    Renew(Renew),
    /// Release a lock taken with `acquire`
    Release(Release),
    /// List locks: who holds them, who waits
    Ls(Ls),
    /// Show one lock: holder, waiters, time left, token
    Show(Show),
    /// Follow locks as they are acquired and released
    Watch(Ls),
    /// Print who acquired, released, lost and broke a lock, where a history is kept
    History(History),
    /// Ask the holder of a lock to release it, and wait for the release
    Ask(Ask),
    /// Release another owner's lock by force; the old holder may still be running
    Break(Break),
    /// Serve the web console: holders and waiters, live
    Console(Console),
    /// Serve locks to programs in other languages, over HTTP
    Serve(Serve),
    /// Make the tables and functions that an engine needs on its servers
    Setup(Setup),
    /// Check for what makes locks on an engine unsafe, slow or impossible
    Doctor(Doctor),
    /// Test for two holders at once, with workers that are stopped and killed
    Verify(Verify),
    /// Measure locks on an engine, from this machine
    Bench(Bench),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print a manual page
    Man(Man),
}

/// Which engine keeps the locks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct Engine {
    /// The engine that keeps the locks; else $DISTLOCK_URL, the configuration file, this machine
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Read this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Give up on an engine that cannot be reached after this long; default 5s
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub connect_timeout: Option<Duration>,
    /// Refuse an engine with a smaller scope
    #[arg(long, value_enum, value_name = "SCOPE")]
    pub scope: Option<Scope>,
}

/// The scope that a lock must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// The processes of this machine
    Host,
    /// Every machine that reaches the same servers
    Cluster,
}

/// How long to wait for a lock, and how long to hold it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Lock")]
pub struct Lock {
    /// Share the lock with other readers
    #[arg(short = 's', long, conflicts_with_all = ["exclusive", "slots"])]
    pub shared: bool,
    /// Hold the lock alone; the default
    #[arg(short = 'x', long, conflicts_with = "slots")]
    pub exclusive: bool,
    /// Let up to N holders in at a time: a semaphore; every user of it must give the same N, or --resize
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SLOTS)))]
    pub slots: Option<u32>,
    /// Let other users of the semaphore give another N, if they say --resize too; each N counts for itself
    #[arg(long, requires = "slots", conflicts_with_all = ["shared", "exclusive"])]
    pub resize: bool,
    /// Fail at once if the lock is held by another owner
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub nonblock: bool,
    /// Wait at most this long (0.3, 10s, 5m); 0 is -n; default: no limit
    #[arg(short = 'w', long, value_name = "D", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// Exit with N instead of 75 when the lock was not acquired
    #[arg(short = 'E', long, value_name = "N")]
    pub conflict_exit_code: Option<u8>,
    /// Length of the lease, which is renewed while the lock is held; default 30s
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub ttl: Option<Duration>,
    /// Name the owner; default: a random one
    #[arg(long, value_name = "ID")]
    pub owner: Option<String>,
    /// What the lock is for; shown to other users of the lock
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Add a label that other users can read; may be repeated
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

impl Lock {
    /// Returns the mode: which other holders are admitted.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.slots {
            Some(of) => Mode::Slot { of },
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }
}

/// What is printed, where and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Print nothing on stderr
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print every step on stderr
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Write JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `distlock run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "distlock run [OPTIONS] NAME [--] COMMAND [ARGUMENT]...\n       \
                      distlock run [OPTIONS] NAME -c 'SHELL COMMAND'",
    after_help = "Exit status: the command's own; 64 usage, 69 engine unreachable, 70 internal, 73 cannot create the lock, \
                  75 (or -E) not acquired, 77 refused credentials, 78 configuration, 79 lock lost, 126 cannot execute, \
                  127 not found. A command killed by a signal is mirrored.\n\n\
                  Examples:\n  \
                  distlock run nightly -- ./backup.sh --all\n  \
                  distlock run -n -E 0 nightly -- ./backup.sh       cron: a second one ends at once, with 0\n  \
                  distlock run -w 5m deploy -c 'make install'       wait for five minutes, then exit with 75\n  \
                  distlock run -j 3 uploads -- ./upload.sh          three at a time\n  \
                  distlock run --once-per 1d report -- ./report.sh  once a day, on all machines together\n  \
                  distlock run --url redis://db1 nightly -- ./backup.sh"
)]
pub struct Run {
    /// The lock, and the command with its arguments. Options stop at the lock's name; what follows is the command's
    #[arg(value_name = "NAME COMMAND", required = true, num_args = 1.., trailing_var_arg = true)]
    pub words: Vec<OsString>,
    /// Run this through /bin/sh
    #[arg(short = 'c', long = "command", value_name = "STR")]
    pub shell: Option<OsString>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub lock: Lock,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub once: Once,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub child: Child,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    /// Write every step as JSON to this open descriptor; the command does not inherit it
    #[arg(long, value_name = "N", help_heading = "Output", value_parser = clap::value_parser!(i32).range(1..))]
    pub status_fd: Option<i32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// For which tick a command runs once.
#[derive(Debug, Args)]
#[command(next_help_heading = "Once")]
pub struct Once {
    /// Run the command once in each period of this length (10m, 1h, 1d), on all machines together; exit with 0, or what -E
    /// says, when that is done or in progress; with --wait, wait for its end
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub once_per: Option<Duration>,
    /// Run the command once for this text: a build number, a date
    #[arg(long, value_name = "TEXT")]
    pub tick: Option<String>,
    /// Start at most N runs of a tick when they fail; 1: at most once; default: no limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub attempts: Option<u32>,
    /// Remember a --tick this long after its last run; default 1d
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub keep: Option<Duration>,
}

/// `distlock elect`.
#[derive(Debug, Args)]
#[command(
    override_usage = "distlock elect [OPTIONS] NAME [--] COMMAND [ARGUMENT]...",
    after_help = "Exit status: as `run`. After a lost election the command is started again when the election is won again.\n\n\
                  Examples:\n  distlock elect scheduler -- ./scheduler --verbose"
)]
pub struct Elect {
    /// What other candidates can read about the leader; default: the command
    #[arg(long, value_name = "TEXT", conflicts_with = "reason", help_heading = "Lock")]
    pub value: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}

/// How the command is supervised.
#[derive(Debug, Args)]
#[command(next_help_heading = "Command")]
pub struct Child {
    /// Keep the lock at least this long, even if the command ends sooner
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub at_least: Option<Duration>,
    /// End the command when it has held the lock this long; the exit status is then 79
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub at_most: Option<Duration>,
    /// What to do when the lock is lost
    #[arg(long, value_enum, value_name = "ACTION", default_value = "term")]
    pub on_lost: OnLost,
    /// Send SIGKILL this long after the first signal; on a loss by default after 5s, or a third of the TTL
    #[arg(short = 'k', long, value_name = "D", value_parser = duration::parse)]
    pub kill_after: Option<Duration>,
    /// The first signal on a loss
    #[arg(long, value_name = "S", value_parser = signal_name::parse, default_value = "TERM")]
    pub signal: Signal,
    /// Do not let the command inherit a lock of this machine; for commands that start daemons
    #[arg(short = 'o', long)]
    pub close: bool,
    /// Leave the command in this process group; signals then reach only the command itself, not the processes that it
    /// starts
    #[arg(long)]
    pub foreground: bool,
}

/// What to do when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// End the command before the lease ends
    Term,
    /// Let it run, print a warning, and exit with 79
    Warn,
    /// Let it run
    Ignore,
}

impl From<OnLost> for policy::OnLost {
    fn from(flag: OnLost) -> policy::OnLost {
        match flag {
            OnLost::Term => policy::OnLost::Term,
            OnLost::Warn => policy::OnLost::Warn,
            OnLost::Ignore => policy::OnLost::Ignore,
        }
    }
}

/// `distlock hold`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  distlock hold deploy\n  distlock hold deploy < pipe > record &")]
pub struct Hold {
    /// The lock
    pub name: OsString,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub lock: Lock,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock acquire`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        token=$(distlock acquire --ttl 1m deploy)\n  \
                        distlock renew deploy --token $token\n  \
                        distlock release deploy --token $token")]
pub struct Acquire {
    /// The lock
    pub name: OsString,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub lock: Lock,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock renew`. The holder knows its engine, so the command has no engine options.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 renewed for a whole lease, 79 not held any more: stop the work.\n\n\
                        Examples:\n  distlock renew deploy --token \"$token\"")]
pub struct Renew {
    /// The lock
    pub name: OsString,
    /// The token that `acquire` printed
    #[arg(long, value_name = "T")]
    pub token: String,
    /// The new length of the lease, from now on; default: as long as the last one
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub ttl: Option<Duration>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// `distlock release`. As with `renew`, the holder knows its engine.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 released, 79 not held any more.\n\n\
                        Examples:\n  distlock release deploy --token \"$token\"")]
pub struct Release {
    /// The lock
    pub name: OsString,
    /// The token that `acquire` printed
    #[arg(long, value_name = "T")]
    pub token: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// `distlock ls` and `distlock watch`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  distlock ls\n  distlock ls --json invoice:\n  distlock watch --url redis://db1")]
pub struct Ls {
    /// Only locks whose names start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock setup`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 ready; 64 usage, 69 engine unreachable, 77 not permitted, 78 configuration.\n\n\
                        Examples:\n  distlock setup postgres://app@db1/shop\n  \
                        distlock setup --print postgres://app@db1/shop"
)]
pub struct Setup {
    /// The engine to prepare, as with --url
    #[arg(value_name = "URL", conflicts_with = "url")]
    pub target: Option<String>,
    /// Print the SQL instead, for a database administrator to run
    #[arg(long)]
    pub print: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 fine, 1 warnings, 2 unsafe; 64 usage, 78 configuration.\n\n\
                        Examples:\n  distlock doctor\n  distlock doctor -v redis://db1")]
pub struct Doctor {
    /// The engine to check, as with --url
    #[arg(value_name = "URL", conflicts_with = "url")]
    pub target: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock verify`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 safe, 1 nothing was granted, 2 unsafe; 64 usage, 69 engine unreachable.\n\n\
                        Examples:\n  distlock verify redis://db1 --time 1m --kills 5 --pauses 5")]
pub struct Verify {
    /// The engine to test, as with --url
    #[arg(value_name = "URL", conflicts_with = "url")]
    pub target: Option<String>,
    /// How many worker processes take the lock
    #[arg(long, value_name = "N", default_value = "6", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// For how long
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    pub time: Duration,
    /// The lease of the workers
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration::parse)]
    pub ttl: Duration,
    /// How often a worker is killed and replaced
    #[arg(long, value_name = "N", default_value = "0")]
    pub kills: u32,
    /// How often a worker is stopped for 1.5 leases
    #[arg(long, value_name = "N", default_value = "0")]
    pub pauses: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  distlock bench\n  distlock bench redis://db1 --time 5s")]
pub struct Bench {
    /// The engine to measure, as with --url
    #[arg(value_name = "URL", conflicts_with = "url")]
    pub target: Option<String>,
    /// For how long each part measures
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration::parse)]
    pub time: Duration,
    /// How many tasks lock at once
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub tasks: u16,
    /// How many locks are held at once
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=10000))]
    pub holds: u16,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  distlock show nightly\n  distlock show --json nightly")]
pub struct Show {
    /// The lock
    pub name: OsString,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock history`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  DISTLOCK_HISTORY=100 distlock run nightly -- ./backup.sh\n  distlock history nightly"
)]
pub struct History {
    /// The lock
    pub name: OsString,
    /// Print at most the last N entries
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock ask`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 released or free, 75 not released in time.\n\n\
                        Examples:\n  distlock ask --reason 'a deploy' --wait 5m nightly")]
pub struct Ask {
    /// The lock
    pub name: OsString,
    /// The reason, for the holder to read
    #[arg(long, value_name = "TEXT", default_value = "another user needs it")]
    pub reason: String,
    /// Wait at most this long for the release (0.3, 10s, 5m); default: no limit
    #[arg(short = 'w', long, value_name = "D", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock break`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        distlock show nightly        prints its token\n  \
                        distlock break nightly --if-token 1763244000123456 --reason 'db7 is gone'")]
pub struct Break {
    /// The lock
    pub name: OsString,
    /// Only if the holder's fencing token is still this one; see `distlock show`
    #[arg(long, value_name = "T")]
    pub if_token: u64,
    /// The reason, for the history
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock console`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  distlock console\n  \
                        distlock console --url redis://db1 --read-only --listen 127.0.0.1:7500")]
pub struct Console {
    /// The address to listen on; default 127.0.0.1:7411
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// A host name that browsers may use, besides localhost and addresses; may be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<HostName>,
    /// Read the token from this file instead of creating and printing a random one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Show only: locks cannot be broken here
    #[arg(long)]
    pub read_only: bool,
    /// Append every break to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub audit_file: Option<PathBuf>,
    /// Encrypt with this certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Accept other machines without encryption
    #[arg(long)]
    pub insecure_listen: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}

/// `distlock completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `distlock man`.
#[derive(Debug, Args)]
pub struct Man {
    /// The command to describe; default: the program
    pub command: Option<String>,
}

/// Returns the definition of the whole command line. Options common to most commands may also precede the command's
/// name.
#[must_use]
pub fn definition() -> clap::Command {
    let program = Flags::command();
    let about = program.get_about().cloned().unwrap_or_default();
    // The groups of options bring texts of their own.
    Engine::augment_args(Output::augment_args(program)).about(about).long_about(None).after_help(help::PROGRAM)
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Run, clap::Error> {
        let flags = Flags::try_parse_from(["distlock", "run"].into_iter().chain(line.split(' ')))?;
        let Command::Run(run) = flags.command else { panic!("not run") };
        Ok(run)
    }

    #[test]
    fn the_definition_is_valid() {
        definition().debug_assert();
    }

    #[test]
    fn options_end_at_the_lock_name() {
        for line in ["-n job cmd -x --ttl 5", "-n job -- cmd -x --ttl 5", "-n -- job cmd -x --ttl 5"] {
            let run = run(line).unwrap();
            assert!(run.lock.nonblock && run.lock.ttl.is_none(), "{line}");
            let words: Vec<_> = run.words.iter().filter(|word| *word != "--").collect();
            assert_eq!(words, ["job", "cmd", "-x", "--ttl", "5"], "{line}");
        }
        assert_eq!(
            run("job -n true").unwrap().words,
            ["job", "-n", "true"],
            "an option after the name is the command's"
        );
    }

    #[test]
    fn the_last_of_repeated_options_wins() {
        assert_eq!(run("-w 1 -w 2 job true").unwrap().lock.wait, Some(Duration::from_secs(2)));
    }

    #[test]
    fn bad_values_are_refused() {
        for line in
            ["-w 5x job true", "-E 256 job true", "--signal FOO job true", "--label x job true", "-n -w 1 job true"]
        {
            assert!(run(line).is_err(), "{line}");
        }
        for line in ["-s -x job true", "-s -j 2 job true", "-x -j 2 job true", "-j 0 job true", "-j 1025 job true"] {
            assert!(run(line).is_err(), "{line}");
        }
        for line in ["--resize job true", "-s --resize job true"] {
            assert!(run(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_lock_is_exclusive_unless_the_flags_say_otherwise() {
        let mode = |line| run(line).unwrap().lock.mode();
        assert_eq!([mode("job true"), mode("-x job true"), mode("--exclusive job true")], [Mode::Exclusive; 3]);
        assert_eq!([mode("-s job true"), mode("--shared job true")], [Mode::Shared; 2]);
        assert_eq!(
            [mode("-j 3 job true"), mode("-j3 job true"), mode("--slots 3 job true")],
            [Mode::Slot { of: 3 }; 3]
        );
    }
}
