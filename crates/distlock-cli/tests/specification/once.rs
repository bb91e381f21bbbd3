//! `run --once-per` and `--tick`: a command that runs once per tick, on all machines together.

use std::process::Stdio;

use distlock_testkit::servers::{EtcdServer, PostgresServer, RedisServer, RedlockNodes};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Wrapper, code, eventually};
use crate::machine::{DISTLOCK, Done, Machine};

/// How many processes ask for each tick.
const PROCESSES: usize = 20;

#[test]
fn a_command_runs_once_per_period_and_says_so() {
    let machine = Machine::new();
    let ask = |words: &[&str]| {
        let all = [&["run", "--once-per", "366d"], words, &["job", "--", "sh", "-c", "echo ran"]].concat();
        machine.run(&all)
    };
    let first = ask(&[]);
    assert_eq!((first.code, first.stdout.as_str(), first.stderr.as_str()), (0, "ran\n", ""), "success is silent");
    for (words, expected) in [(&[][..], 0), (&["-E", "9"], 9), (&["--wait", "1m"], 0)] {
        let told = ask(words);
        assert_eq!((told.code, told.stdout.as_str()), (expected, ""), "{words:?}: {}", told.stderr);
        assert!(told.stderr.starts_with("distlock: done until 20") && told.stderr.lines().count() == 1, "{told:?}");
    }
    assert_eq!(ask(&["-q"]).stderr, "");
    let json: Value = serde_json::from_str(&ask(&["--json"]).stderr).expect("JSON");
    assert_eq!((&json["event"], &json["note"]["done"]), (&"tick_done".into(), &true.into()), "{json}");
    assert!(machine.is_free("job"), "the lock itself is free");
    assert_eq!(machine.code(&["run", "--tick", "a", "job", "true"]), 0, "another tick");
}

