//! The built example.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// Builds the example, if it is not up to date, and returns its path.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(build);
    &PROGRAM
}

fn build() -> PathBuf {
    // The test is in `deps` of the same directory.
    let test = std::env::current_exe().expect("the test's own program");
    let profile = test.ancestors().nth(2).expect("the directory of the profile");
    let mut build = Command::new(env!("CARGO"));
    // The features of `cargo xtask test`: with others, half the dependencies would be compiled again.
    build.args(["build", "--quiet", "--workspace", "--all-features", "--example", "orders"]);
    build.args(profile.ends_with("release").then_some("--release"));
    // Build scripts of other packages take cargo's variables for this package as a change.
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            build.env_remove(name);
        }
    }
    assert!(build.stderr(Stdio::null()).status().expect("cargo runs").success(), "the example is built");
    profile.join("examples/orders")
}
