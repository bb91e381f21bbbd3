//! Notices that this process is a fork of the one that asked before, without a system call per question.
//!
//! The kernel can empty a page of memory in every child that it makes (`MADV_WIPEONFORK`, Linux 4.14). One word of such
//! a page holds the number of this process; a child finds 0 there and takes a new number. That holds for every way to
//! copy a process, `fork` and the bare system call `clone` alike, from whichever thread. Only a child that shares the
//! memory of its parent (`vfork`) is not told apart: it may call nothing but `exec` and `_exit`.
//!
//! Nothing here locks: a child whose parent was inside [`generation`] at the fork is not blocked.
//!
//! ```
//! let before = distlock_fork::generation();
//! // … later, perhaps in a child:
//! let is_same_process = distlock_fork::generation() == before;
//! assert!(is_same_process);
//! ```

use std::ffi::c_void;
use std::num::NonZeroU64;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The word that is 0 in a new child. Null until the first question, [`NO_WORD`] if the kernel has no such memory.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
static NO_WORD: AtomicU64 = AtomicU64::new(0);
/// The highest number so far. A child inherits it, so that its number is higher than those of all its ancestors.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of this process: it stays the same as long as the process lives, and differs from the number of
/// every ancestor. Numbers of siblings may be equal. `None` on a kernel without such memory: then always.
#[must_use]
pub fn generation() -> Option<NonZeroU64> {
    let word = word()?;
    // Relaxed: the number guards no other memory, and a child starts with one thread.
    NonZeroU64::new(word.load(Ordering::Relaxed)).or_else(|| begin(word))
}

/// Gives this process a number, unless another of its threads does first.
#[cold]
fn begin(word: &AtomicU64) -> Option<NonZeroU64> {
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let set = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    NonZeroU64::new(set.map_or_else(|other| other, |_| next))
}

#[allow(unsafe_code)]
fn word() -> Option<&'static AtomicU64> {
    let mut word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        word = make();
    }
    // SAFETY: `make` returns a pointer to a static or to a page of its own, aligned to its size, which is readable and
    // writable, starts as zeros and is never unmapped. It is used as an atomic only; the kernel changes it only in a child,
    // before that runs.
    (!std::ptr::eq(word, &NO_WORD)).then(|| unsafe { &*word })
}

/// Makes the page and publishes it. If two threads do at the same time, both return the page that was first.
#[cold]
fn make() -> *mut AtomicU64 {
    let page = map_wiped_page();
    let made = page.map_or((&raw const NO_WORD).cast_mut(), <*mut c_void>::cast);
    match WORD.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(first) => {
            page.inspect(|page| unmap(*page));
            first
        }
    }
}

/// The kernel rounds all lengths up to whole pages.
const LENGTH: usize = size_of::<AtomicU64>();

/// Returns a page that the kernel empties in every child.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn map_wiped_page() -> Option<*mut c_void> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let page = unsafe { libc::mmap(null_mut(), LENGTH, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: both advices are about the page that was mapped above and that nothing points to yet. The first is none that
    // exists: an emulator that accepts it accepts everything and does nothing.
    let is_wiped =
        unsafe { libc::madvise(page, LENGTH, -1) != 0 && libc::madvise(page, LENGTH, libc::MADV_WIPEONFORK) == 0 };
    if !is_wiped {
        unmap(page);
    }
    is_wiped.then_some(page)
}

/// Returns nothing: other kernels have no such memory.
#[cfg(not(target_os = "linux"))]
fn map_wiped_page() -> Option<*mut c_void> {
    None
}

#[allow(unsafe_code)]
fn unmap(page: *mut c_void) {
    // SAFETY: the page comes from `map_wiped_page` and was not published: nothing points to it.
    unsafe { libc::munmap(page, LENGTH) };
}