#[test]
fn a_run_that_fails_is_repeated_as_often_as_allowed() {
    let machine = Machine::new();
    let ask = |script: &str, words: &[&str]| {
        machine.run(&[&["run", "--tick", "build 7"], words, &["job", "--", "sh", "-c", script]].concat())
    };
    for (script, expected) in [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        assert_eq!(ask(script, &[]).code, expected);
    }
    assert_eq!(machine.code(&["run", "--tick", "build 7", "job", "./missing"]), 127);
    let told = ask("echo ran", &["--attempts", "4"]);
    assert_eq!((told.code, told.stdout.as_str()), (0, ""), "{}", told.stderr);
    assert!(told.stderr.contains("--attempts") && told.stderr.contains("run 4 "), "{}", told.stderr);
    assert_eq!(ask("true", &["--attempts", "4", "-E", "75"]).code, 75);
    let shown = machine.run(&["show", "job"]).stdout;
    assert!(shown.contains("tick \"build 7\" not done, run 4 was started at 20"), "{shown}");
    let ran = ask("echo ran", &["--attempts", "5"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{}", ran.stderr);
    assert!(ask("echo ran", &["--attempts", "1"]).stderr.contains("done until"));
}

#[test]
fn show_and_ls_tell_of_ticks() {
    let machine = Machine::new();
    assert_eq!(machine.show("job")["ticks"], serde_json::json!([]));
    assert_eq!(machine.code(&["run", "--once-per", "1d", "--reason", "backup", "job", "true"]), 0);
    let shown = machine.run(&["show", "job"]).stdout;
    assert!(shown.contains("  free\n  done until 20") && shown.contains(", took "), "{shown}");
    let tick = &machine.show("job")["ticks"][0];
    let told = (&tick["done"], &tick["starts"], &tick["label"]);
    assert_eq!(told, (&true.into(), &1.into(), &"backup".into()), "{tick}");
    assert!(tick["took_s"].is_number() && tick["until_ms"].as_u64() > tick["started_ms"].as_u64(), "{tick}");
    let listed = machine.run(&["ls", "--json"]).stdout;
    let listed: Value = serde_json::from_str(&listed).expect("one lock");
    assert_eq!((&listed["name"], &listed["ticks"][0], &listed["holder"]), (&"job".into(), tick, &Value::Null));
    assert_eq!(machine.run(&["ls"]).stdout.lines().count(), 1, "a free lock is not in the table");
}

#[test]
fn a_run_under_way_is_told_or_awaited() {
    let machine = Machine::new();
    let words = ["run", "--tick", "a", "job", "--", "sh", "-c", "echo $$; read line"];
    let mut first = Wrapper::start(machine.distlock(&words).stdin(Stdio::piped()));
    first.line();
    let told = machine.run(&["run", "--tick", "a", "job", "true"]);
    assert_eq!(told.code, 0);
    assert!(told.stderr.starts_with("distlock: runs already: held by owner "), "{}", told.stderr);
    assert_eq!(machine.code(&["run", "--tick", "a", "-E", "9", "job", "true"]), 9);
    assert_eq!(machine.code(&["run", "--tick", "a", "--wait", "0.1", "job", "true"]), 75, "it waited in vain");
    let mut second =
        Wrapper::start(&mut machine.distlock(&["run", "--tick", "a", "-w", "1m", "job", "echo", "took over"]));
    machine.await_waiters("job", 1);
    drop(first.stdin());
    assert_eq!(code(first.wait()), 1, "read fails at the end of its input");
    assert_eq!((second.line().as_str(), code(second.wait())), ("took over", 0));
    assert!(machine.show("job")["ticks"][0]["done"] == true);
}

#[test]
fn a_nested_run_of_the_same_job_does_not_wait_for_itself() {
    let machine = Machine::new();
    let inner = "\"$DISTLOCK\" run --tick b -w 1m job true; test $? = 75";
    let outer = machine.run(&["run", "--tick", "a", "job", "--", "sh", "-c", inner]);
    assert_eq!(outer.code, 0, "{}", outer.stderr);
    assert!(outer.stderr.contains("runs under it already"), "{}", outer.stderr);
}

#[test]
fn bad_ticks_are_usage_errors_and_touch_nothing() {
    let machine = Machine::new();
    let rows: [&[&str]; 8] = [
        &["--once-per", "0"],
        &["--once-per", "400d"],
        &["--once-per", "often"],
        &["--tick", ""],
        &["--tick", "a\nb"],
        &["--attempts", "1"],
        &["--tick", "a", "--attempts", "0"],
        &["--once-per", "1h", "-j", "2"],
    ];
    for words in rows {
        let done = machine.run(&[&["run"], words, &["job", "touch", "ran"]].concat());
        assert_eq!(done.code, 64, "{words:?}: {}", done.stderr);
        assert!(!done.stderr.is_empty() && !machine.path("ran").exists(), "{words:?}");
    }
    assert_eq!(machine.code(&["elect", "--once-per", "1h", "job", "true"]), 64);
    assert!(machine.lock_files().is_empty());
}

#[test]
fn twenty_processes_run_a_tick_once_on_files() {
    let machine = Machine::new();
    check_crowd(&machine);
    check_crowd_without_wait(&machine);
}

#[test]
fn twenty_processes_run_a_tick_once_on_redis() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    check_crowd(&machine);
    check_crowd_without_wait(&machine);
}

#[test]
fn twenty_processes_run_a_tick_once_on_redlock() {
    let nodes = RedlockNodes::start(3);
    nodes.settle();
    let machine = Machine::with_server(nodes.url());
    check_crowd(&machine);
    // Without a wait each may find the lock taken, where the votes are split.
    check_crowd_with(&machine, &["--tick", "3", "--wait", "100s"]);
}

#[test]
fn twenty_processes_run_a_tick_once_on_etcd() {
    let server = EtcdServer::start();
    let machine = Machine::with_server(server.url());
    check_crowd(&machine);
    check_crowd_without_wait(&machine);
}

#[test]
fn twenty_processes_run_a_tick_once_on_postgresql() {
    // Each process has two connections, and one more while it waits.
    let server = PostgresServer::options().set("max_connections=100").start();
    let machine = Machine::with_server(server.url());
    assert_eq!(machine.code(&["setup"]), 0);
    check_crowd(&machine);
    check_crowd_without_wait(&machine);
}

/// Of twenty processes per tick, the wrapper of the first run is killed, and one other run succeeds; where one run is allowed,
/// none does.
fn check_crowd(machine: &Machine) {
    // The first run of a tick waits for its end.
    let script = "echo started >> \"$1\"; if [ $(wc -l < \"$1\") = 1 ]; then sleep 600; fi; echo ran >> \"$1\"";
    let ends = crowd(machine, &["--tick", "1", "--wait", "100s"], script, "1", kill_runner);
    assert_eq!(std::fs::read_to_string(machine.path("1")).unwrap(), "started\nstarted\nran\n", "{ends:?}");
    let note = note_of(machine, "1");
    assert!(note["done"] == true && note["starts"].as_u64() >= Some(2), "{note}");
    let count = |is: &dyn Fn(&Done) -> bool| ends.iter().filter(|end| is(end)).count();
    let told = count(&|end| end.code == 0 && end.stderr.contains("done until"));
    assert_eq!((count(&|end| end.code == 137), told), (1, PROCESSES - 2), "{ends:?}");

    let ends = crowd(machine, &["--tick", "2", "--attempts", "1", "--wait", "100s"], script, "2", kill_runner);
    assert_eq!(std::fs::read_to_string(machine.path("2")).unwrap(), "started\n", "at most once: {ends:?}");
    assert!(ends.iter().all(|end| end.code == 137 || end.code == 0 && end.stderr.contains("--attempts")), "{ends:?}");
}

/// Asserts that of twenty processes that do not wait, one runs the tick.
fn check_crowd_without_wait(machine: &Machine) {
    check_crowd_with(machine, &["--tick", "3"]);
}

/// Asserts that of twenty processes with these options, one runs the tick.
fn check_crowd_with(machine: &Machine, options: &[&str]) {
    let ends = crowd(machine, options, "echo ran >> \"$1\"", "3", |_, _| ());
    assert_eq!(std::fs::read_to_string(machine.path("3")).unwrap(), "ran\n", "{ends:?}");
    assert!(ends.iter().all(|end| end.code == 0), "{ends:?}");
}

/// Kills the wrapper of the first run, once it runs.
fn kill_runner(machine: &Machine, file: &str) {
    eventually("a run starts", || std::fs::read_to_string(file).ok().filter(|text| text.contains('\n')));
    let pid = eventually("the runner is shown", || machine.show("job")["holder"]["pid"].as_i64());
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).expect("a process");
    kill_process(pid, Signal::KILL).expect("the wrapper runs");
}

