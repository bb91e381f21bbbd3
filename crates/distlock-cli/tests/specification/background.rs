//! `acquire`, `renew`, `release`: locks held by a background process.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Wrapper, await_gone, await_state, code, eventually};
use crate::machine::{Machine, finish};

/// Acquires the lock. Returns the token and the process id of the holder.
fn acquire(machine: &Machine, words: &[&str]) -> (String, Pid) {
    let done = machine.run(&[&["acquire"], words].concat());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let token = done.stdout.trim().to_owned();
    assert_eq!(done.stdout, format!("{token}\n"), "one word");
    let pid = machine.show(words[words.len() - 1])["holder"]["pid"].as_i64().expect("the lock has a holder");
    (token, Pid::from_raw(pid.try_into().unwrap()).unwrap())
}

/// Only the lock's own file, which keeps the counter, and its anchor remain.
fn assert_nothing_left(machine: &Machine) {
    assert_eq!(machine.lock_files(), ["job.lock"]);
}

#[test]
fn a_lock_is_held_from_acquire_to_release() {
    let machine = Machine::new();
    let (token, holder) = acquire(&machine, &["--owner", "me", "--reason", "deploy", "job"]);
    let shown = machine.show("job");
    assert_eq!((&shown["holder"]["owner"], &shown["holder"]["label"]), (&"me".into(), &"deploy".into()));
    assert_eq!(token.split('.').next(), shown["holder"]["token"].as_str(), "the fencing token comes first");
    assert!(!machine.is_free("job"));
    let done = machine.run(&["renew", "job", "--token", &token]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""), "success is silent");
    let done = machine.run(&["release", "job", "--token", &token]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
    // At once, without a delay.
    assert!(machine.is_free("job"));
    assert_nothing_left(&machine);
    await_gone(holder);
}

#[test]
fn json_output_has_the_documented_fields() {
    let machine = Machine::new();
    let object = |words: &[&str]| -> Value { serde_json::from_str(&machine.run(words).stdout).expect("one object") };
    let held = object(&["acquire", "--json", "--ttl", "20s", "job"]);
    assert_eq!((&held["name"], held["ttl_s"].as_f64()), (&"job".into(), Some(20.0)));
    assert_eq!(held["fencing_token"], machine.show("job")["holder"]["token"]);
    let token = held["token"].as_str().unwrap();
    let renewed = object(&["renew", "--json", "job", "--token", token]);
    assert_eq!(renewed["ttl_s"].as_f64(), Some(20.0), "as long as before");
    let renewed = object(&["renew", "--json", "--ttl", "1m", "job", "--token", token]);
    assert_eq!(renewed["ttl_s"].as_f64(), Some(60.0));
    assert_eq!(object(&["release", "--json", "job", "--token", token])["held"], false);
}

#[test]
fn renew_and_release_of_a_released_lock_are_79() {
    let machine = Machine::new();
    let (token, _) = acquire(&machine, &["job"]);
    assert_eq!(machine.code(&["release", "job", "--token", &token]), 0);
    let (next, _) = acquire(&machine, &["job"]);
    for command in ["renew", "release"] {
        let done = machine.run(&[command, "job", "--token", &token]);
        assert!(done.code == 79 && done.stderr.contains("no longer held"), "{}", done.stderr);
    }
    assert!(!machine.is_free("job"), "the next one's hold was not touched");
    assert_eq!(machine.code(&["release", "job", "--token", &next]), 0);
}

#[test]
fn only_the_right_token_for_the_right_lock_is_accepted() {
    let machine = Machine::new();
    let (token, _) = acquire(&machine, &["job"]);
    let (other, _) = acquire(&machine, &["other"]);
    let (fencing, secret) = token.split_once('.').unwrap();
    let last = if secret.ends_with('0') { '1' } else { '0' };
    let rows = [
        ("job", format!("{fencing}.{}{last}", &secret[..31]), 79),
        ("job", format!("{}.{secret}", fencing.parse::<u64>().unwrap() + 1), 79),
        ("job", format!("{fencing}.{}", "0".repeat(32)), 79),
        ("job", other.clone(), 79),
        ("other", token.clone(), 79),
        ("job", fencing.to_owned(), 64),
        ("job", format!("{fencing}.{}", &secret[..31]), 64),
        ("job", format!("{fencing}.../../../{}", &secret[..23]), 64),
        ("job", String::new(), 64),
    ];
    for (name, token, expected) in rows {
        for command in ["renew", "release"] {
            let done = machine.run(&[command, name, "--token", &token]);
            assert_eq!(done.code, expected, "{command} {name} {token}: {}", done.stderr);
            assert!(!done.stderr.contains(&secret[16..]), "the secret is not repeated: {}", done.stderr);
        }
    }
    assert!(!machine.is_free("job") && !machine.is_free("other"));
    for (name, token) in [("job", token), ("other", other)] {
        assert_eq!(machine.code(&["release", name, "--token", &token]), 0);
    }
}

