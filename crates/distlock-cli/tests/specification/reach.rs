//! Which processes end with a command: work in other groups and sessions, and work of other users.

use std::io::Write;
use std::process::Stdio;

use distlock_testkit::servers::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Wrapper, await_gone, await_state, code, is_alive, state};
use crate::machine::{DISTLOCK, Machine, finish};

/// Work outside the command's process group; each script prints the process id of its work.
const ELSEWHERE: [(&str, &str); 4] = [
    ("timeout(1) makes a group", "timeout 1h sh -c 'echo $$; exec sleep 3600' & wait; exit 1"),
    ("job control makes groups", "set -m; sh -c 'echo $$; exec sleep 3600' & wait; exit 1"),
    ("a session of its own", "setsid sh -c 'echo $$; exec sleep 3600' & wait; exit 1"),
    ("an orphan in a session of its own", "(setsid sh -c 'echo $$; exec sleep 3600' &); sleep 3600; exit 1"),
];

#[test]
fn f77_work_outside_the_group_ends_before_the_next_hold_if_the_wrapper_is_stopped() {
    for (name, script) in ELSEWHERE {
        // A machine that pauses for longer than the margin is always late: one good run of three is enough.
        assert!(
            (0..3).any(|_| work_is_gone_after(Signal::STOP, script)),
            "{name}: it ran beside the next holder three times"
        );
    }
}

#[test]
fn f77_work_outside_the_group_ends_before_the_next_hold_if_the_wrapper_is_killed() {
    for (name, script) in ELSEWHERE {
        assert!(
            (0..3).any(|_| work_is_gone_after(Signal::KILL, script)),
            "{name}: it ran beside the next holder three times"
        );
    }
}

/// Whether the work is gone when the next holder starts, after the wrapper got `signal`.
fn work_is_gone_after(signal: Signal, script: &str) -> bool {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let words = ["run", "--ttl", "3s", "job", "bash", "-c", script];
    let mut wrapper = Wrapper::start(machine.distlock(&words).stderr(Stdio::null()));
    let work = wrapper.line_pid();
    wrapper.signal(signal);
    let look = format!("grep -q '^State:.[RSDTt]' /proc/{}/status && echo beside || echo alone", work.as_raw_nonzero());
    let next = machine.run(&["run", "job", "sh", "-c", &look]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    if signal == Signal::STOP {
        wrapper.signal(Signal::CONT);
        assert_eq!(code(wrapper.wait()), 79);
    }
    next.stdout == "alone\n"
}

#[test]
fn f77_a_loss_ends_work_outside_the_group() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    for (name, script) in ELSEWHERE {
        let words = ["run", "-k", "0.5", "job", "bash", "-c", script];
        let mut wrapper = Wrapper::start(machine.distlock(&words).stderr(Stdio::null()));
        let work = wrapper.line_pid();
        break_lock(&machine);
        assert_eq!(code(wrapper.wait()), 79, "{name}");
        assert!(!is_alive(work), "{name}");
    }
}

fn break_lock(machine: &Machine) {
    let token = machine.show("job")["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(machine.code(&["break", "job", "--if-token", &token, "--reason", "test"]), 0);
}

/// Starts `distlock run` without the right to signal other users' processes, with a command that runs as another user.
fn run_as_another(machine: &Machine, words: &[&str]) -> Wrapper {
    let script = "echo $$; exec sleep 3600 >/dev/null";
    let wrapper = ["--bounding-set=-kill", DISTLOCK, "run", "--status-fd", "1"];
    let command = ["job", "setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", script];
    let words: Vec<_> = wrapper.iter().chain(words).chain(&command).copied().collect();
    Wrapper::start(machine.command("setpriv", &words).stderr(Stdio::piped()))
}

/// Returns the next line with `event`, from a wrapper that prints its steps on stdout.
fn await_event(wrapper: &mut Wrapper, event: &str) -> String {
    loop {
        let line = wrapper.line();
        assert!(!line.is_empty(), "it ended without {event}");
        if line.contains(&format!("\"event\":\"{event}\"")) {
            return line;
        }
    }
}

/// Returns the process id that the work prints between the steps.
fn work_of(wrapper: &mut Wrapper) -> Pid {
    loop {
        if let Some(pid) = wrapper.line().parse().ok().and_then(Pid::from_raw) {
            return pid;
        }
    }
}

#[test]
fn f77_work_of_another_user_is_reported_and_the_lost_lock_is_79_needs_root() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let mut wrapper = run_as_another(&machine, &["-k", "0.2"]);
    let work = work_of(&mut wrapper);
    break_lock(&machine);
    let line = await_event(&mut wrapper, "refused");
    assert!(line.contains(&work.to_string()), "{line} names {work}");
    assert_eq!(code(wrapper.wait()), 79);
    assert!(is_alive(work), "this is the limit");
    kill_process(work, Signal::KILL).unwrap();
}

