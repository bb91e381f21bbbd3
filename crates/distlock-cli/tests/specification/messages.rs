//! The messages: where they go and in which format.

use serde_json::Value;

use crate::machine::{Machine, finish};

fn events(text: &str) -> Vec<String> {
    let event = |line| serde_json::from_str::<Value>(line).expect("JSON")["event"].as_str().unwrap().to_owned();
    text.lines().map(event).collect()
}

#[test]
fn every_step_is_printed_with_verbose_as_text_or_json() {
    let machine = Machine::new();
    let done = machine.run(&["run", "-v", "job", "sh", "-c", "exit 3"]);
    let said: Vec<_> = done.stderr.lines().collect();
    for (line, part) in said.iter().zip(["lock acquired", "command started", "exited with 3", "lock released"]) {
        assert!(line.starts_with("distlock: ") && line.contains(part), "{line}");
    }
    assert_eq!((said.len(), done.code), (4, 3));
    let done = machine.run(&["run", "-v", "--json", "job", "sh", "-c", "exit 3"]);
    assert_eq!(events(&done.stderr), ["acquired", "started", "ended", "released"]);
}

#[test]
fn a_busy_lock_is_one_line_or_one_object_or_nothing() {
    let machine = Machine::new();
    let _holder = machine.hold("job");
    assert_eq!(machine.run(&["run", "-n", "job", "true"]).stderr.lines().count(), 1);
    let json: Value = serde_json::from_str(&machine.run(&["run", "-n", "--json", "job", "true"]).stderr).unwrap();
    assert!(json["event"] == "failed" && json["message"].as_str().unwrap().contains("job"), "{json}");
    let quiet = machine.run(&["run", "-n", "-q", "job", "true"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (75, ""));
}

#[test]
fn status_fd_gets_every_step_and_is_not_inherited() {
    let machine = Machine::new();
    let script = "exec 5>status; exec $DISTLOCK run -q --status-fd 5 job sh -c 'echo $DISTLOCK_TOKEN; echo x >&5'";
    let done = finish(&mut machine.command("sh", &["-c", script]));
    assert_ne!(done.code, 0, "the shell's own failure");
    assert!(!done.stderr.contains("distlock:"), "{}", done.stderr);
    let status = std::fs::read_to_string(machine.path("status")).unwrap();
    assert_eq!(events(&status), ["acquired", "started", "ended", "released"]);
    let acquired: Value = serde_json::from_str(status.lines().next().unwrap()).unwrap();
    assert_eq!(acquired["token"].as_u64(), done.stdout.trim().parse().ok());
}

#[test]
fn hold_prints_the_lock_record() {
    let machine = Machine::new();
    let done = machine.run(&["hold", "--owner", "me", "job"]);
    let words: Vec<_> = done.stdout.split_whitespace().collect();
    assert!(matches!(words[..], ["job", "token", _, "owner", "me"]), "{}", done.stdout);
    let json: Value = serde_json::from_str(&machine.run(&["hold", "--json", "--owner", "me", "job"]).stdout).unwrap();
    assert_eq!((&json["name"], &json["owner"]), (&"job".into(), &"me".into()));
    assert!(json["token"].is_string() && json["engine"].as_str().unwrap().starts_with("file://"), "{json}");
}
