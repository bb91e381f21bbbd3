//! Real children, made in each way there is.
#![allow(unsafe_code)]

use distlock_fork::generation;

/// Makes a copy of this process by `copy`, runs `look` in it and returns what `look` returned there.
///
/// The copy has one thread of a process with several: `look` allocates nothing and takes no lock.
fn in_a_copy(copy: fn() -> libc::pid_t, look: impl FnOnce() -> bool) -> bool {
    match copy() {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        // SAFETY: ends the copy without exit handlers.
        0 => unsafe { libc::_exit(if look() { 7 } else { 8 }) },
        pid => {
            let mut status = 0;
            // SAFETY: waits for a child of this process; the status is a local variable.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the copy did not end by itself: {status}");
            libc::WEXITSTATUS(status) == 7
        }
    }
}

fn fork() -> libc::pid_t {
    // SAFETY: see `in_a_copy`.
    unsafe { libc::fork() }
}

/// The system call without the C library, whose handlers for forks do not run.
fn bare_clone() -> libc::pid_t {
    // SAFETY: without flags and stack it is fork(2); see `in_a_copy`.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    pid.try_into().unwrap_or(-1)
}

#[test]
fn a_process_keeps_its_number_and_its_forks_have_others() {
    let here = generation().expect("this kernel tells of forks");
    for copy in [fork, bare_clone] {
        let is_new = in_a_copy(copy, || {
            let Some(child) = generation().filter(|child| *child != here) else { return false };
            let is_kept = generation() == Some(child);
            is_kept && in_a_copy(copy, || generation().is_some_and(|grandchild| ![here, child].contains(&grandchild)))
        });
        assert!(is_new);
        assert_eq!(generation(), Some(here), "a fork does not concern the parent");
    }
}

#[test]
fn a_fork_of_another_thread_is_a_fork_for_all() {
    let here = generation();
    let other = std::thread::spawn(move || in_a_copy(fork, || generation() != here)).join();
    assert!(other.expect("no panic"));
    assert_eq!(generation(), here);
}

#[test]
fn a_child_that_never_asked_before_asks_its_own_children() {
    // A process of its own: the first question of this one is asked by whichever test is first.
    assert!(in_a_copy(fork, || {
        in_a_copy(fork, || {
            let here = generation();
            here.is_some() && in_a_copy(fork, || generation().is_some_and(|child| Some(child) != here))
        })
    }));
}

#[test]
fn threads_that_ask_first_together_agree() {
    let numbers: Vec<_> = (0..8).map(|_| std::thread::spawn(generation)).collect();
    let numbers: Vec<_> = numbers.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    assert!(numbers[0].is_some() && numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
}