#[test]
fn f77_the_lock_is_held_while_work_of_another_user_runs_needs_root() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let mut wrapper = run_as_another(&machine, &["--ttl", "2s"]);
    let work = work_of(&mut wrapper);
    wrapper.signal(Signal::TERM);
    wrapper.signal(Signal::INT);
    await_event(&mut wrapper, "refused");
    assert!(is_alive(work) && !machine.is_free("job"), "it runs, so it is locked");
    // Longer than the lease.
    let waiter = machine.run(&["run", "-w", "3s", "-q", "job", "true"]);
    assert_eq!(waiter.code, 75, "{}", waiter.stderr);
    kill_process(work, Signal::KILL).unwrap();
    assert_eq!(code(wrapper.wait()), 137, "by the end of the command itself");
    assert!(machine.is_free("job"));
}

/// Work of another user that starts one process after the other is reported once, not once per process.
#[test]
fn work_of_another_user_is_not_reported_repeatedly_needs_root() {
    let machine = Machine::new();
    let script = "trap '' TERM INT; echo $$; while :; do echo tick; sleep 0.05 >/dev/null; done";
    let wrapper = ["--bounding-set=-kill", DISTLOCK, "run", "--status-fd", "1", "job"];
    let command = ["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", script];
    let words: Vec<_> = wrapper.iter().chain(&command).copied().collect();
    let mut wrapper = Wrapper::start(machine.command("setpriv", &words).stderr(Stdio::null()));
    let work = work_of(&mut wrapper);
    wrapper.signal(Signal::TERM);
    wrapper.signal(Signal::INT);
    await_event(&mut wrapper, "refused");
    let (mut ticks, mut lines) = (0, 1);
    while ticks < 40 {
        let line = wrapper.line();
        assert!(!line.is_empty(), "it ended");
        ticks += u32::from(line == "tick");
        lines += u32::from(line.contains("\"refused\""));
    }
    // The shell and its child are two at times.
    assert!(lines <= 2, "{lines} lines in {ticks} ticks");
    kill_process(work, Signal::KILL).unwrap();
    assert_eq!(code(wrapper.wait()), 137);
}

#[test]
fn a_daemon_outlives_a_killed_wrapper_only_without_a_lease() {
    // With a lease it is killed: see f77.
    let machine = Machine::new();
    let script = "setsid sh -c 'echo $$; exec sleep 60 >/dev/null' & wait";
    let mut wrapper = Wrapper::start(&mut machine.distlock(&["run", "job", "sh", "-c", script]));
    let daemon = wrapper.line_pid();
    wrapper.signal(Signal::KILL);
    wrapper.wait();
    assert_eq!(wrapper.rest(), "", "the shell is killed");
    assert!(is_alive(daemon) && !machine.is_free("job"));
}

