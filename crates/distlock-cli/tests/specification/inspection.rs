//! `ls`, `show`, `watch` and `break`; completions and manual pages.

use std::fs::File;

use serde_json::Value;

use crate::common::{Wrapper, code};
use crate::machine::Machine;

#[test]
fn ls_lists_holders_and_waiters() {
    let machine = Machine::new();
    assert_eq!(machine.run(&["ls", "--json"]).stdout, "");
    assert_eq!(machine.run(&["ls"]).stdout.lines().count(), 1, "the heading");
    let holder = machine.hold("job:a");
    let _other = machine.hold("other");
    let _waiter = Wrapper::start(&mut machine.distlock(&["run", "--owner", "me", "job:a", "true"]));
    machine.await_waiters("job:a", 1);

    let text = machine.run(&["ls"]).stdout;
    assert!(text.starts_with("NAME ") && text.lines().count() == 3, "{text}");
    assert!(text.contains("job:a") && text.contains("other") && text.contains("distlock hold"), "{text}");
    assert_eq!(machine.run(&["ls", "job:"]).stdout.lines().count(), 2);

    let json = machine.run(&["ls", "--json", "job:"]).stdout;
    let lock: Value = serde_json::from_str(&json).expect("one object on one line");
    assert_eq!((&lock["name"], lock["holder"]["pid"].as_i64()), (&"job:a".into(), Some(raw(&holder))));
    assert_eq!(lock["waiters"][0]["owner"], "me");
    let token = lock["holder"]["token"].as_str().expect("text, since numbers are rounded");
    assert!(token.parse::<u64>().is_ok() && lock["holder"]["held_for_s"].is_number());
}

