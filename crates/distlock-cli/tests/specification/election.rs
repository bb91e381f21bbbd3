//! `elect`, which campaigns again after a loss, and `ask`.

use std::process::Stdio;

use distlock_testkit::servers::RedisServer;
use rustix::process::Signal;

use crate::common::{Wrapper, await_gone, code, eventually};
use crate::machine::Machine;

/// Prints its process id, and ends with code 7 when a file exists.
const LEAD: &str = "echo $$; while [ ! -e done ]; do sleep 0.02; done; exit 7";

fn candidate(machine: &Machine, value: &str) -> Wrapper {
    let words = ["elect", "--value", value, "-k", "1", "job", "--", "sh", "-c", LEAD];
    Wrapper::start(machine.distlock(&words).stderr(Stdio::null()))
}

fn depose(machine: &Machine) {
    let token = machine.show("job")["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(machine.code(&["break", "job", "--if-token", &token, "--reason", "test", "-q"]), 0);
}

#[test]
fn a_deposed_leader_queues_and_leads_again() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let mut one = candidate(&machine, "one");
    let first = one.line_pid();
    assert_eq!(machine.show("job")["holder"]["label"], "one");
    let mut two = candidate(&machine, "two");
    machine.await_waiters("job", 1);

    depose(&machine);
    await_gone(first);
    two.line_pid();
    machine.await_waiters("job", 1);
    let lock = machine.show("job");
    assert_eq!((&lock["holder"]["label"], &lock["waiters"][0]["label"]), (&"two".into(), &"one".into()));

    two.signal(Signal::TERM);
    assert_eq!(code(two.wait()), 143, "a signal ends it as it ends `run`");
    assert_ne!(one.line_pid(), first, "it leads again, with a new command");
    machine.write("done", "");
    assert_eq!(code(one.wait()), 7, "the command ended by itself");
    assert!(machine.is_free("job"));
}

#[test]
fn a_sole_candidate_leads_again_after_each_loss() {
    let machine = Machine::new();
    let script = "echo turn >> turns; exec sleep 60";
    let words = ["elect", "-q", "--at-most", "0.1", "-k", "0.1", "job", "sh", "-c", script];
    let mut wrapper = Wrapper::start(&mut machine.distlock(&words));
    let turns = || std::fs::read_to_string(machine.path("turns")).unwrap_or_default().lines().count();
    eventually("several turns", || (turns() >= 3).then_some(()));
    wrapper.signal(Signal::TERM);
    // The signal may arrive while the command is already being ended: then the loss is reported, and the election
    // still ends.
    let end = code(wrapper.wait());
    assert!([79, 143].contains(&end), "{end}");
    assert!(machine.is_free("job"));
}

#[test]
fn the_election_ends_when_the_command_ends_by_itself() {
    let machine = Machine::new();
    assert_eq!(machine.code(&["elect", "job", "--", "sh", "-c", "exit 7"]), 7);
    assert_eq!(machine.code(&["elect", "job", "no-such-command"]), 127);
    let done = machine.run(&["elect", "--value", "a", "--reason", "b", "job", "true"]);
    assert_eq!(done.code, 64, "{}", done.stderr);
    let _holder = machine.hold("job");
    assert_eq!(machine.code(&["elect", "-n", "-q", "job", "touch", "ran"]), 75);
    let mut waiting = Wrapper::start(&mut machine.distlock(&["elect", "job", "touch", "ran"]));
    machine.await_waiters("job", 1);
    waiting.signal(Signal::TERM);
    assert_eq!(code(waiting.wait()), 143);
    assert!(!machine.path("ran").exists());
}

#[test]
fn ask_waits_for_the_release() {
    let server = RedisServer::start();
    for machine in [Machine::new(), Machine::with_server(server.url())] {
        assert_eq!(machine.code(&["ask", "job"]), 0, "nobody has it");
        let mut holder = machine.hold("job");
        let done = machine.run(&["ask", "--wait", "0.3", "--reason", "deploy", "job"]);
        assert_eq!(done.code, 75, "{}", done.stderr);
        assert!(done.stderr.contains("has not released") && done.stderr.lines().count() == 1, "{}", done.stderr);
        assert!(!machine.run(&["ls"]).stdout.contains("asked"), "the question is taken back");

        let mut asking = Wrapper::start(&mut machine.distlock(&["ask", "--reason", "deploy", "job"]));
        eventually("the question is there", || machine.run(&["ls"]).stdout.contains("deploy").then_some(()));
        drop(holder.stdin());
        assert_eq!(code(asking.wait()), 0);
        assert_eq!(code(holder.wait()), 0);
    }
}