fn crowd(
    machine: &Machine,
    tick: &[&str],
    script: &str,
    file: &str,
    meanwhile: impl FnOnce(&Machine, &str),
) -> Vec<Done> {
    let file = machine.text(file);
    let limit = ["110", DISTLOCK, "run", "--ttl", "6s"];
    let words = [&limit, tick, &["job", "--", "sh", "-c", script, "sh", &file]].concat();
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(|| ask_until_told(machine, &words))).collect();
        meanwhile(machine, &file);
        crowd.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Runs a program to its end, which `timeout` sets a limit to; again where it did not reach the server, as on a machine that
/// is too busy to reply in time.
fn ask_until_told(machine: &Machine, words: &[&str]) -> Done {
    for _ in 0..10 {
        let output = machine.command("timeout", words).output().expect("it starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let (status, code) = (output.status, code(output.status));
        if code != 69 {
            return Done { status, code, stdout: text(output.stdout), stderr: text(output.stderr) };
        }
    }
    panic!("the server is out of reach");
}

fn note_of(machine: &Machine, tick: &str) -> Value {
    let notes = machine.show("job")["ticks"].clone();
    let mut notes = notes.as_array().expect("notes").iter();
    notes.rfind(|note| note["tick"] == format!("name:{tick}")).expect("a note").clone()
}
