//! The `distlock` program.
fn main() {}