#[test]
fn a_lease_without_renewal_ends_and_frees_the_lock() {
    let machine = Machine::new();
    let start = std::time::Instant::now();
    let (token, holder) = acquire(&machine, &["--ttl", "0.5", "job"]);
    assert_eq!(machine.code(&["run", "job", "true"]), 0, "the waiter gets it");
    assert!(start.elapsed() >= std::time::Duration::from_millis(500));
    await_gone(holder);
    for command in ["renew", "release"] {
        assert_eq!(machine.code(&[command, "job", "--token", &token]), 79);
    }
    assert_nothing_left(&machine);
}

#[test]
fn a_renewal_starts_a_new_lease_of_the_given_length() {
    let machine = Machine::new();
    let (token, holder) = acquire(&machine, &["--ttl", "1h", "job"]);
    assert_eq!(machine.code(&["renew", "job", "--token", &token, "--ttl", "0.3"]), 0, "also a shorter one");
    await_gone(holder);
    assert!(machine.is_free("job"));

    let (token, holder) = acquire(&machine, &["--ttl", "3", "job"]);
    assert_eq!(machine.code(&["renew", "job", "--token", &token, "--ttl", "1h"]), 0);
    // Past the end of the first lease.
    std::thread::sleep(std::time::Duration::from_millis(3_100));
    assert!(!machine.is_free("job"));
    assert_eq!(machine.code(&["release", "job", "--token", &token]), 0);
    await_gone(holder);
}

#[test]
fn a_holder_that_was_stopped_past_its_lease_does_not_renew_it() {
    let machine = Machine::new();
    let (token, holder) = acquire(&machine, &["--ttl", "2", "job"]);
    kill_process(holder, Signal::STOP).unwrap();
    await_state(holder, 'T');
    let mut late = Wrapper::start(machine.distlock(&["renew", "job", "--token", &token]).stderr(Stdio::null()));
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    kill_process(holder, Signal::CONT).unwrap();
    assert_eq!(code(late.wait()), 79);
    await_gone(holder);
    machine.await_free("job");
}

#[test]
fn a_signal_ends_the_holder_and_no_files_are_left() {
    let machine = Machine::new();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (token, holder) = acquire(&machine, &["job"]);
        kill_process(holder, signal).unwrap();
        await_gone(holder);
        assert!(machine.is_free("job"), "{signal:?}");
        assert_nothing_left(&machine);
        assert_eq!(machine.code(&["release", "job", "--token", &token]), 79);
    }
}

#[test]
fn the_socket_of_a_killed_holder_is_removed() {
    let machine = Machine::new();
    let (token, holder) = acquire(&machine, &["job"]);
    kill_process(holder, Signal::KILL).unwrap();
    machine.await_free("job");
    assert_eq!(machine.lock_files().len(), 3, "the lock, the directory and the socket");
    let done = machine.run(&["release", "job", "--token", &token]);
    assert!(done.code == 79 && done.stderr.contains("killed"), "{}", done.stderr);
    assert_nothing_left(&machine);

    // Or by the next holder, when the socket is too old to be one that is about to listen.
    let (_, holder) = acquire(&machine, &["job"]);
    kill_process(holder, Signal::KILL).unwrap();
    machine.await_free("job");
    let files = machine.lock_files();
    let stale = files.iter().find(|name| name.contains("holders/")).expect("a socket");
    finish(&mut machine.command("touch", &["-d", "2 minutes ago", &format!("locks/{stale}")]));
    let (token, _) = acquire(&machine, &["job"]);
    assert!(!machine.lock_files().contains(stale));
    assert_eq!(machine.code(&["release", "job", "--token", &token]), 0);
    assert_nothing_left(&machine);
}

#[test]
fn the_holder_is_independent_of_its_caller() {
    let machine = Machine::new();
    // Like a script: with descriptors of its own open, under another lock, and reading the token.
    let script = "exec 7>seven; token=$($DISTLOCK acquire job) && echo $token && cat /proc/self/stat >/dev/null";
    let done = finish(&mut machine.command(crate::machine::DISTLOCK, &["run", "outer", "-c", script]));
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(machine.is_free("outer"), "it does not keep the lock under which it was started");
    let pid = machine.show("job")["holder"]["pid"].as_i64().unwrap();
    let entry = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).unwrap().to_str().unwrap().to_owned();
    assert_eq!(["fd/0", "fd/1", "fd/2"].map(entry), ["/dev/null"; 3]);
    assert_eq!(entry("cwd"), "/");
    for open in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = std::fs::read_link(open.unwrap().path()).unwrap_or_default();
        assert!(!target.ends_with("seven") && !target.ends_with("outer.lock"), "{target:?}");
    }
    let session = rustix::process::getsid(Pid::from_raw(pid.try_into().unwrap())).unwrap();
    assert_eq!(i64::from(session.as_raw_nonzero().get()), pid, "a session of its own");
    assert_eq!(machine.code(&["release", "job", "--token", done.stdout.trim()]), 0);
}

