//! Signals that one sender sends twice, as timeout(1) does: to the process and to its group.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Wrapper, await_state, code};
use crate::machine::{DISTLOCK, Machine};

/// Cleans up on TERM until it reads a line, and then prints a line.
const CLEARS_UP: &str = "trap 'echo clearing; read line; echo cleared; exit 5' TERM; echo ready; \
                         while :; do sleep 0.02; done";

fn start(machine: &Machine, program: &str, words: &[&str]) -> Wrapper {
    let mut command = machine.command(program, words);
    let mut wrapper = Wrapper::start(command.args(["run", "job", "sh", "-c", CLEARS_UP]).stdin(Stdio::piped()));
    assert_eq!(wrapper.line(), "ready");
    wrapper
}

#[test]
fn a_signal_to_the_wrapper_and_its_group_counts_once() {
    let machine = Machine::new();
    // On a slow machine the two signals may be too far apart and count as two: one good run of three is enough.
    let good = |_| {
        let mut wrapper = start(&machine, DISTLOCK, &[]);
        let sent = Instant::now();
        wrapper.signal(Signal::TERM);
        assert_eq!(wrapper.line(), "clearing");
        wrapper.signal_group(Signal::TERM);
        if sent.elapsed() > Duration::from_millis(900) {
            return false;
        }
        wrapper.stdin().write_all(b"go\n").unwrap();
        assert_eq!(wrapper.line(), "cleared");
        assert_eq!(code(wrapper.wait()), 5);
        true
    };
    assert!((0..3).any(good), "the machine stood still three times");
}

#[test]
fn a_signal_repeated_later_counts_twice() {
    let machine = Machine::new();
    let mut wrapper = start(&machine, DISTLOCK, &[]);
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.line(), "clearing");
    std::thread::sleep(Duration::from_millis(1_100));
    wrapper.signal(Signal::TERM);
    assert_eq!(code(wrapper.wait()), 137);
}

#[test]
fn a_command_under_timeout_can_clean_up() {
    let machine = Machine::new();
    for _ in 0..20 {
        // On one processor the wrapper receives the first signal before timeout(1) sends the second.
        let mut timeout = start(&machine, "taskset", &["-c", "0", "timeout", "-s", "TERM", "1h", DISTLOCK]);
        timeout.signal(Signal::TERM);
        assert_eq!(timeout.line(), "clearing");
        timeout.stdin().write_all(b"go\n").unwrap();
        assert_eq!(timeout.line(), "cleared");
        assert_eq!(code(timeout.wait()), 5);
        assert!(machine.is_free("job"));
    }
}

#[test]
fn a_command_can_clean_up_if_timeout_fires_while_the_wrapper_is_stopped() {
    let machine = Machine::new();
    let mut timeout = start(&machine, "timeout", &["-s", "TERM", "1h", DISTLOCK]);
    let pid = machine.show("job")["holder"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let wrapper = rustix::process::Pid::from_raw(pid.unwrap()).unwrap();
    rustix::process::kill_process(wrapper, Signal::STOP).unwrap();
    await_state(wrapper, 'T');
    // timeout(1) continues the wrapper itself.
    timeout.signal(Signal::TERM);
    assert_eq!(timeout.line(), "clearing");
    timeout.stdin().write_all(b"go\n").unwrap();
    assert_eq!(timeout.line(), "cleared");
    assert_eq!(code(timeout.wait()), 5);
}
