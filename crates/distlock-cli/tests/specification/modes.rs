//! Readers, writers and semaphores: `-s`, `-x` and `-j`.

use std::process::Stdio;

use distlock_testkit::servers::RedisServer;
use rustix::process::Signal;

use crate::common::{Wrapper, code, eventually};
use crate::machine::{Machine, finish};

/// Runs `sh -c 'echo in; read x'` behind these words, and returns once it runs under the lock.
fn inside(machine: &Machine, program: &str, words: &[&str]) -> Wrapper {
    let words: Vec<&str> = words.iter().copied().chain(["sh", "-c", "echo in $DISTLOCK_SLOT; read x; true"]).collect();
    let mut holder = Wrapper::start(machine.command(program, &words).stdin(Stdio::piped()));
    assert!(holder.line().starts_with("in"), "{program} {words:?}");
    holder
}

fn distlock(machine: &Machine, words: &[&str]) -> Wrapper {
    inside(machine, crate::machine::DISTLOCK, words)
}

fn leave(mut holder: Wrapper) {
    drop(holder.stdin());
    assert_eq!(code(holder.wait()), 0);
}

#[test]
fn readers_share_and_exclude_writers() {
    let machine = Machine::new();
    for name in ["job", "./path"] {
        let readers = [distlock(&machine, &["run", "-s", name]), distlock(&machine, &["run", "--shared", "-n", name])];
        let done = machine.run(&["run", "-n", "-x", name, "true"]);
        assert_eq!(done.code, 75);
        assert!(done.stderr.contains("a shared lock") && done.stderr.contains("and 1 more"), "{}", done.stderr);
        let shown = machine.show(name);
        let modes: Vec<_> = shown["holders"].as_array().unwrap().iter().map(|holder| &holder["mode"]).collect();
        assert_eq!(modes, ["shared", "shared"]);
        if name == "job" {
            let listed = machine.run(&["ls"]).stdout;
            assert!(listed.contains("shared") && listed.contains(" +1"), "{listed}");
        }
        readers.into_iter().for_each(leave);
        let writer = distlock(&machine, &["run", "-n", name]);
        assert_eq!(machine.code(&["run", "-s", "-n", name, "true"]), 75);
        leave(writer);
        assert!(machine.is_free(name));
    }
}

#[test]
fn flock_shares_with_readers_and_excludes_writers_both_ways() {
    let machine = Machine::new();
    let file = machine.text("lock");
    let flock = |words: &[&str]| finish(&mut machine.command("flock", words)).code;
    let ours = distlock(&machine, &["run", "-s", &file]);
    assert_eq!(flock(&["-s", "-n", "-E", "9", &file, "true"]), 0);
    assert_eq!(flock(&["-x", "-n", "-E", "9", &file, "true"]), 9);
    let theirs = inside(&machine, "flock", &["-s", &file]);
    leave(ours);
    assert_eq!(machine.code(&["run", "-s", "-n", &file, "true"]), 0);
    assert_eq!(machine.code(&["run", "-n", &file, "true"]), 75);
    let mut writer = Wrapper::start(&mut machine.distlock(&["run", &file, "echo", "mine"]));
    machine.await_waiters(&file, 1);
    leave(theirs);
    assert_eq!((writer.line().as_str(), code(writer.wait())), ("mine", 0));
    let theirs = inside(&machine, "flock", &["-x", &file]);
    assert_eq!(machine.code(&["run", "-s", "-n", &file, "true"]), 75);
    leave(theirs);
    let ours = distlock(&machine, &["run", &file]);
    assert_eq!(flock(&["-s", "-n", "-E", "9", &file, "true"]), 9);
    leave(ours);
}

#[test]
fn a_reader_behind_a_waiting_writer_waits() {
    let machine = Machine::new();
    let reader = distlock(&machine, &["run", "-s", "job"]);
    let mut writer = Wrapper::start(&mut machine.distlock(&["run", "job", "echo", "written"]));
    machine.await_waiters("job", 1);
    assert_eq!(machine.code(&["run", "-s", "-n", "job", "true"]), 75);
    leave(reader);
    assert_eq!((writer.line().as_str(), code(writer.wait())), ("written", 0));
    assert_eq!(machine.code(&["run", "-s", "-n", "job", "true"]), 0);
}

#[test]
fn a_removed_lock_file_never_gives_a_writer_beside_readers() {
    let machine = Machine::new();
    for (name, file) in [("job", "locks/job.lock"), ("./path", "path")] {
        let reader = distlock(&machine, &["run", "-s", name]);
        std::fs::remove_file(machine.path(file)).unwrap();
        assert!(!machine.is_free(name), "{name}: a new file is not a new lock");
        assert_eq!(machine.code(&["run", "-s", "-n", name, "true"]), 0, "{name}: readers go on sharing");
        leave(reader);
        assert!(machine.is_free(name));
    }
}

