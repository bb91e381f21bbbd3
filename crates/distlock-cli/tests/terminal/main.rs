//! The terminal: the process that needs the keyboard has it, and its keys reach the right processes.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod completion;
mod terminal_program;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::EtcdServer;
use terminal_program::TerminalProgram;

#[test]
fn the_terminal_goes_to_a_reading_command_and_back_to_the_shell() {
    let mut session = TerminalProgram::start();
    session.type_text("$H run job -- sh -c 'echo as\"\"king; read x; echo got-$x; exit 3'; echo code-$?\n");
    session.expect_text("asking");
    session.type_text("hello\n");
    session.expect_text("got-hello");
    session.expect_text("code-3");
    session.type_text("echo st''ill here\n");
    session.expect_text("still here");
}

#[test]
fn a_command_that_configures_the_terminal_gets_it() {
    let mut session = TerminalProgram::start();
    session.type_text("$H run job -- stty -echo; echo code-$?\n");
    session.expect_text("code-0");
}

#[test]
fn a_job_is_suspended_with_its_wrapper_and_continues_in_the_foreground() {
    let mut session = TerminalProgram::start();
    session.type_text("$H run job -- sh -c 'echo as\"\"king; while read x; do echo got-$x; done; exit 4'\n");
    session.expect_text("asking");
    session.type_text("one\n");
    session.expect_text("got-one");
    session.type_text("\x1a");
    session.expect_text("Stopped");
    session.type_text("fg\n");
    session.expect_text("run job");
    session.type_text("two\n");
    session.expect_text("got-two");
    session.type_text("\x04");
    session.expect_text("$ ");
    session.type_text("echo code-$?\n");
    session.expect_text("code-4");
}

#[test]
fn a_command_that_does_not_use_the_terminal_is_suspended_too() {
    let mut session = TerminalProgram::start();
    session.type_text("$H run job -- sh -c 'echo be\"\"gun; sleep 0.5; exit 5'\n");
    session.expect_text("begun");
    session.type_text("\x1a");
    session.expect_text("Stopped");
    session.type_text("fg; echo code-$?\n");
    session.expect_text("code-5");
}

#[test]
fn a_background_job_stops_when_it_reads_the_terminal() {
    let mut session = TerminalProgram::start();
    session.type_text("$H run job -- sh -c 'read x; echo got-$x' &\n");
    session.type_text("sleep 0.3; echo; jobs\n");
    session.expect_text("Stopped");
    session.type_text("fg\n");
    session.expect_text("run job");
    session.type_text("hello\n");
    session.expect_text("got-hello");
}

#[test]
fn the_interrupt_key_ends_the_command_and_the_script_around_it() {
    for wants_terminal in ["read x", "sleep 60"] {
        let mut session = TerminalProgram::start();
        session.type_text(&format!(
            "bash -c \"$H run job -- sh -c 'echo be''gun; {wants_terminal}'; echo not''-reached\"\n"
        ));
        session.expect_text("begun");
        std::thread::sleep(std::time::Duration::from_millis(100));
        session.type_text("\x03");
        // The key also discards input that was typed before it took effect.
        session.expect_text("$ ");
        session.type_text("echo code-$?\n");
        session.expect_text("code-130");
        assert!(!session.past.contains("not-reached"));
    }
}

#[test]
fn a_reader_behind_the_wrapper_in_a_pipeline_keeps_the_keyboard() {
    let mut session = TerminalProgram::start();
    session.type_text("$H run job -- sh -c 'echo be\"\"gun >&2; sleep 1' | sh -c 'read x </dev/tty; echo got-$x'\n");
    session.expect_text("begun");
    session.type_text("hello\n");
    session.expect_text("got-hello");
}

#[test]
fn in_the_foreground_mode_the_interrupt_key_reaches_the_command_once() {
    let mut session = TerminalProgram::start();
    session.type_text("$H run --foreground job -- bash -c 'trap \"echo ca\"\"ught\" INT; echo be\"\"gun; for i in 1 2 3 4 5 6; do sleep 0.1; done; echo do\"\"ne'\n");
    session.expect_text("begun");
    session.type_text("\x03");
    session.expect_text("caught");
    session.expect_text("done");
    assert!(!session.screen.lock().unwrap().contains("caught"));
}