#[test]
fn killing_the_guardian_kills_the_command() {
    let machine = Machine::new();
    // The rest of the session exists before the command prints: a killed shell starts nothing more.
    let script = "sleep 60 >/dev/null & echo $PPID; echo $$; wait";
    let mut wrapper = Wrapper::start(&mut machine.distlock(&["run", "--status-fd", "1", "job", "sh", "-c", script]));
    let (mut pids, mut has_started) = (Vec::new(), false);
    while pids.len() < 2 || !has_started {
        let line = wrapper.line();
        assert!(!line.is_empty(), "it ended");
        has_started |= line.contains("\"event\":\"started\"");
        pids.extend(line.parse().ok().and_then(Pid::from_raw));
    }
    let (guardian, command) = (pids[0], pids[1]);
    let name = std::fs::read_to_string(format!("/proc/{guardian}/comm")).unwrap();
    assert_eq!(name, "distlock-guard\n");
    kill_process(guardian, Signal::KILL).unwrap();
    await_gone(command);
    // The rest of the session holds the lock, and is killed as well.
    assert_eq!(code(wrapper.wait()), 137);
    assert!(machine.is_free("job"));
}

/// Starts the command, which prints its parent and a process of its work, kills the parent, and waits until the work is gone.
fn assert_the_guardian_takes_along(command: &[&str]) {
    let machine = Machine::new();
    let words = [&["run", "--status-fd", "1", "job"], command].concat();
    let mut wrapper = Wrapper::start(machine.distlock(&words).stdin(Stdio::piped()));
    // The guardian has reported the start and is idle.
    await_event(&mut wrapper, "started");
    wrapper.stdin().write_all(b"go\n").unwrap();
    let (guardian, work) = (wrapper.line_pid(), wrapper.line_pid());
    kill_process(guardian, Signal::KILL).unwrap();
    await_gone(work);
    assert_eq!(code(wrapper.wait()), 137);
    assert!(machine.is_free("job"));
}

/// Without a guardian nothing would end this work if the wrapper were killed or stopped.
#[test]
fn f77_work_outside_the_group_ends_if_the_guardian_is_killed() {
    let script = "read go; echo $PPID; setsid sh -c 'echo $$; exec sleep 600 >/dev/null' & wait";
    assert_the_guardian_takes_along(&["sh", "-c", script]);
}

/// The kernel does not kill a command with its parent once the command has become another user.
#[test]
fn f77_a_command_that_became_another_user_ends_if_the_guardian_is_killed_needs_root() {
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let script = "read go; echo $PPID; echo $$; exec sleep 600 >/dev/null";
    assert_the_guardian_takes_along(&[&user[..], &["sh", "-c", script]].concat());
}

/// Whether or not the guardian has reported the command's start before it is killed.
#[test]
fn killing_the_guardian_at_once_leaves_no_process() {
    let machine = Machine::new();
    let script = "sleep 60 >/dev/null & kill -KILL $PPID; wait";
    let words = ["run", "--status-fd", "1", "job", "sh", "-c", script];
    let mut wrapper = Wrapper::start(machine.distlock(&words).stderr(Stdio::null()));
    // Also the wrapper's end, if the guardian was killed before it had reported the start.
    while !matches!(wrapper.line(), line if line.is_empty() || line.contains("\"event\":\"started\"")) {}
    wrapper.signal(Signal::TERM);
    wrapper.signal(Signal::INT);
    wrapper.wait();
    assert!(machine.is_free("job"), "nothing of the command has its descriptor");
}

/// A signal that arrives after the command's end is handled, however late the wrapper learns of that end.
#[test]
fn a_signal_after_the_commands_end_ends_the_wait() {
    let machine = Machine::new();
    let script = "read go; echo $PPID; echo $$; read end";
    let words = ["run", "--status-fd", "1", "--at-least", "1h", "job", "sh", "-c", script];
    let mut wrapper = Wrapper::start(machine.distlock(&words).stdin(Stdio::piped()));
    // The guardian has reported the start and is idle.
    await_event(&mut wrapper, "started");
    let mut input = wrapper.stdin();
    input.write_all(b"go\n").unwrap();
    let (guardian, command) = (wrapper.line_pid(), wrapper.line_pid());
    kill_process(guardian, Signal::STOP).unwrap();
    await_state(guardian, 'T');
    drop(input);
    await_gone(command);
    wrapper.signal(Signal::TERM);
    assert_eq!(code(wrapper.wait()), 143);
    assert!(machine.is_free("job"));
}

