//! One network namespace.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::servers::find_program;

/// The device that joins a namespace to the other one.
pub(super) const DEVICE: &str = "cable";

const PREFIX: &str = "dlkit-";

/// Where `ip netns` keeps namespaces by their names.
const NAMES: &str = "/run/netns";

/// One side of a [`Network`](super::Network). Dropping it removes it; processes that still run in it keep it alive.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    address: Ipv4Addr,
}

impl Namespace {
    #[track_caller]
    pub(super) fn new(address: [u8; 4]) -> Namespace {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        ip(&["netns", "add", &name]);
        Namespace { name, address: address.into() }
    }

    /// Its name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address in the network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Runs `work` on a thread inside the namespace: sockets created there belong to it for good. Threads that `work`
    /// starts are inside too, so a runtime must be created in it.
    #[track_caller]
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = File::open(Path::new(NAMES).join(&self.name)).expect("the namespace is there");
        let enter = || move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network));
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                enter().expect("root may enter a namespace");
                work()
            });
            thread.join()
        });
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Returns the program and the first arguments that start `program` inside, with the pid of the started process.
    pub fn wrap(name: &str, program: &Path) -> (PathBuf, Vec<String>) {
        let program = program.to_str().expect("a path in UTF-8");
        let words = ["netns", "exec", name, program].map(str::to_owned);
        (find_program("ip", "iproute2"), words.to_vec())
    }

    pub(super) fn up(&self) {
        self.ip(&["address", "add", &format!("{}/30", self.address), "dev", DEVICE]);
        self.ip(&["link", "set", DEVICE, "up"]);
        self.ip(&["link", "set", "lo", "up"]);
    }

    #[track_caller]
    pub(super) fn neighbour(&self, to: &str, mac: &str) {
        self.ip(&["neigh", "replace", to, "lladdr", mac, "nud", "permanent", "dev", DEVICE]);
    }

    #[track_caller]
    pub(super) fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name], arguments].concat());
    }

    pub(super) fn try_ip(&self, arguments: &[&str]) -> Result<(), String> {
        run(Command::new(find_program("ip", "iproute2")).args(["-n", &self.name]).args(arguments))
    }

    #[track_caller]
    pub(super) fn nft(&self, rules: &str) {
        let (program, words) = Namespace::wrap(&self.name, &find_program("nft", "nftables"));
        expect(run(Command::new(program).args(words).arg(rules)));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(Command::new(find_program("ip", "iproute2")).args(["netns", "del", &self.name]));
    }
}

/// Removes the namespaces of test processes that were killed.
pub(super) fn sweep() {
    for entry in fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            let _ = run(Command::new(find_program("ip", "iproute2")).args(["netns", "del", &name]));
        }
    }
}

#[track_caller]
pub(super) fn ip(arguments: &[&str]) {
    expect(run(Command::new(find_program("ip", "iproute2")).args(arguments)));
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?} (needs root): {said}")) }
}

#[track_caller]
fn expect(done: Result<(), String>) {
    done.unwrap_or_else(|error| panic!("{error}"));
}
