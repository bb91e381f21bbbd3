//! Signals to the wrapper, with other processes waiting for the lock.

use std::io::Write;
use std::process::Stdio;

use rustix::process::Signal;

use crate::common::{Wrapper, await_gone, await_state, code, is_alive};
use crate::machine::Machine;

#[test]
fn a_signal_ends_the_command_before_the_lock_is_released() {
    let machine = Machine::new();
    for to_group in [false, true] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            // Without a core file.
            let script = "ulimit -c 0; sh -c 'echo $$; sleep 60; :' & echo $$; wait";
            let mut wrapper = Wrapper::start(&mut machine.distlock(&["run", "job", "sh", "-c", script]));
            let below = [wrapper.line_pid(), wrapper.line_pid()];
            if to_group {
                wrapper.signal_group(signal);
            } else {
                wrapper.signal(signal);
            }
            // A shell's background children ignore INT and QUIT: the second signal is for them.
            if signal == Signal::INT || signal == Signal::QUIT {
                crate::common::eventually("the command ends", || below.iter().any(|pid| !is_alive(*pid)).then_some(()));
                wrapper.signal(Signal::TERM);
            }
            assert_eq!(code(wrapper.wait()), 128 + signal.as_raw(), "to group: {to_group}");
            assert!(below.iter().all(|pid| !is_alive(*pid)), "{signal:?}");
            assert!(machine.is_free("job"), "{signal:?}");
        }
    }
}

#[test]
fn the_lock_is_held_while_the_command_cleans_up() {
    let machine = Machine::new();
    let script = "trap 'echo clearing; read line; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let mut wrapper = Wrapper::start(machine.distlock(&["run", "job", "sh", "-c", script]).stdin(Stdio::piped()));
    assert_eq!(wrapper.line(), "ready");
    wrapper.signal(Signal::TERM);
    assert_eq!(wrapper.line(), "clearing");
    assert!(!machine.is_free("job"));
    wrapper.stdin().write_all(b"go\n").unwrap();
    assert_eq!(code(wrapper.wait()), 5, "its own code, though it was asked to end");
    assert!(machine.is_free("job"));
}

#[test]
fn a_second_signal_kills_the_command() {
    let machine = Machine::new();
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM), (Signal::TERM, Signal::INT)] {
        let script = "trap 'echo heard' TERM INT; sh -c \"trap '' TERM INT; echo \\$\\$; exec sleep 60\" & \
                      echo ready; while :; do wait; done";
        let mut wrapper = Wrapper::start(&mut machine.distlock(&["run", "job", "sh", "-c", script]));
        let mut lines = [wrapper.line(), wrapper.line()];
        lines.sort();
        let stubborn = rustix::process::Pid::from_raw(lines[0].parse().unwrap()).unwrap();
        wrapper.signal(first);
        assert_eq!(wrapper.line(), "heard");
        assert!(!machine.is_free("job"));
        // From another process: a signal repeated by one process within a moment counts once.
        let number = format!("-{}", second.as_raw());
        let kill = ["-c", "kill $0 $1", &number, &wrapper.pid().to_string()];
        assert_eq!(crate::machine::finish(&mut machine.command("sh", &kill)).code, 0);
        assert_eq!(code(wrapper.wait()), 137, "{first:?}, {second:?}");
        assert!(!is_alive(stubborn), "no process is left");
        assert!(machine.is_free("job"));
    }
}

#[test]
fn a_killed_wrapper_leaves_neither_command_nor_lock() {
    let machine = Machine::new();
    for to_group in [false, true] {
        let script = "sh -c 'echo $$; sleep 60; :' & echo $$; wait";
        let mut wrapper = Wrapper::start(&mut machine.distlock(&["run", "job", "sh", "-c", script]));
        let below = [wrapper.line_pid(), wrapper.line_pid()];
        if to_group {
            wrapper.signal_group(Signal::KILL);
        } else {
            wrapper.signal(Signal::KILL);
        }
        below.into_iter().for_each(await_gone);
        assert_eq!(code(wrapper.wait()), 137);
        machine.await_free("job");
    }
}

#[test]
fn a_stopped_wrapper_keeps_its_lock_and_continues() {
    let machine = Machine::new();
    let script = "echo ready; read line; echo \"$line\"; exit 3";
    let mut wrapper = Wrapper::start(machine.distlock(&["run", "job", "sh", "-c", script]).stdin(Stdio::piped()));
    assert_eq!(wrapper.line(), "ready");
    wrapper.signal(Signal::STOP);
    await_state(wrapper.pid(), 'T');
    assert!(!machine.is_free("job"), "no lease that could end");
    wrapper.signal(Signal::CONT);
    wrapper.stdin().write_all(b"on\n").unwrap();
    assert_eq!(wrapper.line(), "on");
    assert_eq!(code(wrapper.wait()), 3);
    assert!(machine.is_free("job"));
}

#[test]
fn a_signal_that_was_ignored_at_the_start_ends_neither_a_wait_nor_a_hold() {
    let machine = Machine::new();
    let ignoring = |words: &str| {
        let script = format!("trap '' HUP; exec \"$DISTLOCK\" {words}");
        Wrapper::start(machine.command("sh", &["-c", &script]).stdin(Stdio::piped()))
    };
    let mut holder = ignoring("hold job");
    assert!(holder.line().starts_with("job token "));
    let mut waiter = ignoring("run job echo mine");
    machine.await_waiters("job", 1);
    for wrapper in [&holder, &waiter] {
        wrapper.signal(Signal::HUP);
    }
    assert!(!machine.is_free("job"));
    assert_eq!(machine.show("job")["waiters"].as_array().map(Vec::len), Some(1), "it still waits");
    assert!(holder.is_running() && waiter.is_running());
    holder.signal(Signal::TERM);
    assert_eq!(code(holder.wait()), 0);
    assert_eq!((waiter.line().as_str(), code(waiter.wait())), ("mine", 0));
}

#[test]
fn hold_ends_with_its_input_or_by_a_signal() {
    let machine = Machine::new();
    let mut holder = machine.hold("job");
    assert!(!machine.is_free("job"));
    drop(holder.stdin());
    assert_eq!(code(holder.wait()), 0);
    assert!(machine.is_free("job"));
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut holder = machine.hold("job");
        holder.signal(signal);
        assert_eq!(code(holder.wait()), 0, "{signal:?}: it did what it was for");
        assert!(machine.is_free("job"));
    }
    let mut holder = machine.hold("job");
    holder.signal(Signal::KILL);
    assert_eq!(code(holder.wait()), 137);
    machine.await_free("job");
}