#[test]
fn show_prints_one_lock_held_or_free() {
    let machine = Machine::new();
    assert!(machine.run(&["show", "job"]).stdout.contains("free"));
    assert_eq!(machine.show("job")["holder"], Value::Null);
    let mut holder = Wrapper::start(
        machine
            .distlock(&["hold", "--owner", "me", "--reason", "migration", "--label", "ticket=7", "job"])
            .stdin(std::process::Stdio::piped()),
    );
    holder.line();
    let text = machine.run(&["show", "job"]).stdout;
    for part in ["job", "held by", "me", "migration", "ticket=7"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let shown = machine.show("job");
    assert_eq!((&shown["holder"]["owner"], &shown["holder"]["ttl_left_s"]), (&"me".into(), &Value::Null));
    assert!(machine.lock_files().contains(&"job.lock".to_owned()));
}

#[test]
fn watch_prints_every_change_of_holder() {
    let machine = Machine::new();
    let mut text = Wrapper::start(&mut machine.distlock(&["watch"]));
    let mut json = Wrapper::start(&mut machine.distlock(&["watch", "--json", "job"]));
    let mut holder = machine.hold("job");
    assert!(text.line().starts_with("job  held by"));
    let seen: Value = serde_json::from_str(&json.line()).unwrap();
    assert_eq!((&seen["name"], seen["holder"]["pid"].as_i64()), (&"job".into(), Some(raw(&holder))));
    drop(holder.stdin());
    assert_eq!(text.line(), "job  free");
    assert_eq!(serde_json::from_str::<Value>(&json.line()).unwrap()["holder"], Value::Null);
}

#[test]
fn history_prints_the_entries_and_reports_when_there_are_none() {
    let machine = Machine::new();
    assert_eq!(machine.code(&["run", "job", "true"]), 0);
    let none = machine.run(&["history", "job"]);
    assert!(none.code == 0 && none.stdout.is_empty() && none.stderr.contains("DISTLOCK_HISTORY=N"), "{}", none.stderr);

    let run = |label: &str| {
        let mut command = machine.distlock(&["run", "--reason", label, "job", "true"]);
        assert_eq!(code(Wrapper::start(command.env("DISTLOCK_HISTORY", "50")).wait()), 0);
    };
    run("one");
    run("two");
    let text = machine.run(&["history", "job"]).stdout;
    assert!(text.starts_with("TIME ") && text.lines().count() == 5, "{text}");
    assert!(text.contains("waited 0.") && text.contains("held 0.") && text.contains("one"), "{text}");
    let last = machine.run(&["history", "--json", "--limit", "2", "job"]).stdout;
    let entries: Vec<Value> = last.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    let whats: Vec<_> = entries.iter().map(|entry| (&entry["name"], &entry["what"])).collect();
    assert_eq!(whats, [(&"job".into(), &"acquired".into()), (&"job".into(), &"released".into())]);
    assert!(entries[1]["label"].as_str().is_some_and(|label| label.contains("two")), "{last}");
    assert!(entries[1]["held_s"].is_number() && entries[1]["waited_s"].is_null() && entries[1]["token"].is_string());
    assert_eq!(machine.code(&["history", "--limit", "0", "job"]), 64);
}

/// Any process that may write to the directory can put such a text there: it is not a valid record, and its words are
/// not shown.
#[test]
fn foreign_control_characters_do_not_reach_the_terminal() {
    const HOSTILE: &str = r"\u001b[2J\u001b[H\nforged\r\u009b31m";
    let machine = Machine::new();
    for (place, [owner, user, label]) in
        [("owner", [HOSTILE, "u", "l"]), ("user", ["o", HOSTILE, "l"]), ("label", ["o", "u", HOSTILE])]
    {
        let pid = std::process::id();
        let record =
            format!(r#""owner":"{owner}","host":"h","pid":{pid},"user":"{user}","label":"{label}","since_ms":1"#);
        let _held = write_lock(&machine, place, &record);
        let [list, shown, history] = ["ls", "show", "history"].map(|command| machine.run(&[command, place]));
        for text in [&list, &shown, &history].map(|done| format!("{}{}", done.stdout, done.stderr)) {
            assert!(!text.contains(|c: char| c.is_control() && c != '\n') && !text.contains("forged"), "{text:?}");
        }
        assert!(list.stdout.lines().count() == 2 && list.stdout.contains("not distlock"), "{}", list.stdout);
        assert_eq!(shown.stdout, format!("{place}\n  held by  a client that is not distlock\n"));
        assert_eq!(history.stdout.lines().count(), 2, "a heading and what is ours: {}", history.stdout);
    }
}

/// Writes all files of a lock by hand, with `record` as its holder, its waiter and the user who broke it. The lock is
/// held until the returned files are dropped.
fn write_lock(machine: &Machine, name: &str, record: &str) -> [File; 2] {
    let id = "0123456789abcdef0123456789abcdef";
    let entry = format!(r#"{{"token":7,"attempt":"{id}","granted_ms":1,"record":{{{record}}}}}"#);
    let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = entry.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let header = "distlock 1: the fencing counter and the holder of a lock.";
    let lock = format!("{header:63}\n{:128}{sum:016x} {:05} {entry}\n", "", entry.len());
    let sound = r#""owner":"o","host":"h","pid":1,"user":"u","since_ms":1"#;
    let line = |record: &str| format!("{{\"at_ms\":1,\"what\":\"acquired\",\"token\":1,{record}}}\n");
    let (file, session) = (format!("locks/{name}.lock"), format!("locks/{name}.q/{id}.live"));
    machine.write(&file, &lock);
    machine.write(&session, "");
    machine.write(&format!("locks/{name}.q/{:020}-{id}-{id}", 1), &format!("{{{record}}}"));
    machine.write(&format!("locks/{name}.log"), &[line(sound), line(record)].concat());
    [file, session].map(|name| {
        let file = File::open(machine.path(&name)).unwrap();
        file.lock().unwrap();
        file
    })
}

#[test]
fn break_reports_when_the_engine_cannot_and_changes_nothing() {
    let machine = Machine::new();
    let break_it = |token: &str| machine.run(&["break", "job", "--if-token", token, "--reason", "test"]);
    assert_eq!(break_it("1").code, 75, "nobody holds it");
    let mut holder = machine.hold("job");
    let other = break_it("1");
    assert!(other.code == 75 && other.stderr.contains("not 1"), "{}", other.stderr);
    let shown = machine.show("job");
    let done = break_it(shown["holder"]["token"].as_str().unwrap());
    assert_eq!(done.code, 78, "not on this engine: {}", done.stderr);
    assert!(done.stderr.contains("cannot be broken") && done.stderr.contains(&raw(&holder).to_string()));
    let json = machine.run(&["break", "--json", "job", "--if-token", "1", "--reason", "test"]).stderr;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["event"], "failed");
    assert!(!machine.is_free("job"));
    drop(holder.stdin());
    assert_eq!(code(holder.wait()), 0);
}

#[test]
fn every_shell_has_completions_and_every_command_a_manual_page() {
    let machine = Machine::new();
    let commands = [
        "run",
        "hold",
        "acquire",
        "renew",
        "release",
        "ls",
        "show",
        "watch",
        "break",
        "console",
        "doctor",
        "verify",
        "bench",
        "completions",
        "man",
    ];
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = machine.run(&["completions", shell]);
        assert!(done.code == 0 && commands.iter().all(|it| done.stdout.contains(it)), "{shell}");
        assert!(
            !done.stdout.contains("verify-worker") && !done.stdout.contains("acquire-holder"),
            "{shell}: internal commands are not completed"
        );
    }
    let program = machine.run(&["man"]).stdout;
    for command in commands {
        assert!(program.contains(&format!("distlock\\-{command}")), "{command}");
        let page = machine.run(&["man", command]);
        assert!(page.code == 0 && page.stdout.contains(&format!(".TH distlock-{command} 1")), "{command}");
        let help = machine.run(&[command, "--help"]);
        assert!(help.code == 0 && help.stdout.contains("Usage"), "{command}");
    }
}

fn raw(wrapper: &Wrapper) -> i64 {
    wrapper.pid().as_raw_nonzero().get().into()
}