#[test]
fn ten_jobs_three_at_a_time() {
    let machine = Machine::new();
    // Each job counts itself in and out under a separate lock, and records how many were inside.
    let script = "flock count sh -c 'n=$(cat inside); echo $((n + 1)) > inside; echo $((n + 1)) >> seen'; sleep 0.1; \
                  flock count sh -c 'n=$(cat inside); echo $((n - 1)) > inside'; echo $DISTLOCK_SLOT >> slots";
    for name in ["job", "./path"] {
        machine.write("inside", "0\n");
        let run = || machine.distlock(&["run", "-j", "3", "-w", "60", name, "sh", "-c", script]).spawn().unwrap();
        let mut all: Vec<_> = (0..10).map(|_| run()).collect();
        assert!(all.iter_mut().all(|child| child.wait().unwrap().success()));
        let lines = |file| -> Vec<u32> {
            let text = std::fs::read_to_string(machine.path(file)).unwrap();
            std::fs::remove_file(machine.path(file)).unwrap();
            text.lines().map(|line| line.parse().unwrap()).collect()
        };
        let (seen, slots) = (lines("seen"), lines("slots"));
        assert!(seen.len() == 10 && seen.iter().all(|inside| (1..=3).contains(inside)), "{seen:?}");
        assert!(seen.contains(&2), "{seen:?}: never two at once on any machine?");
        assert!(slots.len() == 10 && slots.iter().all(|slot| *slot < 3), "{slots:?}");
    }
}

#[test]
fn a_killed_holder_frees_its_permit_and_the_others_keep_theirs() {
    let machine = Machine::new();
    let mut killed = distlock(&machine, &["run", "-j", "2", "job"]);
    let other = distlock(&machine, &["run", "-j", "2", "job"]);
    let done = machine.run(&["run", "-n", "-j", "2", "job", "true"]);
    assert!(done.code == 75 && done.stderr.contains("a semaphore of 2"), "{}", done.stderr);
    assert!(machine.run(&["ls"]).stdout.contains("2 of 2"));
    let mut next = Wrapper::start(&mut machine.distlock(&["run", "-j", "2", "job", "sh", "-c", "echo $DISTLOCK_SLOT"]));
    machine.await_waiters("job", 1);
    killed.signal(Signal::KILL);
    killed.wait();
    assert_eq!((next.line().as_str(), code(next.wait())), ("0", 0), "the slot of the killed one");
    let left = || machine.show("job")["holders"].as_array().map(Vec::len);
    eventually("one is left inside", || (left() == Some(1)).then_some(()));
    leave(other);
}

#[test]
fn a_semaphore_is_resized_while_it_is_used() {
    let machine = Machine::new();
    for name in ["job", "./path"] {
        let held = |slots| distlock(&machine, &["run", "-j", slots, "--resize", name]);
        let now = |slots| machine.code(&["run", "-n", "-j", slots, "--resize", name, "true"]);
        let (mut killed, old, last_old) = (held("3"), held("3"), held("3"));
        let new = held("4");
        assert!(name != "job" || machine.run(&["ls"]).stdout.contains("4 of 4"));
        assert_eq!([now("4"), now("3")], [75; 2], "{name}: four are inside");
        assert_eq!(machine.code(&["run", "-j", "4", name, "true"]), 64, "{name}: without --resize it has one size");
        let words = ["run", "-j", "3", "--resize", name, "sh", "-c", "echo in slot $DISTLOCK_SLOT"];
        let mut waiter = Wrapper::start(&mut machine.distlock(&words));
        machine.await_waiters(name, 1);
        assert_eq!(now("9"), 75, "{name}: a waiter is before it");

        killed.signal(Signal::KILL);
        killed.wait();
        leave(old);
        assert_eq!(
            (waiter.line().as_str(), code(waiter.wait())),
            ("in slot 0", 0),
            "{name}: fewer than three are inside"
        );
        leave(last_old);
        let (second, third, fourth) = (held("4"), held("4"), held("4"));
        assert_eq!([now("4"), now("3")], [75; 2], "{name}: it has four now");
        [new, second, third, fourth].into_iter().for_each(leave);
        assert!(machine.is_free(name));
    }
}