/// The kernel does not let a key stop a process that no shell could continue.
#[test]
fn without_a_shell_the_suspend_key_has_no_effect() {
    for placement in [&["--foreground"][..], &[]] {
        let mut words = vec![harness().to_str().unwrap(), "run"];
        words.extend(placement);
        words.extend([
            "job",
            "--",
            "sh",
            "-c",
            "stty -echo; echo begun; while read x; do echo got-$x; done; echo ended",
        ]);
        let mut session = TerminalProgram::of(&words);
        session.expect_text("begun");
        session.type_text("\x1aone\n");
        session.expect_text("got-one");
        session.type_text("\x1a\x1atwo\n");
        session.expect_text("got-two");
        session.type_text("\x04");
        session.expect_text("ended");
        assert!(session.shell.wait().unwrap().success(), "{placement:?}");
    }
}

#[test]
fn watch_redraws_its_table_in_place() {
    let mut session = TerminalProgram::start();
    session.type_text(&format!("export DISTLOCK_LOCK_DIR=$(mktemp -d) D={}\n", env!("CARGO_BIN_EXE_distlock")));
    session.type_text("$D run watched sleep 30 & until $D show watched | grep -q held; do :; done; echo he''ld\n");
    session.expect_text("held");
    session.type_text("$D watch\n");
    session.expect_text("\x1b[HNAME");
    session.expect_text("watched");
    session.expect_text("\x1b[HNAME");
    session.expect_text("watched");
    session.type_text("\x03");
    session.type_text("echo en''ded\n");
    session.expect_text("ended");
    session.type_text("kill %1; wait; rm -r $DISTLOCK_LOCK_DIR; echo cle''an\n");
    session.expect_text("clean");
}

/// Starts a shell with its own lock directory, and the program as `$D`.
fn session_with_locks(dir: &std::path::Path) -> TerminalProgram {
    let mut session = TerminalProgram::start();
    session.type_text(&format!("export DISTLOCK_LOCK_DIR={} D={}\n", dir.display(), env!("CARGO_BIN_EXE_distlock")));
    session
}

/// Runs the program on the locks in `dir`, outside the terminal.
fn outside(dir: &std::path::Path, words: &[&str]) -> i32 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
    let command = command.args(words).env("DISTLOCK_LOCK_DIR", dir).stdin(Stdio::null()).stderr(Stdio::null());
    code(command.status().unwrap())
}

