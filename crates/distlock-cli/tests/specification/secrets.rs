//! A password that comes by a variable or a file is shown to nobody: not by `ps`, not to the command, not in a message.

use std::fs;
use std::process::Stdio;

use distlock_testkit::servers::RedisServer;
use rustix::process::Pid;

use crate::common::Wrapper;
use crate::machine::{Machine, finish};

const PASSWORD: &str = "hunter2-s3cret";

/// The words and variables of a process and of all that it started.
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
    // What stands before the command was started with the variable.
    let (_, environ) = processes.iter().find(|(words, _)| words.starts_with("sh\0")).expect("the command");
    assert!(environ.contains("DISTLOCK_TOKEN=") && !environ.contains(PASSWORD), "{environ}");
    drop(wrapper.stdin());
    let rest = wrapper.rest();
    assert!(rest.contains("DISTLOCK_URL=") && !rest.contains(PASSWORD), "{rest}");
}

#[test]
fn a_holder_in_the_background_shows_no_password_either() {
    let server = RedisServer::options().password(PASSWORD).start();
    let machine = Machine::with_server(format!("redis://{}/", server.address()));
    machine.write("password", &format!("{PASSWORD}\n"));
    let run = |words: &[&str]| finish(machine.distlock(words).env("DISTLOCK_PASSWORD_FILE", machine.path("password")));
    let token = run(&["acquire", "job"]).stdout;
    let lock: serde_json::Value = serde_json::from_str(&run(&["show", "--json", "job"]).stdout).expect("JSON");
    let pid = lock["holder"]["pid"].as_i64().expect("somebody holds it");
    let processes = shown(Pid::from_raw(pid.try_into().unwrap()).unwrap());
    assert!(processes.iter().any(|(words, _)| words.contains("job")), "{processes:?}");
    for (words, environ) in &processes {
        assert!(!words.contains(PASSWORD) && !environ.contains(PASSWORD), "{words} {environ}");
    }
    assert_eq!(run(&["release", "job", "--token", token.trim()]).code, 0);
}

#[test]
fn no_message_shows_a_password() {
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
}
