//! `cargo xtask bench NAME`: measures and prints figures, and ratios within one run where there is a comparison.

mod core;
mod etcd;
mod postgres;
mod process;
mod redis;
mod redlock;
mod serve;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match name.as_str() {
        "core" => core::run(),
        "etcd" => etcd::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "etcd-contender" => etcd::contender(&std::env::args().skip(2).collect::<Vec<_>>()),
        "etcd-pairs" => etcd::pairs(&std::env::args().skip(2).collect::<Vec<_>>()),
        "postgres" => postgres::run(),
        "redis" => redis::run(),
        "redlock" => redlock::run(&std::env::args().skip(2).collect::<Vec<_>>()),
        "serve" => serve::run(),
        "serve-echo" => serve::echo(&std::env::args().skip(2).collect::<Vec<_>>()),
        _ => {
            eprintln!("usage: cargo xtask bench core|redis|redlock|etcd|postgres|serve");
            std::process::exit(64);
        }
    }
}