#[test]
fn a_background_hold_lasts_until_a_signal_or_the_end_of_stdin() {
    let dir = scratch("held-in-the-background");
    let mut session = session_with_locks(&dir);
    session.type_text("$D hold job &\n");
    session.expect_text("job token ");
    // Time must pass with input available: the shell reads it, and the holder neither reads it nor ends.
    session.type_text("$D run -q -w 2 job true; echo code-$?\necho ty''ped\n");
    session.expect_text("code-75");
    session.expect_text("typed");
    assert_eq!(outside(&dir, &["run", "-n", "job", "true"]), 75);

    session.type_text("fg\n");
    session.expect_text("hold job");
    session.type_text("a line is no end\n");
    session.type_text("\x04");
    session.type_text("echo code-$?\n");
    session.expect_text("code-0");
    assert_eq!(outside(&dir, &["run", "-n", "job", "true"]), 0);

    session.type_text("$D hold job &\n");
    session.expect_text("job token ");
    session.type_text("kill %%; wait %%; echo code-$?\n");
    session.expect_text("code-0");
    assert_eq!(outside(&dir, &["run", "-n", "job", "true"]), 0);
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn an_orphaned_background_hold_lasts_until_stdin_ends() {
    let dir = scratch("held-by-an-orphan");
    let mut session = session_with_locks(&dir);
    // The shell in between ends at once: the holder is no job of the session's shell, and can never read the terminal.
    session.type_text("($D hold job </dev/tty &)\n");
    session.expect_text("job token ");
    session.type_text("$D run -q -w 2 job true; echo code-$?\necho ty''ped\n");
    session.expect_text("code-75");
    session.expect_text("typed");
    // Without its session the terminal belongs to no session, and every process that has it open can read it.
    session.type_text("exit\n");
    session.shell.wait().unwrap();
    assert_eq!(outside(&dir, &["run", "-n", "job", "true"]), 75, "the shell's end is not its end");
    session.type_text("\x04");
    assert_eq!(outside(&dir, &["run", "-w", "20", "job", "true"]), 0, "its input has ended");
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn a_hold_under_nohup_lasts_until_a_signal() {
    let dir = scratch("held-under-nohup");
    let mut session = session_with_locks(&dir);
    session.type_text("nohup $D hold job > $DISTLOCK_LOCK_DIR.out &\n");
    session.type_text("until grep -q token $DISTLOCK_LOCK_DIR.out; do :; done; echo he''ld\n");
    session.expect_text("held");
    assert_eq!(outside(&dir, &["run", "-w", "1", "job", "true"]), 75);
    session.type_text("kill -HUP %%; $D run -q -w 1 job true; echo code-$?\n");
    session.expect_text("code-75");
    session.type_text("kill %%; wait %%; echo code-$?\n");
    session.expect_text("code-0");
    assert_eq!(outside(&dir, &["run", "-n", "job", "true"]), 0);
    let _ = std::fs::remove_dir_all(&dir);
    let _ = std::fs::remove_file(format!("{}.out", dir.display()));
}

#[test]
fn help_fits_a_narrow_terminal_and_has_no_colours() {
    let mut session = TerminalProgram::shell();
    session.type_text(&format!("stty cols 60; {} help run; echo en''ded\n", env!("CARGO_BIN_EXE_distlock")));
    session.expect_text("ended");
    assert!(session.past.contains("Examples:") && !session.past.contains('\u{1b}'), "{}", session.past);
    let shown = session.past.split_once("Run a command").expect("help").1;
    // What has no space cannot be broken: usage lines are clap's, and paths in examples.
    let long: Vec<_> = shown.lines().map(str::trim_end).filter(|line| line.chars().count() > 60).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn whoever_waits_longer_than_a_second_is_told_for_what() {
    let dir = scratch("progress");
    let mut holder = Command::new(env!("CARGO_BIN_EXE_distlock"));
    let holder = holder.args(["hold", "busy"]).env("DISTLOCK_LOCK_DIR", &dir).env_remove("DISTLOCK_URL");
    let mut holder = Wrapper::start(holder.stdin(Stdio::piped()));
    assert!(holder.line().starts_with("busy token"));
    let mut session = TerminalProgram::shell();
    session.type_text(&format!("export DISTLOCK_LOCK_DIR={} D={}\n", dir.display(), env!("CARGO_BIN_EXE_distlock")));
    session.type_text("unset DISTLOCK_URL; $D run busy echo in''side\n");
    session.expect_text("distlock: waiting for lock \"busy\", held by owner ");
    drop(holder.stdin());
    session.expect_text("inside");
    assert!(!session.past.contains("inside\r\ndistlock: waiting"), "once: {}", session.past);
    let _ = std::fs::remove_dir_all(&dir);
}

/// A server from which every reply takes longer than a second.
const FAR: Duration = Duration::from_millis(600);

#[test]
fn a_late_reply_is_announced() {
    let (server, mut session) = (EtcdServer::start(), TerminalProgram::shell());
    let proxy = Proxy::start(server.address());
    proxy.delay(FAR);
    let url = format!("etcd://{}/", proxy.address());
    for command in ["ls", "break job --if-token 7 --reason late"] {
        let words = format!("{} {command} --connect-timeout 60s --url {url}", env!("CARGO_BIN_EXE_distlock"));
        session.type_text(&format!("{words}; echo code-$?\n"));
        session.expect_text("code-");
        let said = std::mem::take(&mut session.past);
        // Once for the connection, once for the reply.
        assert_eq!(said.matches(&format!("distlock: waiting for an answer of {url} …")).count(), 2, "{said}");
    }
}

#[test]
fn a_late_release_is_announced() {
    let go = scratch("late-release");
    let (server, mut session) = (EtcdServer::start(), TerminalProgram::shell());
    let proxy = Proxy::start(server.address());
    session.type_text(&format!("export DISTLOCK_URL=etcd://{}/\n", proxy.address()));
    let wait = format!("echo in\"\"side; until test -e {}; do sleep 0.02; done", go.display());
    session.type_text(&format!("{} run job -- sh -c '{wait}'; echo code-$?\n", env!("CARGO_BIN_EXE_distlock")));
    session.expect_text("inside");
    proxy.delay(FAR);
    std::fs::write(&go, "").unwrap();
    session.expect_text("to confirm the release …");
    session.expect_text("code-0");
    let _ = std::fs::remove_file(&go);
}
