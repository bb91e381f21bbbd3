//! Instances of the example `orders` as processes, the engine and the database that they share.
#![allow(missing_docs)]

mod engine;
mod http;
mod program;

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use distlock_testkit::servers::{Directory, Process, eventually};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use engine::Engine;
pub(crate) use http::{Pending, Reply};
use program::program;

/// Longer than any test runs.
pub(crate) const FOREVER: &str = "takes_ms=600000";

/// What the instances share.
pub(crate) struct Shop<'a> {
    engine: &'a Engine,
    directory: Directory,
    /// The lease of the locks, as the file of settings has it.
    lease: &'static str,
    grace_s: u32,
}

impl<'a> Shop<'a> {
    /// Returns a shop whose leases end soon for a test, and late for a machine that is busy.
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Shop { engine, directory: Directory::new(), lease: "8s", grace_s: 0 }
    }

    pub(crate) fn lease(self, lease: &'static str) -> Self {
        Shop { lease, ..self }
    }

    pub(crate) fn grace_s(self, grace_s: u32) -> Self {
        Shop { grace_s, ..self }
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.directory.path().join("orders.sqlite")
    }

    /// Starts an instance and waits until it listens. It has its settings from a file, and those of the engine from a
    /// variable.
    pub(crate) fn start(&self, name: &str) -> Instance {
        let (database, lease, grace_s) = (self.database(), self.lease, self.grace_s);
        let settings = format!(
            "name = {name:?}\nlisten = \"127.0.0.1:0\"\ndatabase = {database:?}\nexports = 3\nsummary_every_s = 3600\n\
             grace_s = {grace_s}\n[locks]\ndefault_ttl = {lease:?}\n"
        );
        let file = self.directory.write(&format!("{name}.toml"), settings);
        let log = self.directory.path().join(format!("{name}.log"));
        let started = Process::start(program(), &log, |command| {
            command.arg(file).env("DISTLOCK_URL", self.engine.url());
        });
        let mut process = started.expect("the example starts");
        let address = eventually("an instance to listen", || {
            let log = process.log();
            assert!(process.ended().is_none(), "the instance ended:\n{log}");
            log.split_once("listening on ")?.1.split_once('\n')?.0.parse().ok()
        });
        Instance { process, address }
    }

    /// Starts two instances of which the first, `a`, leads.
    pub(crate) fn start_two(&self) -> (Instance, Instance) {
        let a = self.start("a");
        a.expect_leader("a");
        (a, self.start("b"))
    }
}

/// A process of the example. Dropping it kills it.
pub(crate) struct Instance {
    process: Process,
    address: SocketAddr,
}

impl Instance {
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path).reply()
    }

    pub(crate) fn post(&self, path: &str) -> Reply {
        self.send("POST", path).reply()
    }

    pub(crate) fn send(&self, method: &str, path: &str) -> Pending {
        Pending::send(self.address, method, path).expect("the instance accepts requests")
    }

    /// Sends a request that goes on until `is_begun`. A busy machine may make a claim too late, which is 503: then the
    /// request is sent again.
    pub(crate) fn begin(&self, path: &str, is_begun: impl Fn() -> bool) -> Pending {
        let mut pending = self.send("POST", path);
        eventually(format_args!("the work on {path}"), || {
            if is_begun() {
                return Some(());
            }
            if pending.has_ended() {
                pending = self.send("POST", path);
            }
            None
        });
        pending
    }

    /// Begins work on an order that does not end by itself; `witness` sees that this instance holds its lock. Returns its
    /// fencing token, too.
    pub(crate) fn begin_order(&self, order: u32, state: &str, witness: &Instance) -> (Pending, u64) {
        let token = Cell::new(None);
        let is_begun = || {
            let holder = witness.get(&format!("/orders/{order}")).body["holder"].take();
            let is_ours = holder["record"]["pid"] == self.pid();
            token.set(holder["token"].as_str().and_then(|token| token.parse().ok()).filter(|_| is_ours));
            token.get().is_some()
        };
        let pending = self.begin(&format!("/orders/{order}?state={state}&{FOREVER}"), is_begun);
        (pending, token.get().expect("seen above"))
    }

    /// Repeats a request until it is accepted, and returns the token that the order was written with.
    pub(crate) fn expect_change(&self, order: u32, state: &str) -> u64 {
        let path = format!("/orders/{order}?state={state}");
        let written =
            eventually(format_args!("POST {path}"), || Some(self.post(&path)).filter(|reply| reply.status == 200));
        written.body["token"].as_str().and_then(|token| token.parse().ok()).expect("a token")
    }

    /// Returns the state of an order and the token that it was written with, if it was written.
    pub(crate) fn order(&self, order: u32) -> Option<(String, u64)> {
        let path = format!("/orders/{order}");
        let mut reply = eventually(&path, || Some(self.get(&path)).filter(|reply| reply.status == 200));
        let order = reply.body["order"].take();
        Some((order["state"].as_str()?.to_owned(), order["token"].as_str()?.parse().ok()?))
    }

    /// Waits until `name` leads and has written the summary.
    pub(crate) fn expect_leader(&self, name: &str) {
        eventually(format_args!("the leader {name}"), || {
            let leads = self.get("/leader").body["value"] == name;
            (leads && self.get("/summary").body["leader"] == name).then_some(())
        });
    }

    /// Returns whether it accepts connections.
    pub(crate) fn accepts(&self) -> bool {
        std::net::TcpStream::connect(self.address).is_ok()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, Signal::TERM).expect("it runs");
    }

    /// Waits until it has ended well.
    pub(crate) fn expect_end(mut self) {
        let ended = eventually("an instance to end", || self.process.ended());
        assert!(ended.success(), "{ended}: {}", self.process.log());
    }
}

/// Its process, to kill, freeze and thaw.
impl Deref for Instance {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Instance {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
