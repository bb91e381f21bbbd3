//! `cargo xtask bench NAME`: measures and prints, ratios within one run where there is something to compare with.

mod core;
mod redis;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match name.as_str() {
        "core" => core::run(),
        "redis" => redis::run(),
        _ => {
            eprintln!("usage: cargo xtask bench core|redis");
            std::process::exit(64);
        }
    }
}

/// User and system time of this process; the kernel counts it in hundredths of a second.
pub(crate) fn cpu_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10
}
