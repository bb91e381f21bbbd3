//! Completion in real shells: the names of locks that are held right now.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use distlock_testkit::servers::RedisServer;

use crate::terminal_program::TerminalProgram;

const DISTLOCK: &str = env!("CARGO_BIN_EXE_distlock");

/// Locks that are held while a shell completes their names.
struct Locks {
    dir: PathBuf,
    holders: Vec<Child>,
    /// Where the locks are, unless they are on this machine.
    url: Option<String>,
}

impl Locks {
    fn hold(test: &str) -> Locks {
        Locks::hold_on(test, None)
    }

    fn hold_on(test: &str, url: Option<String>) -> Locks {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("completion-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let mut locks = Locks { dir, holders: Vec::new(), url };
        for name in ["invoice:41", "invoice:42", "nightly", "two words"] {
            let mut command = locks.command(DISTLOCK);
            let mut holder = command.args(["hold", name]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // Its first output says that the lock is held.
            holder.stdout.as_mut().unwrap().read_exact(&mut [0]).expect("the lock is held");
            locks.holders.push(holder);
        }
        locks
    }

    /// Returns a command in an environment with these locks alone.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DISTLOCK_")) {
            command.env_remove(name);
        }
        let home = [("HOME", ""), ("XDG_CONFIG_HOME", ""), ("XDG_DATA_HOME", ""), ("DISTLOCK_LOCK_DIR", "locks")];
        command.envs(home.map(|(name, below)| (name, self.dir.join(below)))).current_dir(&self.dir);
        command.envs(self.url.iter().map(|url| ("DISTLOCK_URL", url)));
        command
    }

    /// Writes the completion script of `shell`, and returns its path.
    fn script(&self, shell: &str, name: &str) -> PathBuf {
        let script = self.command(DISTLOCK).args(["completions", shell]).output().unwrap();
        assert!(script.status.success(), "{shell}");
        std::fs::write(self.dir.join(name), script.stdout).unwrap();
        self.dir.join(name)
    }

    /// Returns the lines by which a shell on a terminal gets these locks and the program.
    fn settings(&self) -> String {
        let (dir, programs) = (self.dir.display(), Path::new(DISTLOCK).parent().unwrap().display());
        format!("cd {dir}; export DISTLOCK_LOCK_DIR={dir}/locks HOME={dir} PATH={programs}:$PATH; unset DISTLOCK_URL\n")
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            // The end of its input releases the lock.
            drop(holder.stdin.take());
            let _ = holder.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What a user types before the tab, and the words that the program then gets.
const TYPED: [(&str, &str); 7] = [
    ("show ni", "show|nightly|"),
    ("show inv", "show|invoice:4|"),
    ("show invoice:42", "show|invoice:42|"),
    ("run -w 5 tw", "run|-w|5|two words|"),
    ("show --json ni", "show|--json|nightly|"),
    ("doc", "doctor|"),
    ("show nightly --js", "show|nightly|--json|"),
];

/// Types each line with a tab, and looks at the words of the command that runs then: a function in place of the program
/// shows them.
fn expect_completions(shell: &mut TerminalProgram) {
    shell.type_text("distlock() { printf '%s|' \"$@\"; echo; }; echo re''ady\n");
    shell.expect_text("ready");
    for (typed, words) in TYPED {
        shell.type_text(&format!("distlock {typed}\t\n"));
        shell.expect_text(words);
    }
}

#[test]
fn bash_completes_the_names_of_locks() {
    let locks = Locks::hold("bash");
    let script = locks.script("bash", "completions");
    let mut shell = TerminalProgram::shell();
    shell.type_text(&locks.settings());
    shell.type_text(&format!("source {}\n", script.display()));
    expect_completions(&mut shell);
}

#[test]
fn zsh_completes_the_names_of_locks_needs_zsh() {
    let locks = Locks::hold("zsh");
    let functions = locks.script("zsh", "_distlock").parent().unwrap().display().to_string();
    let mut shell = TerminalProgram::of(&["zsh", "-f", "-i"]);
    shell.type_text(&locks.settings());
    shell.type_text(&format!("stty -echo; fpath=({functions} $fpath); autoload -U compinit; compinit -u -D\n"));
    shell.type_text("echo lo''aded\n");
    shell.expect_text("loaded");
    expect_completions(&mut shell);
}

#[test]
fn fish_completes_the_names_of_locks_needs_fish() {
    let locks = Locks::hold("fish");
    let script = locks.script("fish", "completions");
    let source =
        format!("set -x PATH {} $PATH; source {}", Path::new(DISTLOCK).parent().unwrap().display(), script.display());
    let words = "complete -C 'distlock show inv'; complete -C 'distlock run -w 5 n'; complete -C 'distlock sho'";
    let done = locks.command("fish").args(["--no-config", "-c", &format!("{source}; {words}")]).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let names: Vec<_> = text.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(names, ["invoice:41", "invoice:42", "nightly", "show"], "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_names_of_locks_on_a_server_are_completed() {
    let server = RedisServer::start();
    let locks = Locks::hold_on("server", Some(server.url()));
    let done = locks.command(DISTLOCK).args(["complete-name", "show", "inv"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "invoice:41\ninvoice:42\n", "{done:?}");
}

/// A completion that cannot ask the engine completes nothing, says nothing, and does not take long.
#[test]
fn an_engine_that_fails_completes_nothing() {
    let locks = Locks::hold("failing");
    for url in ["nonsense", "redis://127.0.0.1:1/", "redis://:secret@127.0.0.1:1/"] {
        let done = locks.command(DISTLOCK).args(["complete-name", "show", "--url", url, ""]).output().unwrap();
        assert!(done.status.success() && done.stdout.is_empty() && done.stderr.is_empty(), "{url}: {done:?}");
    }
    let done = locks.command(DISTLOCK).args(["complete-name", "show", "n"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "nightly\n");
}
