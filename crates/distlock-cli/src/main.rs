//! The `distlock` program.

fn main() {
    distlock_cli::commands::main().leave()
}