#[test]
fn only_this_user_can_reach_the_socket() {
    let machine = Machine::new();
    let (token, _) = acquire(&machine, &["job"]);
    let files = machine.lock_files();
    let socket = files.iter().find(|name| name.contains("holders/")).unwrap();
    let (directory, _) = socket.split_once('/').unwrap();
    let mode = |name: &str| machine.path("locks").join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(directory), mode(socket)), (0o700, 0o600));
    let secret = token.split_once('.').unwrap().1;
    assert!(!socket.contains(&secret[16..]), "its name does not give the token away");
    assert_eq!(machine.code(&["release", "job", "--token", &token]), 0);

    // A directory that other users may enter is not used, and the lock is not taken.
    std::fs::create_dir(machine.path("locks").join(directory)).unwrap();
    std::fs::set_permissions(machine.path("locks").join(directory), PermissionsExt::from_mode(0o777)).unwrap();
    let done = machine.run(&["acquire", "job"]);
    assert!(done.code == 73 && done.stderr.contains("other users may enter"), "{} {}", done.code, done.stderr);
    assert!(machine.is_free("job"));
}

#[test]
fn a_killed_acquire_leaves_no_hold_and_no_queue_entry() {
    let machine = Machine::new();
    let mut holder = machine.hold("job");
    let mut waiter = Wrapper::start(&mut machine.distlock(&["acquire", "job"]));
    machine.await_waiters("job", 1);
    waiter.signal(Signal::KILL);
    waiter.wait();
    machine.await_waiters("job", 0);
    // Also when the lock is granted after the caller died.
    let mut waiter = Wrapper::start(&mut machine.distlock(&["acquire", "job"]));
    machine.await_waiters("job", 1);
    waiter.signal(Signal::STOP);
    await_state(waiter.pid(), 'T');
    drop(holder.stdin());
    holder.wait();
    eventually("the holder has it", || (!machine.is_free("job")).then_some(()));
    waiter.signal(Signal::KILL);
    waiter.wait();
    machine.await_free("job");
    assert_nothing_left(&machine);
}

#[test]
fn a_lock_whose_token_cannot_be_printed_is_released() {
    let machine = Machine::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = machine.distlock(&["acquire", "-q", "job"]).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(70));
    assert!(machine.is_free("job"));
    assert_nothing_left(&machine);
}

#[test]
fn a_lost_lock_is_not_renewed() {
    let machine = Machine::new();
    let (token, holder) = acquire(&machine, &["job"]);
    for file in ["locks/job.lock", "locks/job.held"] {
        std::fs::remove_file(machine.path(file)).unwrap();
    }
    assert_eq!(machine.code(&["renew", "job", "--token", &token]), 79);
    await_gone(holder);
}

/// The holder leaves the directory in which it was started, but a relative name still means the same file.
#[test]
fn a_relative_name_is_resolved_before_the_holder_leaves_the_directory() {
    let machine = Machine::new();
    let name = format!("relative-{}", std::process::id());
    let relative = format!("./{name}");
    let run = |words: &[&str]| finish(machine.distlock(words).env("DISTLOCK_HISTORY", "9"));
    let acquired = run(&["acquire", &relative]);
    assert_eq!(acquired.code, 0, "{}", acquired.stderr);
    let token = acquired.stdout.trim();
    let holder = machine.show(&relative)["holder"]["pid"].as_i64().expect("a process holds it");
    assert_eq!(run(&["renew", &relative, "--token", token]).code, 0);
    assert_eq!(run(&["release", &relative, "--token", token]).code, 0);
    // The holder writes the history after it has answered.
    await_gone(Pid::from_raw(holder.try_into().unwrap()).unwrap());
    // A file that a holder in the wrong directory would create; this test must not leave it either.
    let astray = std::path::Path::new("/").join(format!("{name}.distlock.log"));
    let went_astray = astray.exists();
    let _ = std::fs::remove_file(&astray);
    assert!(!went_astray, "{}", astray.display());
    let told = run(&["history", "--json", &relative]).stdout;
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(told.iter().map(|entry| entry["what"].as_str().unwrap()).collect::<Vec<_>>(), ["acquired", "released"]);
    let entries = std::fs::read_dir(machine.path(".")).unwrap();
    let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.retain(|file| file.starts_with(&name));
    left.sort();
    assert_eq!(left, [name.clone(), format!("{name}.distlock.log")], "all of it beside the lock's file");
}
