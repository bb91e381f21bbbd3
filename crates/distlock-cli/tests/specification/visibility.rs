//! Machines where the kernel does not list descendants: no `/proc`, or that of another PID namespace.

use std::process::Stdio;

use rustix::process::{Pid, Signal};

use crate::common::{Wrapper, await_gone, code};
use crate::machine::{Machine, finish};

/// Runs the words behind it with an empty `/proc`.
const WITHOUT_PROC: [&str; 5] = ["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"];

/// A command that ends and leaves a process in its group, which writes a file at its end.
const LEAVES_WORK: &str = "sh -c 'sleep 0.5; echo end > end' & exit 3";

fn without_proc<'a>(words: &[&'a str]) -> Vec<&'a str> {
    WITHOUT_PROC.iter().chain(words).copied().collect()
}

#[test]
fn f77_without_proc_the_program_waits_for_the_group_and_ends_needs_root() {
    let machine = Machine::new();
    let program = crate::machine::DISTLOCK;
    // Also with an orphan that ends before the command does.
    for (script, expected) in
        [(LEAVES_WORK, 3), ("(true &); sleep 0.3; echo end > end; exit 4", 4), ("echo end > end", 0)]
    {
        let words = without_proc(&[program, "run", "-o", "job", "sh", "-c", script]);
        let done = finish(&mut machine.command("unshare", &words));
        assert_eq!(done.code, expected, "{script}: {}", done.stderr);
        std::fs::remove_file(machine.path("end")).expect("the work is done");
        assert!(machine.is_free("job"));
    }
}

#[test]
fn f77_without_proc_a_killed_wrapper_ends_the_group_needs_root() {
    let machine = Machine::new();
    let script = "sleep 60 >/dev/null & echo $!; exit 0";
    let words = without_proc(&[crate::machine::DISTLOCK, "run", "--status-fd", "1", "job", "sh", "-c", script]);
    let mut wrapper = Wrapper::start(machine.command("unshare", &words).stderr(Stdio::null()));
    let (mut work, mut lingers) = (None, false);
    while work.is_none() || !lingers {
        let line = wrapper.line();
        assert!(!line.is_empty(), "it ended");
        work = work.or(line.parse().ok().and_then(Pid::from_raw));
        lingers |= line.contains("lingering");
    }
    wrapper.signal(Signal::KILL);
    assert_eq!(code(wrapper.wait()), 137);
    await_gone(work.unwrap());
}

#[test]
fn f77_the_proc_of_another_namespace_is_not_used_needs_root() {
    let machine = Machine::new();
    let script = format!("$DISTLOCK run -o job sh -c '{}'; echo $?; cat end", LEAVES_WORK.replace('\'', "'\\''"));
    let done = finish(&mut machine.command("unshare", &["--pid", "--fork", "sh", "-c", &script]));
    assert_eq!(done.stdout, "3\nend\n", "{}", done.stderr);
}
