//! The rows of the specification about the child: codes, signals, loss, groups.
#![allow(missing_docs)]

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::*;
use rustix::process::Signal;

/// A command that ignores TERM, with one child in its group that does too and one that has left the group.
const STUBBORN: &str =
    "trap '' TERM; sleep 60 & echo $!; timeout 60 sh -c 'echo $$; sleep 60' & echo ready; wait; wait";

#[test]
fn the_wrapper_exits_as_its_child_did() {
    let rows = [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
        ("kill -PIPE $$", 141),
        ("kill -40 $$", 168),
    ];
    for (script, expected) in rows {
        let output = run(&["job", "sh", "-c", script]).output().unwrap();
        assert_eq!(code(output.status), expected, "{script}");
        assert_eq!(
            output.status.code().is_none(),
            expected > 128 && expected < 255,
            "{script}: mirrored, not translated"
        );
        assert_eq!((output.stdout.len(), output.stderr.len()), (0, 0), "{script}: silent");
    }
}

#[test]
fn a_file_that_cannot_be_executed_is_126_and_a_missing_one_127() {
    for (program, expected) in [("/etc/passwd", 126), ("/", 126), ("/no/such/file", 127), ("no-such-command", 127)] {
        let output = run(&["job", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{program}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(program) && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn stdin_and_stdout_belong_to_the_child() {
    let mut child = run(&["job", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through\0and through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through\0and through");
}

#[test]
fn the_child_gets_the_lock_variables_and_no_password() {
    let output = run(&["--ttl", "5s", "job", "env"])
        .envs([("LEASE_MS", "5000"), ("DISTLOCK_PASSWORD", "hunter2"), ("DISTLOCK_URL", "redis://me:hunter2@h/")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "DISTLOCK_LOCK_NAME=job",
        "DISTLOCK_TOKEN=7",
        "DISTLOCK_OWNER=tester",
        "DISTLOCK_TTL_MS=5000",
        "DISTLOCK_HELD=1",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}");
    }
    assert!(text.contains("DISTLOCK_URL=redis://me@h/") && !text.contains("hunter2"), "{text}");
}

#[test]
fn all_processes_end_before_an_unrenewed_lease_ends() {
    // A machine that pauses for longer than the margin is always late: one good run of three is enough.
    let lease = Duration::from_secs(4);
    assert!((0..3).any(|_| run_out_a_lease(lease) < lease), "too late three times");
}

/// Returns how long a wrapper whose lease is not renewed took to end all processes.
fn run_out_a_lease(lease: Duration) -> Duration {
    let mut wrapper = Wrapper::start(
        run(&["--ttl", "4s", "-k", "0.5", "job", "sh", "-c", STUBBORN]).envs([("LEASE_MS", "4000"), ("RENEW_MS", "1")]),
    );
    let below: Vec<_> = [wrapper.line(), wrapper.line(), wrapper.line()]
        .iter()
        .filter_map(|line| line.parse().ok().and_then(rustix::process::Pid::from_raw))
        .collect();
    assert_eq!(below.len(), 2);
    let status = wrapper.wait();
    let elapsed = wrapper.started.elapsed();
    assert_eq!(status.code(), Some(79));
    assert!(elapsed > lease - Duration::from_millis(900), "{elapsed:?}: it had its grace");
    below.into_iter().for_each(|pid| assert!(!is_alive(pid), "{pid:?}"));
    elapsed
}

#[test]
fn a_lost_lock_ends_the_child_with_the_chosen_signal() {
    let script = "trap 'echo told; exit 0' USR2; echo ready; while :; do sleep 0.02; done";
    let mut wrapper = Wrapper::start(
        run(&["--signal", "USR2", "job", "sh", "-c", script]).env("LOSE_MS", "300").stderr(Stdio::piped()),
    );
    assert_eq!(wrapper.line(), "ready");
    assert_eq!(wrapper.line(), "told");
    assert_eq!(wrapper.wait().code(), Some(79), "the loss wins over the child's 0");
}

#[test]
fn on_lost_warn_and_ignore_let_the_child_continue() {
    for (action, expected) in [("warn", 79), ("ignore", 4)] {
        let output =
            run(&["--on-lost", action, "job", "sh", "-c", "sleep 0.6; exit 4"]).env("LOSE_MS", "100").output().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{action}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(message.contains("lock lost"), action == "warn", "{message}");
    }
}

#[test]
fn a_renewed_lease_does_not_end_the_child() {
    let output = run(&["--ttl", "2s", "job", "sh", "-c", "sleep 5; exit 3"]).env("LEASE_MS", "2000").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn each_signal_is_forwarded_once_whether_sent_to_the_wrapper_or_to_its_group() {
    let script = "trap 'echo got' INT TERM HUP QUIT USR1 USR2; echo ready; while :; do sleep 0.02; done";
    for to_group in [false, true] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
            let mut wrapper = Wrapper::start(&mut run(&["job", "sh", "-c", script]));
            assert_eq!(wrapper.line(), "ready");
            if to_group {
                wrapper.signal_group(signal);
            } else {
                wrapper.signal(signal);
            }
            assert_eq!(wrapper.line(), "got");
            std::thread::sleep(Duration::from_millis(100));
            wrapper.signal(Signal::KILL);
            assert_eq!(wrapper.rest(), "", "{signal:?} once");
        }
    }
}

#[test]
fn a_second_term_kills() {
    let mut wrapper = Wrapper::start(&mut run(&["job", "sh", "-c", STUBBORN]));
    let lines = [wrapper.line(), wrapper.line(), wrapper.line()];
    wrapper.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    assert!(wrapper.is_running(), "the first one is the child's to heed");
    wrapper.signal(Signal::INT);
    assert_eq!(code(wrapper.wait()), 137);
    for pid in lines.iter().filter_map(|line| line.parse().ok().and_then(rustix::process::Pid::from_raw)) {
        assert!(!is_alive(pid));
    }
}

#[test]
fn kill_after_bounds_a_forwarded_term() {
    let mut wrapper = Wrapper::start(&mut run(&["-k", "0.3", "job", "sh", "-c", "trap '' TERM; echo ready; sleep 60"]));
    assert_eq!(wrapper.line(), "ready");
    let sent = Instant::now();
    wrapper.signal(Signal::TERM);
    assert_eq!(code(wrapper.wait()), 137);
    assert!(sent.elapsed() >= Duration::from_millis(300));
}

#[test]
fn killing_the_wrapper_kills_child_and_grandchildren() {
    for group in [false, true] {
        let mut wrapper =
            Wrapper::start(&mut run(&["job", "sh", "-c", "sh -c 'echo $$; sleep 60; :' & echo $$; wait"]));
        let pids = [wrapper.line_pid(), wrapper.line_pid()];
        if group {
            wrapper.signal_group(Signal::KILL);
        } else {
            wrapper.signal(Signal::KILL);
        }
        pids.into_iter().for_each(await_gone);
        assert_eq!(wrapper.rest(), "", "no process keeps the output open");
    }
}

#[test]
fn the_child_ends_when_the_wrapper_is_stopped_past_its_lease() {
    let lease = Duration::from_secs(3);
    assert!((0..3).any(|_| stop_past_a_lease(lease) < lease), "the child ran on past the lease's end three times");
}

/// Returns how long the child of a stopped wrapper lived.
fn stop_past_a_lease(lease: Duration) -> Duration {
    let mut wrapper = Wrapper::start(
        run(&["--ttl", "3s", "job", "sh", "-c", "sh -c 'echo $$; sleep 60; :' & echo $$; wait"])
            .env("LEASE_MS", "3000"),
    );
    let pids = [wrapper.line_pid(), wrapper.line_pid()];
    wrapper.signal(Signal::STOP);
    let stopped = Instant::now();
    pids.into_iter().for_each(await_gone);
    let lived = stopped.elapsed();
    await_state(wrapper.pid(), 'T');
    std::thread::sleep((lease + Duration::from_millis(100)).saturating_sub(stopped.elapsed()));
    wrapper.signal(Signal::CONT);
    assert_eq!(wrapper.wait().code(), Some(79));
    lived
}

#[test]
fn tstp_stops_wrapper_and_child_and_cont_continues_both() {
    // A shell that is stopped in the middle of vfork(2) is in state "D", not "T": one process only.
    let mut wrapper = Wrapper::start(&mut run(&["job", "sh", "-c", "echo $$; exec sleep 0.3"]));
    let child = wrapper.line_pid();
    wrapper.signal(Signal::TSTP);
    await_state(wrapper.pid(), 'T');
    await_state(child, 'T');
    wrapper.signal(Signal::CONT);
    assert_eq!(wrapper.wait().code(), Some(0));
}

#[test]
fn a_child_stopped_past_the_lease_never_continues() {
    let trace = scratch("never-goes-on");
    let script = format!("echo $$; sleep 2; touch {}", trace.display());
    let mut wrapper =
        Wrapper::start(run(&["--ttl", "3s", "job", "sh", "-c", &script]).env("LEASE_MS", "3000").stderr(Stdio::null()));
    wrapper.line_pid();
    wrapper.signal(Signal::TSTP);
    await_state(wrapper.pid(), 'T');
    std::thread::sleep(Duration::from_millis(3_100));
    wrapper.signal(Signal::CONT);
    assert_eq!(wrapper.wait().code(), Some(79));
    assert!(!trace.exists());
}

#[test]
fn a_lock_lost_while_stopped_keeps_the_child_from_continuing() {
    let trace = scratch("taken-away");
    let script = format!("trap '' TERM; exec 3> {}; echo ready; while :; do echo x >&3; done", trace.display());
    let mut wrapper = Wrapper::start(run(&["job", "sh", "-c", &script]).env("LOSE_MS", "4000").stderr(Stdio::null()));
    assert_eq!(wrapper.line(), "ready");
    wrapper.signal(Signal::TSTP);
    await_state(wrapper.pid(), 'T');
    assert!(wrapper.started.elapsed() < Duration::from_millis(4000), "stopped before the loss");
    let written = std::fs::metadata(&trace).unwrap().len();
    std::thread::sleep(Duration::from_millis(4100).saturating_sub(wrapper.started.elapsed()));
    wrapper.signal(Signal::CONT);
    assert_eq!(wrapper.wait().code(), Some(79));
    assert_eq!(std::fs::metadata(&trace).unwrap().len(), written, "not a line more");
    std::fs::remove_file(trace).unwrap();
}

#[test]
fn the_lock_is_held_until_the_whole_group_has_ended() {
    let released = scratch("released");
    let mut wrapper = Wrapper::start(
        run(&["job", "sh", "-c", "sleep 0.5 >&- & timeout 1 sleep 0.8 >&- & exit 3"]).env("RELEASED", &released),
    );
    std::thread::sleep(Duration::from_millis(600));
    assert!(!released.exists() && wrapper.is_running());
    assert_eq!(wrapper.wait().code(), Some(3));
    assert!(released.exists() && wrapper.started.elapsed() > Duration::from_millis(800));
}

#[test]
fn a_daemon_in_its_own_session_does_not_hold_the_lock() {
    let script = "setsid sleep 40 >/dev/null 2>&1 </dev/null & echo $!";
    let mut command = run(&["job", "sh", "-c", script]);
    let start = Instant::now();
    let mut wrapper = Wrapper::start(&mut command);
    let daemon = wrapper.line_pid();
    assert_eq!(wrapper.wait().code(), Some(0));
    assert!(is_alive(daemon), "it was not killed either");
    rustix::process::kill_process(daemon, Signal::KILL).unwrap();
    assert!(start.elapsed() < Duration::from_secs(30), "it waited for the daemon");
}

#[test]
fn at_least_and_at_most_bound_the_hold() {
    let start = Instant::now();
    assert_eq!(run(&["--at-least", "0.5", "job", "sh", "-c", "exit 6"]).status().unwrap().code(), Some(6));
    assert!(start.elapsed() >= Duration::from_millis(500));

    let start = Instant::now();
    let output = run(&["--at-most", "0.5", "job", "sleep", "60"]).output().unwrap();
    assert_eq!(output.status.code(), Some(79));
    assert!(start.elapsed() >= Duration::from_millis(500) && start.elapsed() < Duration::from_secs(40));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--at-most"));
}

#[test]
fn every_step_is_written_to_status_fd_which_the_child_does_not_inherit() {
    let status = scratch("status");
    let script = format!(
        "exec 5>{}; exec {} run --status-fd 5 job sh -c 'echo >&5; exit 2'",
        status.display(),
        harness().display()
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = std::fs::read_to_string(&status).unwrap();
    let events: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["event"], "started");
    assert_eq!(events[1], serde_json::json!({"event": "ended", "code": 2}));
    assert_eq!(events.len(), 2, "nothing by the child");

    let closed = run(&["--status-fd", "77", "job", "true"]).output().unwrap();
    assert_eq!(closed.status.code(), Some(64));
}

#[test]
fn messages_are_json_with_json_and_absent_with_quiet() {
    let output = run(&["--json", "-v", "job", "true"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.lines().count() >= 2
            && text.lines().all(|line| line.starts_with("{\"event\"") || line.contains("\"event\":"))
    );
    let output = run(&["-q", "--on-lost", "warn", "job", "sleep", "0.3"]).env("LOSE_MS", "100").output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(79), 0));
}

#[test]
fn the_child_inherits_ignored_and_blocked_signals() {
    let script = format!("trap '' HUP; exec {} run job grep -E 'Sig(Ign|Blk)' /proc/self/status", harness().display());
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mask = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect("a mask");
        u64::from_str_radix(line.split_ascii_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    // The process that runs the tests may ignore two signals above 31 that the C library uses itself.
    assert_eq!(mask("SigIgn") & 0x7fff_ffff, 1, "only SIGHUP");
    assert_eq!(mask("SigBlk"), 0);
}

/// Rust's runtime ignores SIGPIPE, and std's `Command` restores the default action.
#[test]
fn the_child_ignores_sigpipe_only_if_the_wrapper_inherited_that() {
    let status = "grep SigIgn /proc/self/status";
    let nested = format!("{} run inner {status}", harness().display());
    for (prelude, expected) in [("trap '' PIPE; ", 1), ("", 0)] {
        for command in [status, &nested] {
            let script = format!("{prelude}exec {} run job {command}", harness().display());
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let mask = u64::from_str_radix(text.split_ascii_whitespace().nth(1).expect("a mask"), 16).unwrap();
            assert_eq!(mask >> (Signal::PIPE.as_raw() - 1) & 1, expected, "{script}: {text}");
        }
    }
}

#[test]
fn the_child_inherits_no_descriptor_of_the_wrapper() {
    let script = "ls /proc/$$/fd";
    let plain = std::process::Command::new("sh").args(["-c", script]).stdin(Stdio::null()).output().unwrap();
    let output =
        run(&["--ttl", "5s", "job", "sh", "-c", script]).env("LEASE_MS", "5000").stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), String::from_utf8(plain.stdout).unwrap());
}

#[test]
fn in_the_foreground_the_child_stays_in_the_wrappers_group() {
    let mut wrapper =
        Wrapper::start(&mut run(&["--foreground", "job", "sh", "-c", "ps -o pgid= -p $$; sleep 60 & wait"]));
    assert_eq!(wrapper.line_pid(), wrapper.pid());
    wrapper.signal(Signal::KILL);
}
