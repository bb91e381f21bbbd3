//! Other processes: this program again, and flock(1).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;
use crate::types::mode::Mode;

const ORDERS: &str = "DISTLOCK_TEST_SECOND_PROCESS";

/// This program again, which takes one lock and keeps it until told otherwise.
pub(super) struct Second {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Second {
    pub(super) fn start(dir: &Path, key: &str, owner: &str) -> Second {
        Second::start_in(Mode::Exclusive, dir, key, owner)
    }

    pub(super) fn start_in(mode: Mode, dir: &Path, key: &str, owner: &str) -> Second {
        let mode = serde_json::to_string(&mode).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["engines::file::tests::second::a_second_process_takes_its_lock", "--exact", "--nocapture"])
            .env(ORDERS, format!("{}\n{key}\n{owner}\n{mode}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Second { child, says }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns once it stands in the queue.
    pub(super) fn waits(&mut self) {
        self.word("waits");
    }

    /// Its token, once it has the lock.
    pub(super) fn granted(&mut self) -> u64 {
        self.word("granted").parse().unwrap()
    }

    /// Returns once it has released the lock and ended.
    pub(super) fn release(&mut self) {
        drop(self.child.stdin.take());
        self.word("released");
        assert!(self.child.wait().unwrap().success());
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn word(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(&format!("@{wanted} ")) {
                return rest.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the second process ended without saying {wanted}");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// flock(1).
pub(super) struct Shell(Child);

impl Shell {
    /// Returns once it holds the lock.
    pub(super) fn holding(path: &Path) -> Shell {
        let mut child = Command::new("flock")
            .arg("--no-fork")
            .arg(path)
            .args(["sh", "-c", "echo held; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("flock(1), from the package util-linux");
        let mut line = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"held\n");
        Shell(child)
    }

    pub(super) fn can_lock(path: &Path) -> bool {
        let tried = Command::new("flock").arg("-n").arg(path).arg("true").status();
        tried.expect("flock(1), from the package util-linux").success()
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn end(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.end();
    }
}

#[tokio::test]
async fn a_second_process_takes_its_lock() {
    let Ok(orders) = std::env::var(ORDERS) else {
        // Without orders it is the test of its own messenger.
        let scratch = Scratch::new();
        let mut second = Second::start(scratch.path(), "a", "second");
        assert!(second.granted() > 0);
        return second.release();
    };
    let [dir, key, owner, mode] = orders.split('\n').collect::<Vec<_>>()[..] else { panic!("orders: {orders}") };
    let engine = FileBackend::host(dir);
    engine.attach(Attachment::standalone(&Handle::current()));
    let claim = claim(&Key::new(key).unwrap(), owner);
    let record = Record::clone(&claim.record).with_mode(serde_json::from_str(mode).unwrap());
    let claim = Claim { record: Arc::new(record), ..claim };
    if matches!(engine.claim(&claim).await.unwrap(), Claimed::Busy(_)) {
        say("waits", "");
    }
    let grant = acquire(&engine, &claim).await;
    say("granted", &grant.token.to_string());
    let _ = std::io::stdin().read(&mut [0]);
    assert_eq!(engine.release(&claim).await.unwrap(), Release::Released);
    say("released", "");
}

/// Straight to the descriptor: what the test harness captures would come too late.
fn say(word: &str, more: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("@{word} {more}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}
