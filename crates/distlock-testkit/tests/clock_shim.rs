//! The clock shim shifts the clocks of a real server and of distlock itself.

use std::time::Duration;

use distlock::Clock;
use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::{RedisServer, eventually};

distlock_testkit::child!();

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_servers_keys_expire_early_when_its_clock_jumps_forward_and_late_when_it_jumps_back() {
    let shim = ClockShim::new();
    let server = RedisServer::options().clock(&shim).start();
    server.command(&["SET", "k", "v", "PX", "60000"]);
    assert!(server.command(&["PTTL", "k"]).int() <= 60_000);
    shim.forward(ShiftedClock::Wall, 2 * MINUTE);
    // Redis reads its clock before each batch of commands, not at each command.
    eventually("the key to expire early", || server.command(&["GET", "k"]).is_nil().then_some(()));
    server.command(&["SET", "k", "v", "PX", "60000"]);
    shim.back(ShiftedClock::Wall, 60 * MINUTE);
    let left = eventually("the key to live longer", || {
        let left = server.command(&["PTTL", "k"]).int();
        (left > 60_000).then_some(left)
    });
    assert!((3_600_000..=3_660_000).contains(&left), "{left}");
}

#[test]
fn each_clock_of_a_server_moves_alone() {
    let shim = ClockShim::new();
    let server = RedisServer::options().clock(&shim).start();
    let time = || server.command(&["TIME"]).array()[0].int();
    let before = time();
    shim.forward(ShiftedClock::Boot, 60 * MINUTE);
    assert!(time() - before < 1800);
    shim.forward(ShiftedClock::Wall, 60 * MINUTE);
    assert!(time() - before >= 3600);
    shim.reset();
    assert!(time() - before < 1800);
}

#[test]
fn distlock_itself_sees_a_suspended_machine() {
    let shim = ClockShim::new();
    let mut child = Child::start_with(|command| {
        command.envs(shim.environment());
    });
    child.connect("mem://");
    let taken = child.lock("k", MINUTE);
    let now = Clock::system().now();
    assert!(taken.ended <= now && now.since(taken.began) < MINUTE, "not shifted yet");
    assert_eq!(child.state("k").outcome, Outcome::State("Held".into()));
    shim.forward(ShiftedClock::Boot, 2 * MINUTE);
    assert_eq!(child.state("k").outcome, Outcome::State("Lost".into()));
    assert!(child.state("k").began.since(Clock::system().now()) > MINUTE, "shifted");
}