/// A stopped guardian is continued, so that it reports the command's end.
#[test]
fn a_stopped_guardian_still_reports_the_commands_end() {
    let machine = Machine::new();
    let words = ["run", "--status-fd", "1", "job", "sh", "-c", "echo $PPID; read end; exit 3"];
    let mut wrapper = Wrapper::start(machine.distlock(&words).stdin(Stdio::piped()));
    let guardian = work_of(&mut wrapper);
    let input = wrapper.stdin();
    kill_process(guardian, Signal::STOP).unwrap();
    drop(input);
    assert_eq!(code(wrapper.wait()), 3);
    assert!(machine.is_free("job"));
}

#[test]
fn the_commands_process_id_is_not_reused_while_it_may_be_signalled() {
    let machine = Machine::new();
    let script = "sh -c 'trap \"echo got; exit\" USR1; echo ready; while :; do sleep 0.02; done' & exit 3";
    let words = ["run", "--status-fd", "1", "job", "sh", "-c", script];
    let mut wrapper = Wrapper::start(&mut machine.distlock(&words));
    // In any order.
    let (mut command, mut is_ready, mut lingers) = (None, false, false);
    while command.is_none() || !is_ready || !lingers {
        let line = wrapper.line();
        assert!(!line.is_empty(), "it ended");
        is_ready |= line == "ready";
        lingers |= line.contains("lingering");
        let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let pid = event["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        command = command.or(pid);
    }
    let command = command.unwrap();
    assert_eq!(state(command), Some('Z'), "dead, and not reaped");
    wrapper.signal(Signal::USR1);
    assert_eq!(wrapper.line(), "got", "the rest of the group is signalled");
    assert_eq!(code(wrapper.wait()), 3);
}

/// Where the first process of a container does not reap, each zombie would stay forever.
#[test]
fn no_zombie_is_left() {
    // Orphans become children of this test, which does not reap them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let machine = Machine::new();
    for script in ["echo $$ $PPID", "(sleep 0.1 &); echo $$ $PPID; exit 3", "echo $$ $PPID; kill -KILL $$"] {
        let done = machine.run(&["run", "job", "sh", "-c", script]);
        let pids = done.stdout.split_whitespace().map(|word| Pid::from_raw(word.parse().unwrap()).unwrap());
        let states: Vec<_> = pids.map(state).collect();
        assert_eq!(states, [None, None], "{script}: command and guardian");
    }
}

/// An unrelated process that gets the command's process id as soon as the kernel reuses it.
#[test]
fn an_unrelated_process_never_gets_the_commands_signals_needs_root() {
    let machine = Machine::new();
    let script = "
        $DISTLOCK run --foreground job sh -c 'sleep 60 >/dev/null 2>&1 & echo $$ > command' &
        wrapper=$!
        until test -s command; do sleep 0.02; done
        command=$(cat command)
        while grep -q '^State:.[RSDTt]' /proc/$command/status; do sleep 0.02; done 2>/dev/null
        # In the wrapper's sight too: it reaps in the same turn as it says so.
        sleep 0.3
        echo $((command - 1)) > /proc/sys/kernel/ns_last_pid
        sleep 60 >/dev/null 2>&1 &
        stranger=$!
        kill -USR1 $wrapper; kill -TERM $wrapper; sleep 0.1; kill -INT $wrapper
        wait $wrapper
        kill -0 $stranger && echo unharmed
        kill -KILL $stranger";
    let done = finish(&mut machine.command("unshare", &["--pid", "--fork", "--mount-proc", "sh", "-c", script]));
    assert_eq!(done.stdout, "unharmed\n", "{}", done.stderr);
}
