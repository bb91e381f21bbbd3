//! The system calls of this engine: flock, inotify, and what the kernel tells about processes and mounts.

pub(super) mod inotify;
pub(super) mod kernel_locks;
pub(super) mod lock_file;
pub(super) mod mount;
pub(super) mod process;
