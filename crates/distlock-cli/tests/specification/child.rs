//! What the command inherits: stdin and stdout, its environment, its descriptors.

use std::io::Write;
use std::process::Stdio;

use distlock_testkit::servers::RedisServer;

use crate::common::{Wrapper, code};
use crate::machine::{Machine, finish};

#[test]
fn stdin_and_stdout_belong_to_the_command() {
    let machine = Machine::new();
    let mut wrapper = Wrapper::start(machine.distlock(&["run", "-v", "job", "cat"]).stdin(Stdio::piped()));
    wrapper.stdin().write_all(b"through\0and through").unwrap();
    assert_eq!(wrapper.rest(), "through\0and through");
    assert_eq!(code(wrapper.wait()), 0);
}

#[test]
fn the_command_gets_the_lock_variables_and_no_password() {
    let machine = Machine::new();
    let mut command = machine.distlock(&["run", "--owner", "me", "job", "env"]);
    // Variables that an outer lock with a lease would have set.
    let done = finish(command.env("DISTLOCK_TTL_MS", "30000").env("DISTLOCK_LOCK_NAME", "outer"));
    let value = |name: &str| {
        let prefix = format!("{name}=");
        done.stdout.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
    };
    assert_eq!(value("DISTLOCK_LOCK_NAME").as_deref(), Some("job"));
    assert_eq!(value("DISTLOCK_OWNER").as_deref(), Some("me"));
    assert_eq!(value("DISTLOCK_HELD").as_deref(), Some("1"));
    assert_eq!(value("DISTLOCK_TTL_MS"), None, "a lock of this machine has no lease");
    let first: u64 = value("DISTLOCK_TOKEN").unwrap().parse().expect("a number");
    let next: u64 = machine.run(&["run", "job", "-c", "echo $DISTLOCK_TOKEN"]).stdout.trim().parse().unwrap();
    assert!(next > first, "tokens rise: {first}, {next}");

    let url = format!("file://{}", machine.text("other"));
    let mut command = machine.distlock(&["run", "job", "env"]);
    let done = finish(command.env("DISTLOCK_URL", &url).env("DISTLOCK_CHAIN", "junk").env("SECRET", "kept"));
    assert!(done.stdout.contains(&format!("DISTLOCK_URL={url}\n")), "{}", done.stdout);
    assert!(done.stdout.contains("SECRET=kept\n"), "the rest of the environment is the caller's");
}

#[test]
fn the_command_inherits_the_lock_unless_close_is_given() {
    let machine = Machine::new();
    // A daemon in its own session is not killed with the wrapper.
    let script = "setsid sh -c 'echo $$; exec sleep 60 >/dev/null' & wait";
    for (option, stays_locked) in [(None, true), (Some("-o"), false)] {
        let words = ["run"].into_iter().chain(option).chain(["job", "sh", "-c", script]);
        let mut wrapper = Wrapper::start(&mut machine.distlock(&words.collect::<Vec<_>>()));
        let daemon = wrapper.line_pid();
        wrapper.signal(rustix::process::Signal::KILL);
        wrapper.wait();
        // The shell is killed too, and its copy of stdout is closed.
        assert_eq!(wrapper.rest(), "");
        if stays_locked {
            assert!(!machine.is_free("job"), "it fails towards blocked");
            rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
            machine.await_free("job");
        } else {
            machine.await_free("job");
            rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        }
    }
}

#[test]
fn the_command_inherits_only_the_locks_descriptor() {
    let machine = Machine::new();
    let script = "for fd in /proc/$$/fd/*; do readlink $fd; done";
    for (option, expected) in [(None, vec!["job.lock"]), (Some("-o"), vec![])] {
        let words = ["run", "--status-fd", "2"].into_iter().chain(option).chain(["job", "sh", "-c", script]);
        let done = machine.run(&words.collect::<Vec<_>>());
        let files: Vec<_> = done
            .stdout
            .lines()
            .filter(|line| line.contains("/locks/"))
            .filter_map(|it| it.rsplit('/').next())
            .collect();
        assert_eq!(files, expected);
        let others = done.stdout.lines().filter(|line| line.contains("anon_inode")).count();
        assert_eq!(others, 0, "{}", done.stdout);
    }
}

#[test]
fn a_nested_run_of_the_same_lock_fails_without_deadlock() {
    let machine = Machine::new();
    let rows = [
        ("$DISTLOCK run job true", 75),
        ("$DISTLOCK run other -- $DISTLOCK run job true", 75),
        ("$DISTLOCK hold job", 75),
        ("$DISTLOCK acquire job", 75),
        ("$DISTLOCK run -E 9 job true", 9),
        ("$DISTLOCK run other true", 0),
    ];
    for (script, expected) in rows {
        let done = machine.run(&["run", "job", "-c", script]);
        assert_eq!(done.code, expected, "{script}: {}", done.stderr);
        assert_eq!(done.stderr.contains("runs under it already"), expected != 0, "{script}: {}", done.stderr);
    }
    // The command's URL has no password, and names the same engine.
    let redis = RedisServer::options().password("s3cret").start();
    let there = Machine::with_server(redis.url());
    there.write("password", "s3cret");
    let mut outer = there.distlock(&["run", "job", "-c", "$DISTLOCK run --wait 60 job true"]);
    let done = finish(outer.env("DISTLOCK_PASSWORD_FILE", there.text("password")));
    assert!(done.code == 75 && done.stderr.contains("runs under it already"), "{}", done.stderr);
    // A variable that outlives its hold does not count as a held lock.
    let stale = machine.run(&["run", "job", "-c", "echo $DISTLOCK_CHAIN"]).stdout;
    let done = finish(machine.distlock(&["run", "job", "true"]).env("DISTLOCK_CHAIN", stale.trim()));
    assert_eq!(done.code, 0, "{}", done.stderr);
}
