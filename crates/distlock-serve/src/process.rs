//! Whether a client's process is dead.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::time::sleep;

/// The first and the longest pause between two looks: a killed process closes its connections a moment before it is dead.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Waits until no process has this id, or the one that has it now is dead. Returns whether that is certain.
///
/// The id may belong to another process by now: then the client is dead, and this does not notice.
///
/// # Cancel safety
/// Dropping the future has no effect.
pub(crate) async fn died(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return false };
    let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(error) => return error == rustix::io::Errno::SRCH,
    };
    let mut pause = FIRST_PAUSE;
    loop {
        // Readable once all threads of the process have ended.
        let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut watched, Some(&Timespec::default())) {
            Ok(0) => sleep(pause).await,
            Ok(_) => return true,
            Err(_) => return false,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_process_is_dead_once_it_was_killed_and_before_it_is_reaped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(tokio::time::timeout(Duration::from_millis(50), died(pid)).await.is_err(), "it runs");
        child.kill().unwrap();
        assert!(died(pid).await, "a zombie");
        child.wait().unwrap();
        assert!(died(pid).await, "gone");
    }
}
