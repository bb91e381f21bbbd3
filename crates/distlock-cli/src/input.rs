//! Detects the end of stdin.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, read};
use rustix::stdio::stdin;
use rustix::termios::tcgetpgrp;
use tokio::sync::oneshot;

/// How long to wait before reading again from a terminal that another job has.
const PAUSE: Duration = Duration::from_millis(500);

/// Resolves at the end of stdin. Never resolves where stdin cannot be read, as nohup(1) leaves it.
///
/// Reads on a thread: there is no other way to wait for a file or a terminal. Call this after the signals are blocked:
/// reading from the terminal in the background must fail, not stop the process.
pub(crate) fn end() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        if can_be_read(stdin()) {
            read_to_end(stdin());
            let _ = ended.send(());
        } else {
            // Keeps `ended`: dropping it would resolve the receiver.
            loop {
                std::thread::park();
            }
        }
    });
    end
}

fn can_be_read(input: BorrowedFd<'_>) -> bool {
    fcntl_getfl(input).is_ok_and(|flags| flags & OFlags::ACCMODE != OFlags::WRONLY)
}

fn read_to_end(input: BorrowedFd<'_>) {
    let mut buffer = [0; 4096];
    loop {
        // Another process that shares stdin may have made it non-blocking.
        let _ = poll(&mut [PollFd::new(&input, PollFlags::IN)], None);
        match read(input, &mut buffer) {
            Ok(0) => return,
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::IO) if is_our_terminal(input) => std::thread::sleep(PAUSE),
            Err(_) => return,
        }
    }
}

/// Whether `input` is the terminal of this session. Reading from it fails while this job is in the background, and
/// forever when no shell is left to bring it to the foreground; neither is the end of stdin. When the session ends,
/// stdin ends too.
fn is_our_terminal(input: BorrowedFd<'_>) -> bool {
    // The second: the foreground group is outside this PID namespace, as in a container.
    matches!(tcgetpgrp(input), Ok(_) | Err(Errno::OPNOTSUPP))
}
