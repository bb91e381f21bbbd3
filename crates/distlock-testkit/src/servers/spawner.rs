//! The thread that starts all processes.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::program::find_program;

type Order = (Command, Sender<io::Result<Child>>);

/// Returns a command for `program` whose process the kernel kills when this process ends for any reason.
pub(crate) fn tied(program: &std::path::Path) -> Command {
    // std has no safe call for it; setpriv sets the death signal and then executes the program under the same pid.
    let mut command = Command::new(find_program("setpriv", "util-linux"));
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Starts `command` from a thread that lives as long as this process.
///
/// The kernel's death signal follows the *thread* that started a process: a process started by a test's own thread
/// would die with that test, and one from tokio's blocking pool whenever the pool shrinks.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| Mutex::new(start_thread()));
    let (answer, child) = channel();
    let sent = orders.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer));
    sent.expect("the spawner never ends");
    child.recv().expect("the spawner answers")
}

fn start_thread() -> Sender<Order> {
    let (sender, orders) = channel::<Order>();
    let serve = move || {
        for (mut command, answer) in orders {
            let _ = answer.send(command.spawn());
        }
    };
    std::thread::Builder::new().name("testkit-spawner".into()).spawn(serve).expect("a thread");
    sender
}