#[test]
fn modes_that_do_not_agree_are_refused() {
    let machine = Machine::new();
    let holder = distlock(&machine, &["run", "-j", "3", "job"]);
    for words in [&["-j", "4", "-n"][..], &["-n"], &["-s", "-n"], &["-j", "4"], &["-s"]] {
        let words: Vec<&str> = ["run"].iter().chain(words).copied().chain(["job", "true"]).collect();
        let done = machine.run(&words);
        assert!(done.code == 64 && done.stderr.contains("a semaphore of 3"), "{words:?}: {}", done.stderr);
    }
    leave(holder);
    let holder = distlock(&machine, &["run", "job"]);
    let done = machine.run(&["run", "-j", "3", "job", "true"]);
    assert!(done.code == 64 && done.stderr.contains("an exclusive lock"), "{}", done.stderr);
    leave(holder);
    assert_eq!(machine.code(&["run", "-j", "4", "job", "true"]), 0, "nobody uses it");
    assert!(machine.is_free("job"));
    for words in
        [&["-s", "-j", "2"][..], &["-s", "-x"], &["-x", "-j", "2"], &["-j", "0"], &["-j", "1025"], &["--resize"]]
    {
        for command in ["run", "hold", "acquire"] {
            let words: Vec<&str> = [command].iter().chain(words).copied().chain(["job"]).collect();
            assert_eq!(machine.code(&words), 64, "{words:?}");
        }
    }
}

#[test]
fn hold_and_acquire_take_modes_too() {
    let machine = Machine::new();
    let mut reader = Wrapper::start(machine.distlock(&["hold", "-s", "job"]).stdin(Stdio::piped()));
    assert!(reader.line().starts_with("job token "));
    let token = machine.run(&["acquire", "-s", "-n", "job"]).stdout;
    assert_eq!(machine.show("job")["holders"].as_array().map(Vec::len), Some(2));
    assert_eq!(machine.code(&["release", "job", "--token", token.trim()]), 0);
    leave(reader);
    let held = machine.run(&["acquire", "--json", "-j", "2", "pool"]).stdout;
    let held: serde_json::Value = serde_json::from_str(&held).unwrap();
    assert_eq!(held["slot"], 0);
    let mut second = Wrapper::start(machine.distlock(&["hold", "-j", "2", "pool"]).stdin(Stdio::piped()));
    assert!(second.line().ends_with(" slot 1"));
    assert_eq!(machine.code(&["run", "-n", "-j", "2", "pool", "true"]), 75);
    leave(second);
    assert_eq!(machine.code(&["release", "pool", "--token", held["token"].as_str().unwrap()]), 0);
}

#[test]
fn a_nested_request_never_deadlocks_with_its_ancestor() {
    let machine = Machine::new();
    let nested = |outer: &[&str], inner: &str| {
        let script = format!("\"$DISTLOCK\" run -w 10 {inner} job true");
        let words: Vec<&str> = ["run"].iter().chain(outer).copied().chain(["job", "sh", "-c", &script]).collect();
        machine.run(&words)
    };
    assert_eq!(nested(&["-s"], "-s").code, 0, "readers share");
    assert_eq!(nested(&["-j", "2"], "-j 2").code, 0, "there is another slot");
    assert_eq!(nested(&["-j", "1", "--resize"], "-j 2 --resize").code, 0, "there is one more");
    assert_eq!(nested(&["-j", "2", "--resize"], "-j 1").code, 64, "refused, not waited for");
    let smaller = (&["-j", "2", "--resize"][..], "-j 1 --resize");
    for (outer, inner) in [(&["-s"][..], ""), (&[], "-s"), (&["-j", "1"], "-j 1"), smaller] {
        let done = nested(outer, inner);
        assert!(done.code == 75 && done.stderr.contains("runs under it already"), "{outer:?}: {}", done.stderr);
    }
    // A writer waits for the outer reader: the inner reader behind it would deadlock.
    let script = "echo in; read x; \"$DISTLOCK\" run -s job true; echo $?";
    let words = ["run", "-s", "job", "sh", "-c", script];
    let mut outer = Wrapper::start(machine.distlock(&words).stdin(Stdio::piped()).stderr(Stdio::null()));
    assert_eq!(outer.line(), "in");
    let mut writer = Wrapper::start(&mut machine.distlock(&["run", "job", "true"]));
    machine.await_waiters("job", 1);
    drop(outer.stdin());
    assert_eq!((outer.line().as_str(), code(outer.wait()), code(writer.wait())), ("75", 0, 0));
}

#[test]
fn an_unsupported_mode_is_reported() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    for (flags, what) in [(&["-s"][..], "a shared lock"), (&["-j", "2"], "a semaphore of 2")] {
        let words: Vec<&str> = ["run"].iter().chain(flags).copied().chain(["job", "true"]).collect();
        let done = machine.run(&words);
        let refused = done.code == 78 && done.stderr.contains(what) && done.stderr.contains("redis");
        assert!(done.code == 0 || refused, "{flags:?}: {} {}", done.code, done.stderr);
    }
}
