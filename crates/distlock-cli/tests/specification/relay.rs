//! Work that passes from process to process faster than the processes can be listed.

use std::process::Stdio;

use distlock_testkit::servers::RedisServer;
use rustix::process::Signal;

use crate::common::{Wrapper, code};
use crate::machine::Machine;

/// Passes itself on a number of times after a random pause, each time to a child whose parent ends; then writes a
/// file.
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

/// Creates orphans that end at once, forever; prints a line when it is signalled to end.
const ORPHAN_MAKER: &str = r#"
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

/// Whether the work was done when the program that runs it ended.
fn relay(machine: &Machine, words: &[&str], pause: &str) -> bool {
    let command = ["job", "perl", "-e", RELAY, "500", pause];
    let words: Vec<_> = ["run"].iter().chain(words).chain(&command).copied().collect();
    // Does not wait for the end of stdout: the work has it too.
    let status = Wrapper::start(machine.distlock(&words).stderr(Stdio::null())).wait();
    let is_done = machine.path("end").exists();
    assert_eq!(code(status), 0);
    is_done
}

#[test]
fn f77_the_lock_is_held_while_the_work_passes_to_new_processes() {
    let server = RedisServer::start();
    for pause in ["0", "0.0005", "0.001", "0.002"] {
        assert!(relay(&Machine::with_server(server.url()), &[], pause), "on a server, every {pause} s");
        assert!(relay(&Machine::new(), &["-o"], pause), "on this machine, every {pause} s");
        assert!(relay(&Machine::new(), &["-o", "--foreground"], pause), "in the foreground, every {pause} s");
    }
}

#[test]
fn f77_signals_are_handled_while_many_orphans_end() {
    let machine = Machine::new();
    let mut wrapper = start_orphan_maker(&machine, &[]);
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
fn f77_a_loss_is_handled_while_many_orphans_end() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let mut wrapper = start_orphan_maker(&machine, &["-k", "0.2"]);
    let token = machine.show("job")["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(machine.code(&["break", "job", "--if-token", &token, "--reason", "test"]), 0);
    assert_eq!(code(wrapper.wait()), 79);
}

/// Starts a wrapper whose command has ended and left a process that keeps creating orphans.
fn start_orphan_maker(machine: &Machine, words: &[&str]) -> Wrapper {
    let command = ["job", "perl", "-e", ORPHAN_MAKER];
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
