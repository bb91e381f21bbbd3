//! A copy of the child by fork(2), which must not touch the locks of its parent.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::servers::TEST_LIMIT;

/// Runs `work` in a fork of this process, which then exits without cleaning up, and returns its output.
///
/// Only the calling thread exists in the fork: no runtime runs, and a lock that another thread held stays locked.
pub(super) fn in_a_fork(work: impl FnOnce() -> String) -> Result<String, String> {
    let (mut here, mut there) = UnixStream::pair().map_err(|error| error.to_string())?;
    here.set_read_timeout(Some(TEST_LIMIT)).map_err(|error| error.to_string())?;
    let Some(pid) = fork()? else {
        let said = work();
        let sent = there.write_all(said.as_bytes()).is_ok();
        end_at_once(i32::from(!sent));
    };
    drop(there);
    let mut said = String::new();
    let read = here.read_to_string(&mut said);
    // The fork has ended, or it hangs.
    let _ = kill_process(pid, Signal::KILL);
    let _ = waitpid(Some(pid), WaitOptions::empty());
    read.map(|_| said).map_err(|error| format!("the fork did not answer: {error}"))
}

/// Returns the process id of the fork to the parent, and `None` in the fork itself.
#[allow(unsafe_code)]
fn fork() -> Result<Option<Pid>, String> {
    // SAFETY: the fork uses only its own stack and the allocator, which the C library keeps consistent over a fork. It
    // starts no thread, and exits without running exit handlers.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().to_string()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

#[allow(unsafe_code)]
fn end_at_once(code: i32) -> ! {
    // SAFETY: the call only ends the process.
    unsafe { libc::_exit(code) }
}
