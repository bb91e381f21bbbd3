//! `cargo xtask check-macos`: type-checks the library for a Mac. Nothing is linked, and nothing runs.
//!
//! The standard library for that target is checked from its source, which must be that of the compiler. Debian has both as
//! packages; they are unpacked into the target directory. Where they cannot be had the check is skipped by name.

use std::io;
use std::path::{Path, PathBuf};

use crate::cmd::Cmd;
use crate::debian::{fetch, wrap};
use crate::test;

const TARGET: &str = "aarch64-apple-darwin";
const SUITE: &str = "sid";
const PACKAGES: [&str; 3] = ["cargo", "rustc", "rust-src"];
/// All but `tls`, whose C code needs Apple's headers, and `simulation`, which is for this repository.
const FEATURES: &str = "blocking,config,etcd,metrics,postgres,redis,serde,spans";

/// Type-checks the library for a Mac. Returns whether it is free of errors; true if it cannot be checked here.
pub(crate) fn check() -> bool {
    let directory = directory();
    let programs = match provide(&directory) {
        Ok(programs) => programs,
        Err(error) => {
            println!("skipped: check-macos: {error}");
            return true;
        }
    };
    let program = |name: &str| programs.join(name).to_string_lossy().into_owned();
    let args = ["check", "-p", "distlock", "-Z", "build-std=std,panic_abort", "--target", TARGET];
    let cmd = Cmd::new(&program("cargo")).args(&args).args(&["--no-default-features", "--features", FEATURES]);
    // The compiler is a released one; checking the standard library from source is not stable yet.
    cmd.hidden_env("RUSTC_BOOTSTRAP", "1")
        .hidden_env("RUSTC", &program("rustc"))
        .hidden_env("RUSTFLAGS", "-D warnings")
        .hidden_env("CARGO_TARGET_DIR", &directory.join("target").to_string_lossy())
        .succeeds()
}

/// Returns a directory with a `cargo` and a `rustc` that have the source of their standard library.
fn provide(directory: &Path) -> io::Result<PathBuf> {
    let (root, programs) = (directory.join("root"), directory.join("bin"));
    let (cargo, rustc) = (programs.join("cargo"), programs.join("rustc"));
    if !cargo.exists() {
        fetch(SUITE, &PACKAGES, directory, &root)?;
        wrap(&root, "rustc", &["--sysroot", &root.join("usr").to_string_lossy()], &rustc)?;
        wrap(&root, "cargo", &[], &cargo)?;
    }
    Ok(programs)
}

fn directory() -> PathBuf {
    let target = test::target_directory();
    std::path::absolute(&target).unwrap_or(target).join("macos")
}
