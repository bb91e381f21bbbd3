//! `cargo xtask bench peers`: this library, lock libraries of other projects and raw lower bounds under the same load.
//!
//! Started without `worker`, the program is the driver: it starts the servers, then one worker process after the
//! other, and writes what it measured to a file. A worker is this program, or one in Python, JavaScript or Go; all
//! follow the protocol of `worker.rs`.

mod clock;
mod contestants;
mod driver;
mod floors;
mod histogram;
mod last_holder;
mod measure;
mod monitor;
mod peer;
mod peers;
mod process;
mod servers;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["worker", order @ ..] => worker::run(order),
        _ => driver::run(&words),
    }
}
