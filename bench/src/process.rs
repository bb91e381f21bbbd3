//! The resource usage of this process.

/// Returns a number of `/proc/self/status`.
pub(crate) fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the user and system time of this process; the kernel counts it in hundredths of a second.
pub(crate) fn cpu_ms() -> u64 {
    cpu_ms_of(std::process::id())
}

/// Returns the same of another process.
pub(crate) fn cpu_ms_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10
}

/// Returns the time that the threads of this process have run, to the microsecond.
pub(crate) fn cpu_us() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ran_ns = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
    };
    threads.map(ran_ns).sum::<u64>() / 1000
}
