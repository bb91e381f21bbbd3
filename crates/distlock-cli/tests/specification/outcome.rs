//! Exit codes.

use crate::common::code;
use crate::machine::{DISTLOCK, Machine, finish};

#[test]
fn the_program_exits_as_its_command_did_and_success_is_silent() {
    let machine = Machine::new();
    let rows = [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)];
    for (script, expected) in rows {
        let done = machine.run(&["run", "job", "--", "sh", "-c", script]);
        assert_eq!(done.code, expected, "{script}");
        let mirrored = done.status.code().is_none();
        assert_eq!(mirrored, script.starts_with("kill"), "{script}: a signal is mirrored, not translated");
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""), "{script}");
        assert!(machine.is_free("job"), "{script}");
    }
}

/// As in a container that was entered from outside.
#[test]
fn a_session_led_from_outside_of_the_pid_namespace_is_a_session_needs_root() {
    let machine = Machine::new();
    let script = "sleep 0.2 & exit 7";
    let inside = ["--pid", "--fork", "--mount-proc", DISTLOCK, "run", "job", "--", "sh", "-c", script];
    let done = finish(&mut machine.command("unshare", &inside));
    assert_eq!((done.code, done.stderr.as_str()), (7, ""));
    assert!(machine.is_free("job"));
}

#[test]
fn a_command_that_cannot_be_executed_is_126_or_127_and_the_lock_is_free() {
    let machine = Machine::new();
    machine.write("text", "no program");
    for (program, expected) in [("./text", 126), ("/", 126), ("./missing", 127), ("no-such-command", 127)] {
        let done = machine.run(&["run", "job", program]);
        assert_eq!(done.code, expected, "{program}");
        assert!(done.stderr.contains(program) && done.stderr.lines().count() == 1, "{}", done.stderr);
        assert!(machine.is_free("job"));
    }
}

#[test]
fn a_usage_error_is_64_and_touches_no_lock() {
    let machine = Machine::new();
    let rows: [&[&str]; 9] = [
        &["run", "job"],
        &["run", "-n", "-w", "1", "job", "true"],
        &["run", "-w", "soon", "job", "true"],
        &["run", "", "true"],
        &["run", "--status-fd", "99", "job", "true"],
        &["hold"],
        &["renew", "job", "--token", "7"],
        &["release", "job", "--token", "../../x"],
        &["acquire", "--ttl", "1ms", "job"],
    ];
    for words in rows {
        let done = machine.run(words);
        assert_eq!(done.code, 64, "{words:?}: {}", done.stderr);
        assert!(done.stdout.is_empty() && !done.stderr.is_empty(), "{words:?}");
    }
    assert!(machine.lock_files().is_empty(), "{:?}", machine.lock_files());
}

#[test]
fn a_lock_that_cannot_be_created_is_73() {
    let machine = Machine::new();
    machine.write("file", "");
    let inside_a_file = machine.text("file/lock");
    for name in [inside_a_file.as_str(), "./no/such/directory/lock"] {
        let done = machine.run(&["run", name, "--", "touch", "ran"]);
        assert_eq!(done.code, 73, "{name}: {}", done.stderr);
        assert!(done.stderr.contains("cannot create lock") && done.stderr.lines().count() == 1, "{}", done.stderr);
    }
    // The directory cannot be created either: a file is in place of its parent.
    let mut nowhere = machine.distlock(&["run", "job", "--", "touch", "ran"]);
    let done = crate::machine::finish(nowhere.env("DISTLOCK_LOCK_DIR", machine.path("file/locks")));
    assert_eq!(done.code, 73, "{}", done.stderr);
    let mut nowhere = machine.distlock(&["acquire", "job"]);
    let done = crate::machine::finish(nowhere.env("DISTLOCK_LOCK_DIR", machine.path("file/locks")));
    assert_eq!((done.code, done.stdout.as_str()), (73, ""), "{}", done.stderr);
    assert!(!machine.path("ran").exists());
}

#[test]
fn foreign_file_contents_are_not_changed() {
    let machine = Machine::new();
    machine.write("locks/job.lock", "somebody's notes");
    assert_eq!(machine.code(&["run", "job", "true"]), 73);
    // Beside a file with a path of its own there is room for the counter and the holder record.
    machine.write("notes", "somebody's notes");
    assert_eq!(machine.code(&["run", "./notes", "true"]), 0);
    for name in ["locks/job.lock", "notes"] {
        assert_eq!(std::fs::read_to_string(machine.path(name)).unwrap(), "somebody's notes");
    }
}

#[test]
fn a_shell_is_used_only_with_c() {
    let machine = Machine::new();
    assert_eq!(machine.run(&["run", "job", "-c", "echo a | tr a b"]).stdout, "b\n");
    assert_eq!(machine.run(&["run", "-c", "echo a | tr a b", "job"]).stdout, "b\n");
    assert_eq!(machine.code(&["run", "job", "echo a | tr a b"]), 127, "never implicitly");
}

#[test]
fn at_most_ends_the_command_with_79() {
    let machine = Machine::new();
    let done = machine.run(&["run", "--at-most", "0.3", "-k", "0.1", "job", "sh", "-c", "trap '' TERM; sleep 60"]);
    assert_eq!(done.code, 79);
    assert!(done.stderr.contains("--at-most"), "{}", done.stderr);
    assert!(machine.is_free("job"));
}

#[test]
fn at_least_keeps_the_lock_after_the_command() {
    let machine = Machine::new();
    let words = ["run", "-v", "--at-least", "1h", "job", "sh", "-c", "echo $$"];
    let mut wrapper = crate::common::Wrapper::start(&mut machine.distlock(&words));
    crate::common::await_gone(wrapper.line_pid());
    assert!(!machine.is_free("job"));
    wrapper.signal(rustix::process::Signal::TERM);
    assert_eq!(code(wrapper.wait()), 143);
    assert!(machine.is_free("job"));

    let start = std::time::Instant::now();
    assert_eq!(machine.code(&["run", "--at-least", "0.3", "job", "sh", "-c", "exit 6"]), 6);
    assert!(start.elapsed() >= std::time::Duration::from_millis(300));
}
