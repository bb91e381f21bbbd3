//! One holder at a time, with flock and with any number of processes.

use std::process::Stdio;

use crate::common::{Wrapper, code};
use crate::machine::{Machine, finish};

#[test]
fn flock_and_distlock_exclude_each_other_both_ways() {
    let machine = Machine::new();
    let file = machine.text("lock");
    for contents in [None, Some("somebody's notes")] {
        contents.into_iter().for_each(|text| machine.write("lock", text));
        let flock = |words: &[&str]| finish(&mut machine.command("flock", words)).code;

        let mut ours =
            Wrapper::start(machine.distlock(&["run", &file, "sh", "-c", "echo in; read x"]).stdin(Stdio::piped()));
        assert_eq!(ours.line(), "in");
        assert_eq!(flock(&["-n", "-E", "9", &file, "true"]), 9);
        drop(ours.stdin());
        ours.wait();
        assert_eq!(flock(&["-n", "-E", "9", &file, "true"]), 0);

        let mut theirs =
            Wrapper::start(machine.command("flock", &[&file, "sh", "-c", "echo in; read x"]).stdin(Stdio::piped()));
        assert_eq!(theirs.line(), "in");
        let done = machine.run(&["run", "-n", &file, "true"]);
        assert!(done.code == 75 && done.stderr.contains("lock"), "{}", done.stderr);
        assert_eq!(machine.show(&file)["holder"]["foreign"], true);
        let mut waiter = Wrapper::start(&mut machine.distlock(&["run", &file, "echo", "mine"]));
        machine.await_waiters(&file, 1);
        drop(theirs.stdin());
        assert_eq!((waiter.line().as_str(), code(waiter.wait())), ("mine", 0));
    }
}

#[test]
fn a_path_is_the_same_lock_however_it_is_written() {
    let machine = Machine::new();
    let _holder = machine.hold("./lock");
    std::fs::create_dir(machine.path("dir")).unwrap();
    std::os::unix::fs::symlink(machine.path("lock"), machine.path("link")).unwrap();
    for name in [machine.text("lock"), "dir/../lock".into(), "./link".into()] {
        assert!(!machine.is_free(&name), "{name}");
    }
    assert!(machine.is_free("lock"), "a bare name is a lock in the lock directory");
}

#[test]
fn two_hundred_concurrent_runs_count_to_two_hundred() {
    let machine = Machine::new();
    machine.write("counter", "0\n");
    let script = "read n < counter; echo $((n + 1)) > counter";
    let limit = std::time::Duration::from_secs(60);
    let start = std::time::Instant::now();
    let mut all: Vec<_> =
        (0..200).map(|_| machine.distlock(&["run", "-w", "60", "job", "sh", "-c", script]).spawn().unwrap()).collect();
    for child in &mut all {
        assert!(child.wait().unwrap().success(), "after {:?}", start.elapsed());
    }
    assert_eq!(std::fs::read_to_string(machine.path("counter")).unwrap(), "200\n");
    assert!(start.elapsed() < limit);
    assert_eq!(machine.lock_files(), ["job.lock"]);
}

#[test]
fn a_removed_lock_file_never_gives_two_holders() {
    let machine = Machine::new();
    for (name, file) in [("job", "locks/job.lock"), ("./path", "path")] {
        let mut holder = machine.hold(name);
        std::fs::remove_file(machine.path(file)).unwrap();
        assert!(!machine.is_free(name), "{name}: a new file is not a new lock");
        drop(holder.stdin());
        assert_eq!(code(holder.wait()), 0);
        assert!(machine.is_free(name));
    }
}

#[test]
fn deleting_all_lock_files_is_a_loss_and_ends_the_command() {
    let machine = Machine::new();
    let words = ["run", "--ttl", "0.3", "job", "sh", "-c", "echo $$; exec sleep 60"];
    let mut holder = Wrapper::start(machine.distlock(&words).stderr(Stdio::piped()));
    let command = holder.line_pid();
    for file in ["locks/job.lock", "locks/job.held"] {
        std::fs::remove_file(machine.path(file)).unwrap();
    }
    assert_eq!(code(holder.wait()), 79);
    assert!(!crate::common::is_alive(command));
}

#[test]
fn waiters_of_a_removed_lock_file_never_hold_two_files_at_once() {
    let machine = Machine::new();
    let mut holder = machine.hold("job");
    // A waiter of the old file and a process that creates a new one must end up with the same file.
    let script = "mkdir inside || echo together >> trouble; sleep 0.02; rmdir inside";
    let run = || machine.distlock(&["run", "-w", "60", "job", "sh", "-c", script]).spawn().unwrap();
    let mut all: Vec<_> = (0..4).map(|_| run()).collect();
    machine.await_waiters("job", 4);
    std::fs::remove_file(machine.path("locks/job.lock")).unwrap();
    all.extend((0..4).map(|_| run()));
    drop(holder.stdin());
    assert!(all.iter_mut().all(|child| child.wait().unwrap().success()));
    assert!(!machine.path("trouble").exists(), "two were inside");
}

#[test]
fn a_removed_file_with_other_contents_still_excludes() {
    let machine = Machine::new();
    machine.write("notes", "somebody's notes");
    let mut holder = machine.hold("./notes");
    std::fs::remove_file(machine.path("notes")).unwrap();
    machine.write("notes", "somebody's notes");
    assert!(!machine.is_free("./notes"));
    drop(holder.stdin());
    holder.wait();
    assert!(machine.is_free("./notes"));
}
