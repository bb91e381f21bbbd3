//! The calls without a safe wrapper: signal masks, signalfd, fork, and the code between fork and exec.
//!
//! The only file of this crate with `unsafe` code. Call everything here on the main thread.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Resource, Rlimit, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Whether SIGPIPE was ignored when the program was started.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime, which ignores SIGPIPE itself: afterwards the inherited disposition is gone.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_THE_RUNTIME: extern "C" fn() = look_at_pipe_signal;

extern "C" fn look_at_pipe_signal() {
    PIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// Whether `signal` is ignored. A signal that is blocked and read from a descriptor arrives even if it is ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the current one, which is read when it succeeded.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init_ref().sa_sigaction == libc::SIG_IGN
    }
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct SignalSet(libc::sigset_t);

impl SignalSet {
    pub(crate) fn of(signals: &[Signal]) -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set that it is given; sigaddset then gets an initialised one.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            SignalSet(set.assume_init())
        }
    }

    /// Returns the set of all signals.
    pub(crate) fn full() -> SignalSet {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigfillset initialises the set that it is given.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            SignalSet(set.assume_init())
        }
    }

    /// Blocks these signals in this thread and in threads that it starts later. Returns the mask from before.
    pub(crate) fn block(&self) -> io::Result<SignalSet> {
        self.change(libc::SIG_BLOCK)
    }

    /// Unblocks these signals in this thread.
    pub(crate) fn unblock(&self) -> io::Result<SignalSet> {
        self.change(libc::SIG_UNBLOCK)
    }

    /// Blocks these signals and no others.
    pub(crate) fn set(&self) -> io::Result<SignalSet> {
        self.change(libc::SIG_SETMASK)
    }

    fn change(&self, how: libc::c_int) -> io::Result<SignalSet> {
        let mut old = MaybeUninit::uninit();
        // SAFETY: both point to sets that live through the call; the old one is written when the call succeeds.
        match unsafe { libc::pthread_sigmask(how, &self.0, old.as_mut_ptr()) } {
            0 => Ok(SignalSet(unsafe { old.assume_init() })),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Returns a signalfd for the blocked signals of this set, with records of 128 bytes. It delivers the signals of
    /// the process that reads it.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set lives through the call.
        match unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the kernel has just created the descriptor, so it has no other owner.
            number => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        }
    }
}

impl fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignalSet")
    }
}

/// Registers `descriptor`, which must be non-blocking, with the runtime.
pub(crate) fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open, and the same, until the AsyncFd that it is moved into is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Returns the socket that a service manager has opened for this process: the first of `LISTEN_FDS`, which is descriptor 3.
/// Only the first call may return it.
///
/// # Errors
/// When the manager passed more than one, or none that is open.
pub(crate) fn activated_socket() -> io::Result<Option<OwnedFd>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    const FIRST: RawFd = 3;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => return Ok(None),
        Some(1) => {}
        Some(_) => return Err(io::Error::other("the service manager passed more than one socket; give it one")),
    }
    // SAFETY: the call only looks at a number. A descriptor that is not open is an error.
    if unsafe { libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, the manager opened it for this process, and nothing else takes it: only the first call gets here.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(FIRST) }))
}

/// Sets the default action for `signal`.
pub(crate) fn reset_action(signal: i32) {
    // SAFETY: SIG_DFL runs no code of this program. An unknown signal is an error without effect.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Ends the process by `signal`, as the child ended, without a second core dump.
pub(crate) fn die_by(signal: i32) -> ! {
    // Neither fails where it matters: the limit is only lowered, and only KILL and STOP, whose action is always the
    // default, cannot be reset.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    reset_action(signal);
    // SAFETY: raise and the set functions touch nothing but this thread's signals.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
    // Signals do not end the first process of a container: it exits with the code that shells use.
    std::process::exit(128 + signal)
}

/// Makes `command` start with `mask` and with the inherited SIGPIPE action, and makes the kernel kill it when the
/// thread that spawns it ends.
pub(crate) fn bind_to_parent(command: &mut Command, mask: SignalSet) {
    let parent = rustix::process::getpid();
    let ignores_pipe = PIPE_WAS_IGNORED.load(Ordering::Relaxed);
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the death signal was set.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if ignores_pipe {
            // SAFETY: SIG_IGN runs no code. std has just given the signal its default action.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        }
        mask.set().map(drop)
    };
    // SAFETY: between fork and exec the closure makes a few system calls on copied values: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}

/// Forks a process that runs `work` and exits.
///
/// The fork has no other threads. `work` may allocate: the C library keeps its allocator consistent (glibc, and musl
/// since 1.2.2). It must not take another lock that a thread of this process may have held, such as that of stdout.
pub(crate) fn fork(work: impl FnOnce()) -> io::Result<Pid> {
    // SAFETY: the copy runs only `work` (see above) and _exit; it returns neither into the caller nor into the runtime.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let _ = panic::catch_unwind(AssertUnwindSafe(work));
                libc::_exit(0)
            }
            pid => Ok(Pid::from_raw(pid).expect("a child has a process id")),
        }
    }
}

/// Closes every descriptor that is not in `kept`. Only for a forked process that uses none of the others: their owners
/// do not run in it.
pub(crate) fn close_all_but<const N: usize>(mut kept: [RawFd; N]) {
    kept.sort_unstable();
    let mut first = 0;
    for number in kept {
        // SAFETY: see the function.
        unsafe { close_range(first, number - 1) };
        first = number + 1;
    }
    // SAFETY: see the function.
    unsafe { close_range(first, RawFd::MAX) };
}

/// Closes the descriptors from `first` to `last`; their owners must not use them any more.
unsafe fn close_range(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: see the function. Through syscall, since not every C library has the function.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0;
    if !closed {
        // Linux before 5.9. Higher numbers are not in use this early in the program.
        (first..=last.min(1_023)).for_each(|fd| {
            // SAFETY: see the function.
            unsafe { libc::close(fd) };
        });
    }
}

/// Closes every descriptor that the program was started with, except stdin, stdout and stderr. Call this before
/// anything else: it also closes descriptors opened since.
pub(crate) fn close_inherited() {
    // SAFETY: by contract this program has opened nothing yet.
    unsafe { close_range(3, RawFd::MAX) };
}

/// Returns a duplicate of the descriptor `number` that the program inherited; an error when it is not open.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the borrow ends with this expression; a number that is not open is an error of the call.
    let copy = unsafe { rustix::io::fcntl_dupfd_cloexec(BorrowedFd::borrow_raw(number), 3) }?;
    if number > 2 {
        // SAFETY: as above. The child must not inherit it: the reader waits until every copy is closed.
        unsafe { rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(number), rustix::io::FdFlags::CLOEXEC) }?;
    }
    Ok(copy)
}
