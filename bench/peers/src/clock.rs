//! The clocks that all workers read, in whatever language.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns CLOCK_MONOTONIC in nanoseconds, which is the same for all processes of the machine.
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Returns the processor time of this process in microseconds, user and system.
pub(crate) fn cpu_us() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime)) / 1_000
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
