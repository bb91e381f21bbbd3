//! Work that goes from process to process, faster than it can be looked at.

use std::process::Stdio;

use distlock_testkit::servers::RedisServer;
use rustix::process::Signal;

use crate::common::{Wrapper, code};
use crate::machine::Machine;

/// Hands itself on so many times, after a pause of up to so long, each time to a child whose parent ends; then writes a file.
const RELAY: &str = r#"
    use POSIX ();
    my ($times, $pause) = @ARGV;
    for (1 .. $times) {
        my $child = fork;
        die unless defined $child;
        POSIX::_exit(0) if $child;
        select undef, undef, undef, rand $pause if $pause;
    }
    open my $end, ">", "end" or die;
    print $end "end";
"#;

/// Makes orphans that end at once, for ever; says so when it is told to end.
const CROWD: &str = r#"
    use POSIX ();
    exit if fork;
    $| = 1;
    my $first = $$;
    fork for 1 .. 2;
    $SIG{TERM} = $$ == $first ? sub { print "got\n" } : "IGNORE";
    print "ready\n" if $$ == $first;
    while (1) {
        my $child = fork;
        next unless defined $child;
        if ($child) { waitpid $child, 0 } else { fork; POSIX::_exit(0) }
    }
"#;

/// Whether the work was done when the program that runs it was.
fn relay(machine: &Machine, words: &[&str], pause: &str) -> bool {
    let command = ["job", "perl", "-e", RELAY, "500", pause];
    let words: Vec<_> = ["run"].iter().chain(words).chain(&command).copied().collect();
    // Its output is not waited for: the work has that too.
    let status = Wrapper::start(machine.distlock(&words).stderr(Stdio::null())).wait();
    let is_done = machine.path("end").exists();
    assert_eq!(code(status), 0);
    is_done
}

#[test]
fn f77_the_lock_is_kept_while_the_work_hands_itself_on() {
    let server = RedisServer::start();
    for pause in ["0", "0.0005", "0.001", "0.002"] {
        assert!(relay(&Machine::with_server(server.url()), &[], pause), "on a server, every {pause} s");
        assert!(relay(&Machine::new(), &["-o"], pause), "on this machine, every {pause} s");
        assert!(relay(&Machine::new(), &["-o", "--foreground"], pause), "in the foreground, every {pause} s");
    }
}

#[test]
fn f77_signals_are_not_kept_waiting_by_a_crowd_of_orphans() {
    let machine = Machine::new();
    let mut wrapper = start_crowd(&machine, &[]);
    wrapper.signal(Signal::TERM);
    loop {
        match wrapper.line().as_str() {
            "got" => break,
            line => assert!(!line.is_empty(), "it ended"),
        }
    }
    wrapper.signal(Signal::INT);
    assert_eq!(code(wrapper.wait()), 0, "as the command itself");
    assert!(machine.is_free("job"));
}

#[test]
fn f77_a_loss_is_not_kept_waiting_by_a_crowd_of_orphans() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let mut wrapper = start_crowd(&machine, &["-k", "0.2"]);
    let token = machine.show("job")["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(machine.code(&["break", "job", "--if-token", &token, "--reason", "test"]), 0);
    assert_eq!(code(wrapper.wait()), 79);
}

/// A wrapper whose command has ended, and left a crowd.
fn start_crowd(machine: &Machine, words: &[&str]) -> Wrapper {
    let command = ["job", "perl", "-e", CROWD];
    let words: Vec<_> = ["run", "--status-fd", "1"].iter().chain(words).chain(&command).copied().collect();
    let mut wrapper = Wrapper::start(machine.distlock(&words).stderr(Stdio::null()));
    let (mut is_ready, mut lingers) = (false, false);
    while !is_ready || !lingers {
        let line = wrapper.line();
        assert!(!line.is_empty(), "it ended");
        is_ready |= line == "ready";
        lingers |= line.contains("lingering");
    }
    wrapper
}
