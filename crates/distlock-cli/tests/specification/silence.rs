//! Output that is not read: a full pipe as stderr, as the status descriptor, or both.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use distlock_testkit::servers::RedisServer;
use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::common::{Wrapper, await_gone, code};
use crate::machine::{DISTLOCK, Machine, finish};

/// The flags with which the program writes every message to a full descriptor 2, and nowhere else.
const FLAG_SETS: [&[&str]; 3] = [&["-v"], &["-q", "--status-fd", "2"], &["-v", "--status-fd", "2"]];

/// Returns a full pipe, as long as its reading end, the first one, is kept.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    for size in [4096, 1] {
        while rustix::io::write(&writer, &vec![b'x'; size]).is_ok() {}
    }
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

/// Returns `run` with `way` and `words`, and the end of the pipe that must be kept.
fn run_unread(machine: &Machine, way: &[&str], words: &[&str]) -> (Command, OwnedFd) {
    let (reader, writer) = full_pipe();
    let words: Vec<_> = ["run"].iter().chain(way).chain(words).copied().collect();
    let mut command = machine.distlock(&words);
    command.stderr(Stdio::from(writer));
    (command, reader)
}

#[test]
fn f78_signals_are_forwarded_while_the_output_is_not_read() {
    let machine = Machine::new();
    for way in FLAG_SETS {
        // The shell itself would write to the full pipe which signal ended its sleep.
        let script = "exec 2>/dev/null; trap 'echo usr' USR1; trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
        let (mut command, _unread) = run_unread(&machine, way, &["job", "sh", "-c", script]);
        let mut wrapper = Wrapper::start(&mut command);
        assert_eq!(wrapper.line(), "ready");
        wrapper.signal(Signal::USR1);
        assert_eq!(wrapper.line(), "usr");
        wrapper.signal(Signal::TERM);
        assert_eq!(wrapper.line(), "got");
        assert_eq!(code(wrapper.wait()), 5, "{way:?}");
        assert!(machine.is_free("job"));
    }
}

#[test]
fn f78_the_command_ends_before_its_lease_while_the_output_is_not_read() {
    for way in FLAG_SETS {
        // A machine that pauses for longer than the margin is always late: one good run of three is enough.
        assert!((0..3).any(|_| ends_in_time(way)), "{way:?}: the command outlived its lease three times");
    }
}

/// Whether a command whose server is silent ends before its lease does.
fn ends_in_time(way: &[&str]) -> bool {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let script = "exec 2>/dev/null; trap '' TERM; echo $$; while :; do sleep 1; done";
    let (mut command, _unread) = run_unread(&machine, way, &["--ttl", "6s", "-k", "1", "job", "sh", "-c", script]);
    let mut wrapper = Wrapper::start(&mut command);
    let command = wrapper.line_pid();
    // A renewal after this only makes the lease longer.
    let asked = Instant::now();
    let lease = u64::try_from(server.command(&["PTTL", "job"]).int()).expect("it has a lease");
    server.stop();
    await_gone(command);
    let gone = asked.elapsed();
    assert_eq!(code(wrapper.wait()), 79, "{way:?}");
    server.cont();
    gone < Duration::from_millis(lease)
}

#[test]
fn f78_a_loss_ends_the_command_with_79_while_the_output_is_not_read() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    for way in FLAG_SETS {
        let script = "exec 2>/dev/null; trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
        let (mut command, _unread) = run_unread(&machine, way, &["job", "sh", "-c", script]);
        let mut wrapper = Wrapper::start(&mut command);
        assert_eq!(wrapper.line(), "ready");
        let token = machine.show("job")["holder"]["token"].as_str().expect("a token").to_owned();
        assert_eq!(machine.code(&["break", "job", "--if-token", &token, "--reason", "test"]), 0);
        assert_eq!(wrapper.line(), "told");
        assert_eq!(code(wrapper.wait()), 79, "{way:?}");
    }
}

/// Where no thread can be started, a message is still written.
#[test]
fn f78_a_failure_is_reported_at_the_process_limit_needs_root() {
    let machine = Machine::new();
    std::os::unix::fs::chown(machine.path(""), Some(54_321), None).unwrap();
    let limits = ["--reuid=54321", "--clear-groups", "prlimit", "--nproc=1", DISTLOCK];
    for words in [["run", "job", "true"], ["run", "-n", "/nowhere/at/all"]] {
        let words: Vec<_> = limits.iter().chain(&words).copied().collect();
        let done = finish(&mut machine.command("setpriv", &words));
        assert_ne!(done.code, 0);
        assert!(done.stderr.starts_with("distlock: "), "{done:?}");
    }
}
