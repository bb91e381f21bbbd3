//! A password from a variable or a file is not revealed: not by `ps`, not to the command, not in a message.

use std::fs;
use std::process::Stdio;

use distlock_testkit::servers::RedisServer;
use rustix::process::Pid;

use crate::common::Wrapper;
use crate::machine::{Machine, finish};

const PASSWORD: &str = "hunter2-s3cret";

/// Returns the arguments and variables of a process and all its descendants.
fn shown(pid: Pid) -> Vec<(String, String)> {
    let file = |pid: i32, name: &str| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default()).into_owned()
    };
    let mut pids = vec![pid.as_raw_nonzero().get()];
    let mut at = 0;
    while at < pids.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", pids[at])).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
        at += 1;
    }
    pids.into_iter().map(|pid| (file(pid, "cmdline"), file(pid, "environ"))).collect()
}

#[test]
fn ps_shows_no_password_and_the_command_has_none() {
    let server = RedisServer::options().password(PASSWORD).start();
    let machine = Machine::with_server(server.url());
    let script = "echo ready; env; read line";
    let mut wrapper = Wrapper::start(machine.distlock(&["run", "-v", "job", "sh", "-c", script]).stdin(Stdio::piped()));
    assert_eq!(wrapper.line(), "ready");
    let processes = shown(wrapper.pid());
    assert!(processes.len() > 1, "the command is one of them");
    for (words, _) in &processes {
        assert!(!words.contains(PASSWORD), "{words}");
    }
    // The processes above the command were started with the variable.
    let (_, environ) = processes.iter().find(|(words, _)| words.starts_with("sh\0")).expect("the command");
    assert!(environ.contains("DISTLOCK_TOKEN=") && !environ.contains(PASSWORD), "{environ}");
    drop(wrapper.stdin());
    let rest = wrapper.rest();
    assert!(rest.contains("DISTLOCK_URL=") && !rest.contains(PASSWORD), "{rest}");
}

#[test]
fn the_command_gets_no_password_even_from_overridden_variables() {
    let machine = Machine::new();
    let url = format!("file://{}", machine.text("other"));
    for (name, value, rest) in [
        ("DISTLOCK_PASSWORD", PASSWORD.into(), None),
        ("DISTLOCK_URL", format!("redlock://app:{PASSWORD}@a,:{PASSWORD}@b,c"), Some("redlock://app@a,b,c")),
        ("DISTLOCK_ENDPOINTS", format!("app:{PASSWORD}@a:7000,:{PASSWORD}@b"), Some("app@a:7000,b")),
        ("DISTLOCK_ENDPOINTS", format!("https://app:{PASSWORD}@a/"), Some("https://app@a/")),
        ("DISTLOCK_ENDPOINTS", format!("app:with/{PASSWORD}@a"), Some("***@a")),
    ] {
        let done = finish(machine.distlock(&["run", "--url", &url, "job", "env"]).env(name, &value));
        assert!(done.code == 0 && done.stdout.contains("DISTLOCK_TOKEN="), "{name}: {}", done.stderr);
        assert!(!done.stdout.contains(PASSWORD) && !done.stderr.contains(PASSWORD), "{name}: {}", done.stdout);
        let prefix = format!("{name}=");
        assert_eq!(done.stdout.lines().find_map(|line| line.strip_prefix(&prefix)), rest);
    }
}

#[test]
fn the_command_reaches_the_same_endpoints_with_its_own_password() {
    let server = RedisServer::options().password(PASSWORD).start();
    let machine = Machine::new();
    machine.write("password", PASSWORD);
    let endpoint = format!("default:{PASSWORD}@{}", server.address());
    let script = r#"env; "$DISTLOCK" run -n job true; echo "$?"; DISTLOCK_PASSWORD_FILE=password "$DISTLOCK" ls"#;
    let mut command = machine.distlock(&["run", "-v", "job", "sh", "-c", script]);
    let done = finish(command.env("DISTLOCK_DRIVER", "redis").env("DISTLOCK_ENDPOINTS", &endpoint));
    assert!(!done.stdout.contains(PASSWORD) && !done.stderr.contains(PASSWORD), "{} {}", done.stdout, done.stderr);
    assert!(done.stdout.contains(&format!("DISTLOCK_ENDPOINTS=default@{}\n", server.address())), "{}", done.stdout);
    let (_, nested) = done.stdout.rsplit_once("\n78\n").expect("without the password it is refused, not local");
    assert!(nested.contains("job"), "{nested}");
}

#[test]
fn the_background_holder_reveals_no_password() {
    let server = RedisServer::options().password(PASSWORD).start();
    let machine = Machine::with_server(format!("redis://{}/", server.address()));
    machine.write("password", &format!("{PASSWORD}\n"));
    let run = |words: &[&str]| finish(machine.distlock(words).env("DISTLOCK_PASSWORD_FILE", machine.path("password")));
    let token = run(&["acquire", "job"]).stdout;
    let lock: serde_json::Value = serde_json::from_str(&run(&["show", "--json", "job"]).stdout).expect("JSON");
    let pid = lock["holder"]["pid"].as_i64().expect("the lock has a holder");
    let processes = shown(Pid::from_raw(pid.try_into().unwrap()).unwrap());
    assert!(processes.iter().any(|(words, _)| words.contains("job")), "{processes:?}");
    for (words, environ) in &processes {
        assert!(!words.contains(PASSWORD) && !environ.contains(PASSWORD), "{words} {environ}");
    }
    assert_eq!(run(&["release", "job", "--token", token.trim()]).code, 0);
}

#[test]
fn no_message_contains_a_password() {
    let server = RedisServer::options().password(PASSWORD).start();
    let address = server.address();
    let urls = [
        format!("redis://:{PASSWORD}-wrong@{address}/"),
        format!("redis://:{PASSWORD}@127.0.0.1:1/"),
        format!("redis://:{PASSWORD}@{address}/?no_such_option=1"),
        format!("redis://:{PASSWORD}@{address}/"),
    ];
    for url in urls {
        let machine = Machine::with_server(url);
        for words in [&["run", "-n", "-v", "job", "true"][..], &["ls", "--json"], &["doctor"], &["show", "job"]] {
            let done = finish(&mut machine.distlock(words));
            assert!(
                !done.stdout.contains("hunter2") && !done.stderr.contains("hunter2"),
                "{} {}",
                done.stdout,
                done.stderr
            );
        }
    }
    for endpoint in
        [format!(":{PASSWORD}-wrong@{address}"), format!(":{PASSWORD}@127.0.0.1:1"), format!("{PASSWORD}@x@y")]
    {
        for words in [&["run", "-n", "-v", "job", "true"][..], &["doctor"], &["acquire", "job"]] {
            let machine = Machine::new();
            let mut command = machine.distlock(words);
            let done = finish(command.env("DISTLOCK_DRIVER", "redis").env("DISTLOCK_ENDPOINTS", &endpoint));
            assert_ne!(done.code, 0);
            assert!(!format!("{}{}", done.stdout, done.stderr).contains("hunter2"), "{} {}", done.stdout, done.stderr);
        }
    }
}
