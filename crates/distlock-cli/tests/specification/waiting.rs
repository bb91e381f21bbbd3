//! Locks that are held by another owner.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Wrapper, code};
use crate::machine::Machine;

#[test]
fn a_busy_lock_is_75_or_the_chosen_code_and_the_command_does_not_run() {
    let machine = Machine::new();
    let holder = machine.hold("job");
    let rows: [(&[&str], i32); 7] = [
        (&["-n"], 75),
        (&["-w", "0"], 75),
        (&["-w", "0.05"], 75),
        (&["-n", "-E", "0"], 0),
        (&["-n", "-E", "7"], 7),
        (&["-n", "--ttl", "10s"], 75),
        (&["-n", "-E", "255"], 255),
    ];
    for (options, expected) in rows {
        let words: Vec<_> = ["run"].iter().chain(options).chain(&["job", "touch", "ran"]).copied().collect();
        let done = machine.run(&words);
        assert_eq!(done.code, expected, "{options:?}");
        assert!(done.stdout.is_empty() && done.stderr.lines().count() == 1, "{}", done.stderr);
        let pid = holder.pid().as_raw_nonzero();
        let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
        for part in ["\"job\"", &format!("pid {pid}"), &host, "token "] {
            assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
        }
        assert!(done.stderr.contains(" for "), "its age: {}", done.stderr);
    }
    assert!(!machine.path("ran").exists());
    for command in ["hold", "acquire"] {
        assert_eq!(machine.code(&[command, "-n", "-q", "job"]), 75, "{command}");
        assert_eq!(machine.code(&[command, "-n", "-q", "-E", "3", "job"]), 3, "{command}");
    }
}

#[test]
fn a_bounded_wait_takes_as_long_as_it_says() {
    let machine = Machine::new();
    let _holder = machine.hold("job");
    for command in [&["run", "-w", "0.3", "job", "true"][..], &["acquire", "-w", "300ms", "job"]] {
        let start = Instant::now();
        let done = machine.run(command);
        assert_eq!(done.code, 75, "{}", done.stderr);
        assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    }
    assert_eq!(machine.show("job")["waiters"], serde_json::json!([]));
}

#[test]
fn a_wait_ends_when_the_holder_does() {
    let machine = Machine::new();
    let mut holder = machine.hold("job");
    let mut waiter = Wrapper::start(&mut machine.distlock(&["run", "job", "echo", "mine"]));
    machine.await_waiters("job", 1);
    drop(holder.stdin());
    assert_eq!(waiter.line(), "mine");
    assert_eq!((code(waiter.wait()), code(holder.wait())), (0, 0));
}

#[test]
fn a_signal_ends_a_wait_and_leaves_no_queue_entry() {
    let machine = Machine::new();
    let _holder = machine.hold("job");
    for command in [&["run", "job", "true"][..], &["hold", "job"], &["acquire", "job"]] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
            let mut waiter = Wrapper::start(&mut machine.distlock(command));
            machine.await_waiters("job", 1);
            waiter.signal(signal);
            assert_eq!(code(waiter.wait()), 128 + signal.as_raw(), "{command:?}");
            // At once: the place in the queue is given up before the program ends.
            assert_eq!(machine.show("job")["waiters"], serde_json::json!([]), "{command:?}");
        }
    }
    assert_eq!(machine.lock_files(), ["job.lock"]);
}

#[test]
fn a_killed_waiter_does_not_block_others() {
    let machine = Machine::new();
    let mut holder = machine.hold("job");
    let mut killed = Wrapper::start(&mut machine.distlock(&["run", "job", "echo", "killed"]));
    machine.await_waiters("job", 1);
    let mut next = Wrapper::start(&mut machine.distlock(&["run", "job", "echo", "next"]));
    machine.await_waiters("job", 2);
    killed.signal(Signal::KILL);
    killed.wait();
    drop(holder.stdin());
    assert_eq!((next.line().as_str(), code(next.wait())), ("next", 0));
    assert_eq!(machine.lock_files(), ["job.lock"], "nothing is left of the killed one");
}

#[test]
fn waiters_acquire_in_order_of_arrival() {
    let machine = Machine::new();
    let mut holder = machine.hold("job");
    let mut waiters: Vec<_> = (1..=6)
        .map(|number| {
            let script = format!("echo {number} >> order");
            let waiter = Wrapper::start(&mut machine.distlock(&["run", "job", "-c", &script]));
            machine.await_waiters("job", number);
            waiter
        })
        .collect();
    drop(holder.stdin());
    waiters.iter_mut().for_each(|waiter| assert_eq!(code(waiter.wait()), 0));
    assert_eq!(std::fs::read_to_string(machine.path("order")).unwrap(), "1\n2\n3\n4\n5\n6\n");
    assert_eq!(machine.lock_files(), ["job.lock"]);
}
