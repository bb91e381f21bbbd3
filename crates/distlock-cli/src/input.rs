//! The end of this process's input.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, read};
use rustix::stdio::stdin;
use rustix::termios::tcgetpgrp;
use tokio::sync::oneshot;

/// How long to leave a terminal alone that another job has.
const PAUSE: Duration = Duration::from_millis(500);

/// Resolves at the end of stdin. Never where stdin has no end: one that cannot be read, as nohup(1) leaves it.
///
/// On a thread: stdin may be a file or a terminal, which cannot be waited for otherwise. To be called after the signals
/// were taken over: a job in the background must be refused its terminal, not stopped for it.
pub(crate) fn end() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        if can_be_read(stdin()) {
            read_to_end(stdin());
            let _ = ended.send(());
        } else {
            // Keeps `ended`: dropping it is an end, too.
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
        // Another process that shares the input may have made it non-blocking.
        let _ = poll(&mut [PollFd::new(&input, PollFlags::IN)], None);
        match read(input, &mut buffer) {
            Ok(0) => return,
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::IO) if is_our_terminal(input) => std::thread::sleep(PAUSE),
            Err(_) => return,
        }
    }
}

/// Whether `input` is the terminal of this session. Reading from that fails while this job is in the background, for
/// good when no shell is left to bring it to the foreground; neither is an end. When the session ends, so does this.
fn is_our_terminal(input: BorrowedFd<'_>) -> bool {
    // The second: a group that this process cannot name, outside its container, is in the foreground.
    matches!(tcgetpgrp(input), Ok(_) | Err(Errno::OPNOTSUPP))
}
